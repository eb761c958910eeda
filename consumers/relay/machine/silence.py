"""When to ask the broker whether there is really nothing, since nothing has come for long.

After a change of the active consumer a broker may wait for the next publish with what the old one had in hand (seen on
4.0.7). Rarer and rarer, since a relay that is not the active one asks in vain.
"""

from __future__ import annotations

from timewheel.consumers.relay.machine.backoff import Backoff
from timewheel.core.chance import Chance

__all__ = ["Silence"]

ASK_FIRST_MS = 2_000
ASK_LONGEST_MS = 60_000
"""How long a subscription is idle before it asks."""


class Silence:
    """Counts how long nothing has come; for one session.

    Args:
        chance: For `Backoff`.
    """

    __slots__ = ("_ask_at_ms", "_backoff")

    def __init__(self, chance: Chance) -> None:
        self._backoff = Backoff(ASK_FIRST_MS, ASK_LONGEST_MS, chance)
        self._ask_at_ms: int | None = None

    def is_too_long(self, now_ms: int) -> bool:
        """Whether to ask now; call it whenever nothing has come.

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
        """Something came."""
        self._ask_at_ms = None
        self._backoff.reset()
