"""The relay: moves timers from their holding topics onwards when their time has come."""

from timewheel.consumers.relay.driver.handle import PartitionState
from timewheel.consumers.relay.relay import Relay
from timewheel.consumers.relay.status import PartitionStatus, RelayStatus

__all__ = ["PartitionState", "PartitionStatus", "Relay", "RelayStatus"]
