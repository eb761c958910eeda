"""Pauses that grow: between attempts, before a silent broker is asked, and between probes."""

from __future__ import annotations

from timewheel.client.positions import Position
from timewheel.core.rng import Random
from timewheel.relay.machine.order import Spot


class Backoff:
    """Waits that double from ``first_ms`` to ``longest_ms``, each shortened at random to between half and all of it."""

    def __init__(self, first_ms: int, longest_ms: int, rng: Random) -> None:
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self._attempts = 0
        self._rng = rng

    def next_ms(self) -> int:
        # The exponent is bounded too, since a partition may fail for days.
        wait_ms = min(self._first_ms << min(self._attempts, 20), self._longest_ms)
        self._attempts += 1
        return int(wait_ms * (0.5 + self._rng.random() / 2))

    def reset(self) -> None:
        """Reset to the first wait after a success."""
        self._attempts = 0


ASK_FIRST_MS = 2_000
ASK_LONGEST_MS = 60_000  # time that a subscription is idle before it asks


class Silence:
    """How long no message has come; for a single session.

    After a change of the active consumer a broker may hold back the old consumer's messages in flight until the next
    publish (seen on 4.0.7). The pauses grow, since a relay that is not the active consumer asks in vain.
    """

    def __init__(self, rng: Random) -> None:
        self._backoff = Backoff(ASK_FIRST_MS, ASK_LONGEST_MS, rng)
        self._ask_at_ms: int | None = None

    def is_too_long(self, now_ms: int) -> bool:
        """Return whether to ask the broker now whether messages are left; call it whenever no message has come."""
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


PROBE_FIRST_MS = 2_000
PROBE_LONGEST_MS = 10_000
"""The longest pause between probes. A probe goes to the active consumer, which may be another relay's: an inactive
relay puts another probe, until the active relay has left. The pause grows, since that may take as long as a slot;
but not too much, since several relays leave one after the other.
"""


def is_proven(last: Position, confirmed: Spot | None) -> bool:
    """True if a topic's last position, asked for while none of our probes was under way, proves it empty."""
    return last.entry < 0 or (confirmed is not None and last <= confirmed.position)


class Emptiness:
    """When to put a probe into a slot of a ring; for a single session (broker-facts: empty-needs-proof).

    Silence proves nothing: a broker begins to read for a new Failover consumer a second late, and pauses at will. Only
    the topic's last position is proof: an empty topic, or a topic that is confirmed up to its end. If an earlier
    session acknowledged the end, its position is unknown; then the relay puts a *probe* there, a message of its own.
    Once the probe has arrived, all messages that waited before it have arrived.
    """

    def __init__(self, rng: Random) -> None:
        self._backoff = Backoff(PROBE_FIRST_MS, PROBE_LONGEST_MS, rng)
        self._next_ms = 0
        self.probing = False  # True while a probe is under way

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
