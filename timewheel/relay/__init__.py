"""The relay: moves timers onward from their holding topics when their time has come."""

from timewheel.relay.driver.handle import PartitionState
from timewheel.relay.relay import Relay
from timewheel.relay.status import PartitionStatus, RelayStatus

__all__ = ["PartitionState", "PartitionStatus", "Relay", "RelayStatus"]
