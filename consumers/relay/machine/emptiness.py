"""Whether a slot of a ring has nothing left (broker-facts: empty-needs-proof).

That nothing comes proves nothing: a broker begins to read for a new Failover consumer a second late, and pauses as it
likes. Only the topic's last position does: an empty topic, or one that is confirmed up to its end. Where the end was
acknowledged by an earlier session nobody tells so; then the relay puts a *probe* there, a message of its own. Once that
has come, everything that waited before it has come.
"""

from __future__ import annotations

from timewheel.consumers.relay.machine.backoff import Backoff
from timewheel.consumers.relay.machine.order import Spot
from timewheel.core.chance import Chance
from timewheel.wire.positions import Position

__all__ = ["Emptiness", "is_proven"]

PROBE_FIRST_MS = 2_000
PROBE_LONGEST_MS = 10_000
"""A probe goes to the active consumer, and that may be another relay's: who is not active puts another one, until the
active one has left. Rarer and rarer, since that may take as long as a slot; not too rare, since several relays leave
one after the other."""


def is_proven(last: Position, confirmed: Spot | None) -> bool:
    """Whether a topic's last position proves it empty.

    Args:
        last: Asked for when no probe was under way: one of ours may stand behind it otherwise.
        confirmed: Up to where this process has confirmed everything.
    """
    return last.entry < 0 or (confirmed is not None and last <= confirmed.position)


class Emptiness:
    """When to put a probe; for one session.

    Args:
        chance: For `Backoff`.
    """

    __slots__ = ("_backoff", "_next_ms", "probing")

    def __init__(self, chance: Chance) -> None:
        self._backoff = Backoff(PROBE_FIRST_MS, PROBE_LONGEST_MS, chance)
        self._next_ms = 0
        self.probing = False
        """Whether a probe is under way."""

    def take_probe(self, now_ms: int) -> bool:
        """Whether to put one now; it is under way then, until `probed`."""
        if self.probing or 0 < self._next_ms - now_ms <= PROBE_LONGEST_MS:  # farther off: the clock was set back
            return False
        self._next_ms = now_ms + self._backoff.next_ms()
        self.probing = True
        return True

    def probed(self) -> None:
        """What was put is stored."""
        self.probing = False
