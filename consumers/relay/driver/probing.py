"""Whether a slot of a ring has nothing left (broker-facts: empty-needs-proof).

That nothing comes proves nothing: a broker begins to read for a new Failover consumer a second late, and pauses as it
likes. Only the topic's last position does: an empty topic, or one that is confirmed up to its end. Where the end was
acknowledged by an earlier session nobody tells so; then the relay puts a *probe* there, a message of its own. Once that
has come, everything that waited before it has come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timewheel.consumers.relay.backoff import Backoff
from timewheel.consumers.relay.driver.confirmations import Confirmations
from timewheel.consumers.relay.driver.hop_producers import Hops
from timewheel.consumers.relay.machine.commands import PROBE_PROPERTY
from timewheel.consumers.relay.machine.order import Spot
from timewheel.core.chance import Chance
from timewheel.wire.native import NO_SCHEMA
from timewheel.wire.positions import Position

__all__ = ["Probing"]

PROBE_FIRST_MS = 2_000
PROBE_LONGEST_MS = 60_000
"""A probe goes to the active consumer, and may be another relay's: who is not active puts another one, until the active
one has left. Rarer and rarer, since that may take as long as a slot."""


class Probing:
    """The proof for one session of one slot's partition.

    Args:
        hops: Its producers.
        confirmations: Told of probes that could not be stored.
        topic: Full name of the slot's topic, without a partition suffix.
        relay_id: Named in the probes.
        chance: For `Backoff`.
    """

    __slots__ = ("_backoff", "_confirmations", "_hops", "_next_ms", "_relay_id", "_topic", "_under_way")

    def __init__(self, hops: Hops, confirmations: Confirmations, topic: str, relay_id: str, chance: Chance) -> None:
        self._hops = hops
        self._confirmations = confirmations
        self._topic = topic
        self._relay_id = relay_id
        self._backoff = Backoff(PROBE_FIRST_MS, PROBE_LONGEST_MS, chance)
        self._next_ms = 0
        self._under_way = False

    def is_empty(self, ask_last: Callable[[], Position], confirmed: Spot | None, now_ms: int) -> bool:
        """Whether it is proven; if not, and it is time, one more probe is put.

        Args:
            ask_last: Asks for the topic's last position.
            confirmed: Up to where this process has confirmed everything.
            now_ms: UTC milliseconds.

        Raises:
            PulsarException: The broker did not answer, or took no producer.
        """
        if self._under_way:
            return False
        last = ask_last()  # only now, so that no probe of ours can stand behind it
        if last.entry < 0 or (confirmed is not None and last <= confirmed.position):
            return True
        if now_ms >= self._next_ms:
            self._next_ms = now_ms + self._backoff.next_ms()
            self._under_way = True
            self._hops.to(self._topic, NO_SCHEMA, named=False).send_async(
                b"",
                self._on_sent,
                properties={PROBE_PROPERTY: self._relay_id},
                disable_replication=True,
            )
        return False

    def _on_sent(self, result: Any, message_id: Any) -> None:
        """Runs on the client's thread: never raises, and does next to nothing."""
        self._under_way = False
        if result.value:
            self._confirmations.on_sent(-1, result, message_id)
