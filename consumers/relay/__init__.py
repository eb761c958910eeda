"""The relay: moves timers onward from their holding topics when their time has come."""

from timewheel.consumers.relay.driver.handle import PartitionState
from timewheel.consumers.relay.relay import Relay
from timewheel.consumers.relay.status import PartitionStatus, RelayStatus

__all__ = ["PartitionState", "PartitionStatus", "Relay", "RelayStatus"]
