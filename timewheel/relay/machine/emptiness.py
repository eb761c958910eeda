"""Proof that a slot of a ring is empty (broker-facts: empty-needs-proof).

Silence proves nothing: a broker begins to read for a new Failover consumer a second late, and pauses at will. Only the
topic's last position is proof: an empty topic, or a topic that is confirmed up to its end. If an earlier session
acknowledged the end, its position is unknown; then the relay puts a *probe* there, a message of its own. Once the probe
has arrived, all messages that waited before it have arrived.
"""

from __future__ import annotations

from timewheel.client.positions import Position
from timewheel.core.rng import Random
from timewheel.relay.machine.backoff import Backoff
from timewheel.relay.machine.order import Spot

PROBE_FIRST_MS = 2_000
PROBE_LONGEST_MS = 10_000
"""The longest pause between probes. A probe goes to the active consumer, which may be another relay's: an inactive
relay puts another probe, until the active relay has left. The pause grows, since that may take as long as a slot;
but not too much, since several relays leave one after the other.
"""


def is_proven(last: Position, confirmed: Spot | None) -> bool:
    """True if a topic's last position proves it empty.

    Args:
        last: The last position, asked for when no probe was under way: else our own probe may stand behind it.
        confirmed: Position up to which this process has confirmed all messages.
    """
    return last.entry < 0 or (confirmed is not None and last <= confirmed.position)


class Emptiness:
    """Decides when to put a probe; for a single session.

    Args:
        rng: Randomness for `Backoff`.
    """

    __slots__ = ("_backoff", "_next_ms", "probing")

    def __init__(self, rng: Random) -> None:
        self._backoff = Backoff(PROBE_FIRST_MS, PROBE_LONGEST_MS, rng)
        self._next_ms = 0
        self.probing = False
        """True while a probe is under way."""

    def take_probe(self, now_ms: int) -> bool:
        """Return whether to put a probe now; it is under way then, until `probed`."""
        if self.probing or 0 < self._next_ms - now_ms <= PROBE_LONGEST_MS:  # farther off: the clock was set back
            return False
        self._next_ms = now_ms + self._backoff.next_ms()
        self.probing = True
        return True

    def probed(self) -> None:
        """Record that the probe is stored."""
        self.probing = False
