"""Dead letters and parked timers: list them, replay them, discard them."""

from timewheel.dead_letters.dead_letters import (
    DEFAULT_LIMIT,
    Box,
    DeadLetter,
    DeadLetterFilter,
    DeadLetterPosition,
    DeadLetters,
    dead_letter_box,
    dead_letters,
    parked_box,
)
from timewheel.dead_letters.replaying import (
    Refused,
    ReplayResult,
    ReplayTarget,
    again,
    drop,
    handled_again,
    replay,
    replay_parked,
    spread,
)

__all__ = [
    "DEFAULT_LIMIT",
    "Box",
    "DeadLetter",
    "DeadLetterFilter",
    "DeadLetterPosition",
    "DeadLetters",
    "Refused",
    "ReplayResult",
    "ReplayTarget",
    "again",
    "dead_letter_box",
    "dead_letters",
    "drop",
    "handled_again",
    "parked_box",
    "replay",
    "replay_parked",
    "spread",
]
