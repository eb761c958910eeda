"""The producers of a source partition: named producers for hops, unnamed producers for all other messages.

A named producer is the lease of its hops (broker-facts: named-producers): its name contains source and destination, so
only one relay at a time can have it, and the broker drops duplicates of its messages. Any client that may send to the
destination can use the name as well. If the mark of the name is higher than any number that its relay can have sent,
this producer sends no message: it stays open as the lease, and a producer with a random name sends (broker-facts:
numbers-of-others). A random name also replaces a name that is held by a client that can be no relay (broker-facts:
names-held-by-others).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Literal, Self

import pulsar

from timewheel.client.native import NO_SCHEMA
from timewheel.client.positions import Position
from timewheel.client.results import Outcome, outcome_of_error
from timewheel.client.schemas import Schemas
from timewheel.client.surface import own_numbers
from timewheel.core.names import Names, partition_topic
from timewheel.events import RelayNumbersUsedUp
from timewheel.relay.driver.source import Source, Tools
from timewheel.relay.machine.held_names import HeldNames
from timewheel.relay.machine.order import highest_number, sequence_id

MAX_PRODUCERS = 64
"""Maximum number of open producers: destinations times schema versions; beyond it the oldest is closed."""


class LeaseHeld(Exception):
    """Another client has the producer of this name: a relay that still forwards, or that has just died."""


_Lane = Literal["single", "way out", "group", "unnamed", "unnamed batch"]
_Key = tuple[str, int, _Lane, bool]
"""Topic, schema version, how it sends, whether it compresses. A plain tuple: each hop makes a key."""

_UNBOUNDED: Final = {
    # All bounds of the client lie far above a group's: a group that the client cuts in two is not exact (broker-facts:
    # batched-hops).
    "batching_enabled": True,
    "batching_max_messages": 1_000_000,
    "batching_max_allowed_size_in_bytes": 1 << 30,
    "batching_max_publish_delay_ms": 3_600_000,
    "max_pending_messages": 0,
    # Cheap to compute, and a batch of timers repeats itself.
    "compression_type": pulsar.CompressionType.LZ4,
}


def producer_name(source: str, destination: str, version: int, fingerprint: str, label: str = "") -> str:
    """Return the name of the producer for a kind of hop.

    Args:
        source: Full name of the holding topic's partition.
        destination: Full name of the destination's partition, or of a destination without partitions.
        version: The schema version in the source; -1 for none. Schemas are announced per producer, so each version has
            its own sequence of numbers (broker-facts: named-producers).
        fingerprint: Fingerprint of the routing. Under the name of another routing's producer the broker would drop a
            new position as a duplicate (broker-facts: names-follow-routing).
        label: Distinguishes other hops from the same source.
    """
    return f"tw|{label}{_short(source)}|{_short(destination)}|{version}|{fingerprint}"


class HopProducers:
    """Opens, keeps and closes the producers of a source partition; for a single thread.

    Args:
        client: The user's `pulsar.Client`.
        source: Full name of the source partition.
        partition: Its index; destinations get the same index, so that a key stays on its partition (broker-facts:
            keys-and-partitions).
        names: Topic names of the plan.
        fingerprint: Fingerprint of the plan's routing, for the names of the producers.
        max_pending: Maximum number of sends under way, over all producers.
        send_timeout_ms: Time without an answer after which a send has failed.
        label: Stands before the source in the names of its producers.
        is_forged: Returns whether this mark of a named producer, to a destination, cannot come from the source's relay.
        is_strangers: Called when another client holds the name of a producer to a destination; returns whether that
            client can be no relay.
        is_free: Called with a name that the broker has given.
    """

    __slots__ = (
        "_client",
        "_fingerprint",
        "_is_forged",
        "_is_free",
        "_is_strangers",
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
        is_strangers: Callable[[str, str], bool] = lambda *_: False,
        is_free: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._is_forged = is_forged
        self._is_strangers = is_strangers
        self._is_free = is_free
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
            # More than can be under way: the client fails a send over its bound in the callback (broker-facts:
            # full-send-queue).
            "max_pending_messages": max_pending + 1,
        }

    @classmethod
    def of(
        cls,
        source: Source,
        tools: Tools,
        held: HeldNames,
        head: Callable[[], Position | None],
        last: Callable[[], Position],
    ) -> Self:
        """Create the producers of a source partition from its relay's tools.

        Args:
            source: The partition.
            tools: Its relay's tools.
            held: Names that other clients hold, over all subscriptions of the partition.
            head: Returns the position of the message that is forwarded now.
            last: Returns the last position in the source, by a network request; called only where the mark is above the
                head's number, as after a crash.
        """

        def is_forged(destination: str, mark: int) -> bool:
            position = head()
            assert position is not None, "a hop of no message"
            if mark <= sequence_id(position) or mark <= highest_number(last()):
                return False
            tools.alarms.raised(RelayNumbersUsedUp(topic=source.name, destination=destination))
            return True

        def is_strangers(destination: str, name: str) -> bool:
            if not held.is_strangers(name, tools.clock.monotonic_ms()):
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
            is_strangers=is_strangers,
            is_free=held.is_free,
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
        """Return the producer for this source's messages of a schema version to a destination, each sent alone.

        Args:
            topic: Destination, without a partition suffix.
            version: The schema version in the source; -1 for none.
            named: Whether its sends carry sequence ids.
            delayed: Whether the broker delays its messages, so that they cannot be batched.
            leaves_plan: Whether it leaves the plan's routing, and so has another name (broker-facts:
                names-follow-routing).
            large: Whether its messages are compressed; it then has another name, since its numbers are a separate
                sequence.

        Raises:
            LeaseHeld: Another client has that name.
            PulsarException: The producer could not be opened.
        """
        lane: _Lane = "unnamed" if delayed or large else "unnamed batch"
        if named:
            lane = "way out" if leaves_plan else "single"
        key: _Key = (topic, version, lane, large)
        producer = self._producers.get(key)
        return self._open(key, self._names.part(topic, self._partition)) if producer is None else producer

    def for_groups(self, topic: str, version: int) -> tuple[Any, int]:
        """Return the named producer for groups to a destination, and its mark.

        The mark is the highest sequence id that the broker had stored from it when it was opened; -1 for none.

        Args:
            topic: Destination, without a partition suffix.
            version: The schema version in the source; -1 for none.

        Raises:
            LeaseHeld: Another client has that name.
            PulsarException: The producer could not be opened.
        """
        key: _Key = (topic, version, "group", False)
        producer = self._producers.get(key)
        if producer is None:
            producer = self._open(key, self._names.part(topic, self._partition))
        return producer, self._marks[producer]

    def is_new(self, producer: Any, number: int) -> bool:
        """True if the broker had this number from no earlier session, so that it must not drop it as a duplicate."""
        return number > self._marks.get(producer, -1)

    def to_dead_letters(self, topic: str, *, large: bool = False) -> Any:
        """Return the unnamed producer of plain bytes to the only partition of a dead-letter topic.

        Without a schema: a garbled message may claim any version, and a registry's refusal must not block the head.
        """
        destination = partition_topic(topic, 0)
        key: _Key = (destination, NO_SCHEMA, "unnamed" if large else "unnamed batch", large)
        producer = self._producers.get(key)
        return self._open(key, destination) if producer is None else producer

    def give_back(self) -> None:
        """Close all producers, so that another relay can have their names; all sends have been confirmed."""
        producers, self._producers, self._marks = [*self._producers.values(), *self._leases.values()], {}, {}
        self._leases = {}
        for producer in producers:
            _close(producer)

    def look_up(self, version: int) -> None:
        """Load a schema version from the source's registry, unless it is known.

        Raises:
            PulsarException: The version does not exist, or no answer came.
        """
        self._schemas.producer_options(version)

    def _open(self, key: _Key, destination: str) -> Any:
        if len(self._producers) >= MAX_PRODUCERS:
            self._close_oldest()
        _, version, lane, large = key
        is_named = lane in ("single", "way out", "group")
        options = {**self._options, **self._schemas.producer_options(version)}
        # Without a number a batch may be cut anew after a crash; with a number it, or its rest, would be dropped
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
            if not is_named or outcome_of_error(error) is not Outcome.BUSY:
                raise
            if not self._is_strangers(destination, options["producer_name"]):
                raise LeaseHeld(options["producer_name"]) from error
            producer = self._producers[key] = self._open_by_random_name(destination, options)
            return producer
        if is_named:
            self._is_free(options["producer_name"])
            self._marks[producer] = mark = producer.last_sequence_id()
            if mark >= 0 and self._is_forged(destination, mark):
                lease, producer = producer, self._open_by_random_name(destination, options)
                self._producers[key], self._leases[producer] = producer, lease
                del self._marks[lease]
        return producer

    def _open_by_random_name(self, destination: str, options: dict[str, Any]) -> Any:
        producer = self._client.create_producer(destination, **options | own_numbers())
        self._marks[producer] = -1
        return producer

    def _close_oldest(self) -> None:
        oldest = self._producers.pop(next(iter(self._producers)))
        try:
            oldest.flush()
        finally:
            self._marks.pop(oldest, None)
            _close(oldest)  # or its name would stay taken without a holder
            if (lease := self._leases.pop(oldest, None)) is not None:
                _close(lease)


def _short(topic: str) -> str:
    return topic.removeprefix("persistent://")


def _close(producer: Any) -> None:
    # Already closed by a broken connection or with the client: its name is free either way.
    with suppress(pulsar.PulsarException):
        producer.close()
