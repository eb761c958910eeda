"""Status of a plan: timers by due time and place, lateness, and relays. Nothing is consumed or changed."""

from timewheel.inspect.status.places import (
    DEFAULT_READS,
    Amount,
    Bucket,
    Head,
    Horizon,
    PlaceStatus,
    RelayHold,
    Status,
    TopicStatus,
    status_of,
)

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
