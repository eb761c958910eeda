"""Dead letters: look at them, send them again, drop them."""

from timewheel.ops.dead.dealing import Dealt, drop, replay
from timewheel.ops.dead.letters import DEFAULT_MOST, DeadLetter, DeadLetters, LetterPlace, Wish, dead_letters
from timewheel.ops.dead.replay import Again, Refused, again

__all__ = [
    "DEFAULT_MOST",
    "Again",
    "DeadLetter",
    "DeadLetters",
    "Dealt",
    "LetterPlace",
    "Refused",
    "Wish",
    "again",
    "dead_letters",
    "drop",
    "replay",
]
