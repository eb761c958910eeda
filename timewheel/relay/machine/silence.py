"""Decides after a long silence when to ask the broker whether messages are left.

After a change of the active consumer a broker may hold back the old consumer's messages in flight until the next
publish (seen on 4.0.7). The pauses grow, since a relay that is not the active consumer asks in vain.
"""

from __future__ import annotations

from timewheel.core.rng import Random
from timewheel.relay.machine.backoff import Backoff

ASK_FIRST_MS = 2_000
ASK_LONGEST_MS = 60_000
"""Time that a subscription is idle before it asks."""


class Silence:
    """Measures how long no message has come; for a single session.

    Args:
        rng: Randomness for `Backoff`.
    """

    __slots__ = ("_ask_at_ms", "_backoff")

    def __init__(self, rng: Random) -> None:
        self._backoff = Backoff(ASK_FIRST_MS, ASK_LONGEST_MS, rng)
        self._ask_at_ms: int | None = None

    def is_too_long(self, now_ms: int) -> bool:
        """Return whether to ask now; call it whenever no message has come.

        Args:
            now_ms: UTC milliseconds.
        """
        if self._ask_at_ms is None or self._ask_at_ms - now_ms > ASK_LONGEST_MS:  # the clock was set back
            self._ask_at_ms = now_ms + self._backoff.next_ms()
        if now_ms < self._ask_at_ms:
            return False
        self._ask_at_ms = now_ms + self._backoff.next_ms()
        return True

    def broken(self) -> None:
        """End the silence: a message came."""
        self._ask_at_ms = None
        self._backoff.reset()
