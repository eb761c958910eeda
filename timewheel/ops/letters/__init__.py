"""Dead letters and parked timers: list them, replay them, discard them."""

from timewheel.ops.letters.box import Box, dead_letter_box, parked_box
from timewheel.ops.letters.dealing import Dealt, drop, replay, replay_parked, spread
from timewheel.ops.letters.letters import DEFAULT_MOST, Letter, LetterPlace, Letters, Wish, letters
from timewheel.ops.letters.replay import Again, Refused, again, handled_again

__all__ = [
    "DEFAULT_MOST",
    "Again",
    "Box",
    "Dealt",
    "Letter",
    "LetterPlace",
    "Letters",
    "Refused",
    "Wish",
    "again",
    "dead_letter_box",
    "drop",
    "handled_again",
    "letters",
    "parked_box",
    "replay",
    "replay_parked",
    "spread",
]
