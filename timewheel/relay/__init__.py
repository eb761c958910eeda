"""The relay: moves timers onward from their holding topics when their time has come."""

from timewheel.relay.driver.source import PartitionState
from timewheel.relay.relay import PartitionStatus, Relay, RelayStatus

__all__ = ["PartitionState", "PartitionStatus", "Relay", "RelayStatus"]
