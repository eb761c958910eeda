"""How a plan stands: timers by due time and place, what is late, and who holds what. Nothing is consumed or changed."""

from timewheel.ops.status.horizon import Amount, Bucket, Horizon
from timewheel.ops.status.looking import DEFAULT_READS, status_of
from timewheel.ops.status.places import Head, PlaceStatus, RelayHold, Status, TopicStatus

__all__ = [
    "DEFAULT_READS",
    "Amount",
    "Bucket",
    "Head",
    "Horizon",
    "PlaceStatus",
    "RelayHold",
    "Status",
    "TopicStatus",
    "status_of",
]
