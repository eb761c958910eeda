"""The producers of one source partition: named ones for hops, unnamed ones for all else.

A named producer is the lease of its hops (broker-facts: named-producers): its name is made of source and destination,
so of all relays only one at a time can have it, and the broker drops what it has seen from it before. Whoever may send
to the destination can use the name as well. Under one whose mark is higher than any number that its relay can have
sent, nothing is sent: it stays open as the lease, and a producer with a random name sends (broker-facts:
numbers-of-others).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Literal, Self

import pulsar

from timewheel.consumers.relay.driver.source import Source, Tools
from timewheel.consumers.relay.machine.order import highest_number, sequence_id
from timewheel.core.names import Names, partition_topic
from timewheel.events import RelayNumbersUsedUp
from timewheel.wire.native import NO_SCHEMA
from timewheel.wire.own_numbers import own_numbers
from timewheel.wire.positions import Position
from timewheel.wire.results import Outcome, outcome_of_error
from timewheel.wire.schema_versions import Schemas

__all__ = ["HopProducers", "LeaseHeld", "producer_name"]

MAX_PRODUCERS = 64
"""Open producers of one source partition: destinations times schema versions; beyond, the oldest is closed."""


class LeaseHeld(Exception):
    """Somebody else has the producer of this name: another relay that still forwards, or one that just died."""


_Lane = Literal["single", "way out", "group", "unnamed", "unnamed batch"]
_Key = tuple[str, int, _Lane, bool]
"""Topic, schema version, how it sends, whether it compresses. A plain tuple: one is made per hop."""

_UNBOUNDED: Final = {
    # All bounds of the client lie far above a group's: a group that it cuts in two is not exact
    # (broker-facts: batched-hops).
    "batching_enabled": True,
    "batching_max_messages": 1_000_000,
    "batching_max_allowed_size_in_bytes": 1 << 30,
    "batching_max_publish_delay_ms": 3_600_000,
    "max_pending_messages": 0,
    # Cheap to make, and a batch of timers repeats itself.
    "compression_type": pulsar.CompressionType.LZ4,
}


def producer_name(source: str, destination: str, version: int, fingerprint: str, label: str = "") -> str:
    """The name of the producer of one kind of hop.

    Args:
        source: Full name of the holding topic's partition.
        destination: Full name of the destination's partition, or of a destination without partitions.
        version: The schema version in the source; -1: none. Definitions are announced per producer, so each version
            has a number line of its own (broker-facts: named-producers).
        fingerprint: Of the routing. Under the name of another routing's producer the broker would take a position that
            it never saw for one of the past (broker-facts: names-follow-routing).
        label: What sets other hops from the same source apart.
    """
    return f"tw|{label}{_short(source)}|{_short(destination)}|{version}|{fingerprint}"


class HopProducers:
    """Opens, keeps and closes the producers of one source partition; for one thread.

    Args:
        client: The user's `pulsar.Client`.
        source: Full name of the source partition.
        partition: Its index; destinations get the same one, so that a key stays on its partition
            (broker-facts: keys-and-partitions).
        names: The plan's, of its topics.
        fingerprint: Of the plan's routing, for the names of the producers.
        max_pending: Sends under way at most, over all producers.
        send_timeout_ms: After this time without an answer a send has failed.
        label: Stands before the source in the names of its producers.
        is_forged: Whether this mark of the producer of a name, to a destination, is none that the source's relay can
            have left.
    """

    __slots__ = (
        "_client",
        "_fingerprint",
        "_is_forged",
        "_label",
        "_leases",
        "_marks",
        "_names",
        "_options",
        "_partition",
        "_producers",
        "_schemas",
        "_source",
    )

    def __init__(
        self,
        client: Any,
        source: str,
        partition: int,
        *,
        names: Names,
        fingerprint: str,
        max_pending: int,
        send_timeout_ms: int,
        label: str = "",
        is_forged: Callable[[str, int], bool] = lambda *_: False,
    ) -> None:
        self._client = client
        self._is_forged = is_forged
        self._label = label
        self._source = source
        self._partition = partition
        self._names = names
        self._fingerprint = fingerprint
        self._schemas = Schemas(client, source)
        self._producers: dict[_Key, Any] = {}
        self._leases: dict[Any, Any] = {}  # by the producer that sends in place of its lease
        self._marks: dict[Any, int] = {}
        self._options = {
            "send_timeout_millis": send_timeout_ms,
            # More than can be under way: the client drops what is over its bound into the callback
            # (broker-facts: full-send-queue).
            "max_pending_messages": max_pending + 1,
        }

    @classmethod
    def of(
        cls, source: Source, tools: Tools, head: Callable[[], Position | None], last: Callable[[], Position]
    ) -> Self:
        """Those of one source partition, with what its relay works with.

        Args:
            source: The partition.
            tools: Of its relay.
            head: The position of what is sent on now.
            last: The last one in the source: asked for by the network, and only where the mark is above the head's
                number, as after a crash.
        """

        def is_forged(destination: str, mark: int) -> bool:
            position = head()
            assert position is not None, "a hop of no message"
            if mark <= sequence_id(position) or mark <= highest_number(last()):
                return False
            tools.alarms.raised(RelayNumbersUsedUp(topic=source.name, destination=destination))
            return True

        return cls(
            tools.client,
            source.name,
            source.partition,
            names=tools.names,
            fingerprint=tools.router.fingerprint,
            max_pending=tools.max_in_flight,
            send_timeout_ms=tools.send_timeout_ms,
            is_forged=is_forged,
        )

    def __len__(self) -> int:
        return len(self._producers)

    def to(
        self,
        topic: str,
        version: int,
        *,
        named: bool,
        delayed: bool = False,
        leaves_plan: bool = False,
        large: bool = False,
    ) -> Any:
        """The producer for this source's messages of one schema version to a destination, each by itself.

        Args:
            topic: Destination, without a partition suffix.
            version: The schema version in the source; -1: none.
            named: Whether its sends carry sequence ids.
            delayed: Whether the broker delays what it sends, so that it cannot be batched.
            leaves_plan: Whether it goes another way than the plan says, and so by another name
                (broker-facts: names-follow-routing).
            large: Whether what it sends is compressed, and by another name: its numbers are a line of their own.

        Raises:
            LeaseHeld: Somebody else has that name.
            PulsarException: It could not be opened.
        """
        lane: _Lane = "unnamed" if delayed or large else "unnamed batch"
        if named:
            lane = "way out" if leaves_plan else "single"
        key: _Key = (topic, version, lane, large)
        producer = self._producers.get(key)
        return self._open(key, self._names.part(topic, self._partition)) if producer is None else producer

    def for_groups(self, topic: str, version: int) -> tuple[Any, int]:
        """The named producer for groups to a destination, and the highest sequence id that the broker had from it when
        it was opened; -1: none.

        Args:
            topic: Destination, without a partition suffix.
            version: The schema version in the source; -1: none.

        Raises:
            LeaseHeld: Somebody else has that name.
            PulsarException: It could not be opened.
        """
        key: _Key = (topic, version, "group", False)
        producer = self._producers.get(key)
        if producer is None:
            producer = self._open(key, self._names.part(topic, self._partition))
        return producer, self._marks[producer]

    def is_new(self, producer: Any, number: int) -> bool:
        """Whether the broker had this number from no earlier session, so that it must not drop it as seen before."""
        return number > self._marks.get(producer, -1)

    def to_dead_letters(self, topic: str, *, large: bool = False) -> Any:
        """The unnamed producer of plain bytes to the one partition of a dead-letter topic.

        Without a schema: what is garbled may claim any, and a registry's refusal must not block the head.
        """
        destination = partition_topic(topic, 0)
        key: _Key = (destination, NO_SCHEMA, "unnamed" if large else "unnamed batch", large)
        producer = self._producers.get(key)
        return self._open(key, destination) if producer is None else producer

    def give_back(self) -> None:
        """Close all producers, so that another relay can have their names; what is under way has been confirmed."""
        producers, self._producers, self._marks = [*self._producers.values(), *self._leases.values()], {}, {}
        self._leases = {}
        for producer in producers:
            _close(producer)

    def look_up(self, version: int) -> None:
        """Ask the source's registry for a schema version, unless it is known.

        Raises:
            PulsarException: There is none, or no answer came.
        """
        self._schemas.producer_options(version)

    def _open(self, key: _Key, destination: str) -> Any:
        if len(self._producers) >= MAX_PRODUCERS:
            self._close_oldest()
        _, version, lane, large = key
        is_named = lane in ("single", "way out", "group")
        options = {**self._options, **self._schemas.producer_options(version)}
        # Without a number a batch may be cut anew after a crash; with one it would be dropped whole, or its rest
        # (broker-facts: exact-hops, batched-hops).
        options["batching_enabled"] = lane == "unnamed batch"
        if lane == "group":
            options |= _UNBOUNDED
        if large:
            options["compression_type"] = pulsar.CompressionType.ZSTD
        if is_named:
            routing = self._fingerprint + ("-drain" if lane == "way out" else "") + ("-large" if large else "")
            options["producer_name"] = producer_name(self._source, destination, version, routing, self._label)
        else:
            options |= own_numbers()
        try:
            producer = self._producers[key] = self._client.create_producer(destination, **options)
        except pulsar.PulsarException as error:
            if is_named and outcome_of_error(error) is Outcome.BUSY:
                raise LeaseHeld(options["producer_name"]) from error
            raise
        if is_named:
            self._marks[producer] = mark = producer.last_sequence_id()
            if mark >= 0 and self._is_forged(destination, mark):
                lease, producer = producer, self._client.create_producer(destination, **options | own_numbers())
                self._producers[key], self._leases[producer], self._marks[producer] = producer, lease, -1
                del self._marks[lease]
        return producer

    def _close_oldest(self) -> None:
        oldest = self._producers.pop(next(iter(self._producers)))
        try:
            oldest.flush()
        finally:
            self._marks.pop(oldest, None)
            _close(oldest)  # or its name would be held by nobody
            if (lease := self._leases.pop(oldest, None)) is not None:
                _close(lease)


def _short(topic: str) -> str:
    return topic.removeprefix("persistent://")


def _close(producer: Any) -> None:
    # Already closed by a broken connection or with the client: its name is free either way.
    with suppress(pulsar.PulsarException):
        producer.close()
