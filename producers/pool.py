"""Options and openings of a plan's producers: one per partition topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import _pulsar
import pulsar

from timewheel.client.reaching import unpartitioned_problem
from timewheel.client.results import Outcome, outcome_of_error
from timewheel.client.schemas import PassThroughSchema
from timewheel.client.surface import ClientLike, own_numbers
from timewheel.core.errors import ClientMisuse, TopologyError, did_you_mean
from timewheel.core.grouping import LARGEST_BATCH
from timewheel.core.names import Names
from timewheel.core.plan import Calendar, Native, Plan, Tiered, Wheel
from timewheel.core.plurals import counted

from .prepare import Outgoing, Place
from .runs import Runs

SEND_TIMEOUT_MS = 30_000  # pulsar-client's own default
BATCH = "batching_max_messages"
BATCH_BYTES = "batching_max_allowed_size_in_bytes"
BATCHING = "batching_type"
PASSED_THROUGH = frozenset(
    {
        BATCH_BYTES,
        BATCH,
        "batching_max_publish_delay_ms",
        BATCHING,
        "compression_type",
        "properties",
        "send_timeout_millis",
    }
)

_OF_PRODUCERS = ("schema", "clock", "hooks", "max_pending", "max_producers", "max_message_bytes")
"""Arguments of the producers themselves, which a misspelt option may mean."""

OWNED: Mapping[str, str] = {
    "access_mode": "several producers write to every topic of a plan",
    "batching_enabled": "it is on where a relay holds and off where the broker delays",
    "block_if_queue_full": "sends are bounded by max_pending, over all topics",
    "chunking_enabled": "a relay forwards whole messages only; store large payloads elsewhere and send a reference",
    "crypto_key_reader": "a relay must be able to read what it forwards; encrypt the payload yourself",
    "encryption_key": "a relay must be able to read what it forwards; encrypt the payload yourself",
    "initial_sequence_id": "the client must not use a number twice",
    "lazy_start_partitioned_producers": "every producer writes to one partition topic",
    "max_pending_messages": "use max_pending, which bounds all topics together",
    "max_pending_messages_across_partitions": "use max_pending, which bounds all topics together",
    "message_router": "the partition is computed from the key as the Java client does",
    "message_routing_mode": "the partition is computed from the key as the Java client does",
    "producer_name": "a fixed name would let one producer of many live, and one that is known can be used up by others",
    "topic": "the plan names the topics",
}
"""Options that timewheel sets itself, each with the reason that the refusal states."""


class ProducerOptions:
    """Options with which a plan's producers are opened. The schema goes to holding topics too."""

    def __init__(self, schema: Any, options: Mapping[str, Any]) -> None:
        for name in options:
            if name in OWNED:
                raise ClientMisuse(f"producer option {name!r} is set by timewheel: {OWNED[name]}")
            if name not in PASSED_THROUGH:
                near = did_you_mean(name, {*PASSED_THROUGH, *_OF_PRODUCERS})
                known = f"these pass through: {', '.join(sorted(PASSED_THROUGH))}"
                raise TypeError(f"no producer option {name!r}{near}; {known}")
        if options.get(BATCH, 0) > LARGEST_BATCH:
            raise ClientMisuse(
                f"producer option {BATCH!r} is {options[BATCH]}: a relay sets aside as a whole what has more than "
                f"{LARGEST_BATCH} messages; pass that or less"
            )
        self.send_timeout_ms: int = options.get("send_timeout_millis", SEND_TIMEOUT_MS)
        self._common: dict[str, Any] = {
            # timewheel limits pending sends over all topics; a second limit here would report refused sends in
            # callbacks (broker-facts: full-send-queue).
            "max_pending_messages": 0,
            "schema": PassThroughSchema.like(schema),
            **{name: value for name, value in options.items() if not name.startswith("batching_")},
        }
        # Cancellations are small, and many at once if a service cancels in bulk; a waiting cancel waits a millisecond
        # more.
        self._cuts: dict[str, Any] = {
            **{name: value for name, value in self._common.items() if name != "schema"},
            "batching_enabled": True,
            "batching_max_publish_delay_ms": 1,
        }
        self.runs = Runs(
            options.get(BATCH, LARGEST_BATCH),
            options.get(BATCH_BYTES, 128 * 1024),  # pulsar-client's own default
            in_order=options.get(BATCHING, pulsar.BatchingType.Default) == pulsar.BatchingType.Default,
        )
        self._held: dict[str, Any] = {
            "batching_enabled": True,
            # Cheap to compute, and a batch of timers is repetitive.
            "compression_type": pulsar.CompressionType.LZ4,
            **options,
        }

    def of(self, place: Place) -> dict[str, Any]:
        """Return keyword arguments of ``create_producer`` for a topic in which messages wait at this place.

        Messages are batched and compressed if a relay holds them. If the broker delays them, the client does not batch
        them anyway, and compressing small messages individually does not make them smaller.
        """
        match place:
            case "relay":
                options = {**self._common, **self._held}
            case "cancellations":
                options = self._cuts
            case _:
                options = self._common
        return {**options, **own_numbers()}


Sender = Callable[[Outgoing, Callable[[Any, Any], None]], None]
"""``sender(outgoing, callback)``: hands a message over; the callback runs on the client's own thread."""


def sender_of(producer: Any) -> Sender:
    """Return the fastest way to send through a producer, chosen once when it is opened.

    pulsar-client's own ``Producer.send_async`` encodes, checks every argument again and sets properties one by one,
    which costs as much as all of routing. Messages here are already encoded and checked. The public API is used if the
    client's internals are missing.
    """
    native = getattr(producer, "_producer", None)
    if type(producer) is pulsar.Producer and isinstance(native, _pulsar.Producer):
        return _native_sender(native)
    return _public_sender(producer)


def _native_sender(native: Any) -> Sender:
    new_builder = _pulsar.MessageBuilder
    hand_over = native.send_async

    def send(outgoing: Outgoing, callback: Callable[[Any, Any], None]) -> None:
        builder = new_builder()
        if outgoing.payload is None:
            builder.set_null_value()
        else:
            builder.content(outgoing.payload)
        builder.properties(outgoing.properties)
        if outgoing.partition_key:
            builder.partition_key(outgoing.partition_key)
        if outgoing.ordering_key:
            builder.ordering_key(outgoing.ordering_key)
        if outgoing.event_timestamp_ms:
            builder.event_timestamp(outgoing.event_timestamp_ms)
        if outgoing.deliver_at_ms:
            builder.deliver_at(outgoing.deliver_at_ms)
        hand_over(builder.build(), callback)

    return send


def _public_sender(producer: Any) -> Sender:
    def send(outgoing: Outgoing, callback: Callable[[Any, Any], None]) -> None:
        producer.send_async(
            outgoing.payload,
            callback,
            properties=outgoing.properties,
            partition_key=outgoing.partition_key,
            ordering_key=outgoing.ordering_key,
            event_timestamp=outgoing.event_timestamp_ms,
            deliver_at=outgoing.deliver_at_ms or None,
        )

    return send


MAX_PRODUCERS = 4_096
"""Default limit on the client's open producers: each costs the client and the broker some kilobytes."""


def room_for_all(plan: Plan) -> int:
    """Return the number of producers that gives every partition of every possible destination a producer of its own.

    With fewer producers, sends that go round over all partitions close and open a producer each
    (broker-facts: forgotten-names).
    """
    cancellations = int(plan.cancel is not None)
    return min(_topics(plan) * plan.own_partitions + cancellations, MAX_PRODUCERS)


def _topics(plan: Plan) -> int:
    match plan.scheme:
        case Native():
            return 1
        case Tiered(tiers_ms=tiers_ms):
            return len(tiers_ms) + 1
        case Wheel(rings=rings):
            return sum(ring.slots for ring in rings) + 1
        case Calendar(interval_ms=interval_ms):
            # The present interval, the next interval, and the interval in which the longest delay ends.
            return plan.max_delay_ms // interval_ms + 3


Key = tuple[str, int]  # topic, without a partition suffix, and partition


class PlanProducers:
    """Opens the producers of a plan's partition topics."""

    def __init__(self, client: ClientLike, options: ProducerOptions, plan: Plan) -> None:
        self._client = client
        self._options = options
        self._partitions = plan.own_partitions
        self._names = Names(plan)

    def topic(self, key: Key) -> str:
        """Return the name of the partition topic."""
        return self._names.part(*key)

    def open(self, key: Key, place: Place) -> Any:
        """Open a producer of the client on a partition topic in which messages wait at this place."""
        self._check_partitions(key[0], 1 if place == "cancellations" else self._partitions)
        return self._client.create_producer(self.topic(key), **self._options.of(place))

    def _check_partitions(self, topic: str, needed: int) -> None:
        # Checked before every opening: a producer on a partition of a missing topic would create it without
        # subscriptions, and its messages would be lost to every reader.
        if not self._names.is_partitioned(topic):
            problem = unpartitioned_problem(self._client, self._names, topic)
            if problem is not None:
                raise problem
            return
        try:
            found = self._client.get_topic_partitions(topic)
        except Exception as error:
            if outcome_of_error(error) is not Outcome.ROUTE_AGAIN:
                raise
            found = []
        missing = topic in found or not found
        if missing or len(found) < needed:
            has = "does not exist as a partitioned topic" if missing else f"has {counted(len(found), 'partition')}"
            raise TopologyError(
                topic, f"{has}, the plan has {needed}", "run: timewheel topics ensure PLAN, then send again"
            )
