"""Dead letters and parked timers: list them, replay them, discard them."""

from timewheel.dead_letters.box import Box, dead_letter_box, parked_box
from timewheel.dead_letters.dead_letters import (
    DEFAULT_LIMIT,
    DeadLetter,
    DeadLetterFilter,
    DeadLetterPosition,
    DeadLetters,
    dead_letters,
)
from timewheel.dead_letters.replay import Refused, ReplayTarget, again, handled_again
from timewheel.dead_letters.replaying import ReplayResult, drop, replay, replay_parked, spread

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
