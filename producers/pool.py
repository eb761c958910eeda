"""Pool of the client's open producers: one per partition topic, limited in number, closed when idle."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import _pulsar
import pulsar

from timewheel.client.hooks import Hooks
from timewheel.client.reaching import unpartitioned_problem
from timewheel.client.results import Outcome, outcome_of_error
from timewheel.client.schemas import PassThroughSchema
from timewheel.client.surface import ClientLike, own_numbers
from timewheel.core.clock import Clock
from timewheel.core.errors import ClientMisuse, TopologyError, did_you_mean
from timewheel.core.grouping import LARGEST_BATCH
from timewheel.core.names import Names
from timewheel.core.plan import Calendar, Native, Plan, Tiered, Wheel
from timewheel.core.plurals import counted
from timewheel.events import ProducerCloseFailed

from .prepare import Outgoing, Place

BATCH = "batching_max_messages"
PASSED_THROUGH = frozenset(
    {
        "batching_max_allowed_size_in_bytes",
        BATCH,
        "batching_max_publish_delay_ms",
        "batching_type",
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

CLOSED = "this producer is closed: nothing can be sent any more; make a new one"

Key = tuple[str, int]  # topic, without a partition suffix, and partition


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


class PooledProducer:
    """Open producer of the client; while sends are in flight, it is not closed as idle.

    ``last_turn``, the pool's count of borrowings at the last use, orders producers by use without reading a clock.
    """

    __slots__ = ("in_flight", "key", "last_turn", "producer", "send")

    def __init__(self, key: Key, producer: Any) -> None:
        self.key = key
        self.producer = producer
        self.send = sender_of(producer)
        self.in_flight = 0
        self.last_turn = 0


class Opening:
    """Producer that a thread is opening; all threads that wait for it share its failure.

    If each of them tried again, it would take the client's operation time-out (30 s by default) for every waiter.
    """

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: BaseException | None = None


class ProducerPool:
    """Opens producers on demand and keeps them open. Thread-safe.

    If the pool is full, the least recently used producer without sends in flight is closed; while all have sends in
    flight, a borrower waits. The thread that finishes sends may not wait, and opens an additional producer.
    """

    def __init__(
        self,
        client: ClientLike,
        options: ProducerOptions,
        *,
        plan: Plan,
        max_producers: int,
        may_wait: Callable[[], bool],
        clock: Clock,
        hooks: Hooks,
    ) -> None:
        self._client = client
        self._clock = clock
        self._options = options
        self._partitions = plan.own_partitions
        self._names = Names(plan)
        self._max_producers = max_producers
        self._may_wait = may_wait
        self._hooks = hooks
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._open: dict[Key, PooledProducer] = {}
        self._opening: dict[Key, Opening] = {}
        self._discarded: list[PooledProducer] = []
        self._closed = False
        self._waiters = 0
        self._turn = 0
        self._idle_turn = 0

    def __len__(self) -> int:
        """Return the number of open producers."""
        return len(self._open)

    def borrow(self, topic: str, partition: int) -> PooledProducer | None:
        """Take the open producer of a partition for a send; None: no producer is open, call `open`."""
        with self._lock:
            pooled = self._open.get((topic, partition))
            if pooled is not None:
                pooled.in_flight += 1
                self._turn += 1
                pooled.last_turn = self._turn
            return pooled

    def give_back(self, *borrowed: PooledProducer) -> None:
        """Return producers whose borrowed sends have outcomes; pass a producer for each send."""
        with self._lock:
            for pooled in borrowed:
                pooled.in_flight -= 1
            if self._waiters:
                self._changed.notify_all()

    def open(self, topic: str, partition: int, place: Place) -> PooledProducer:
        """Open the producer of a partition, or wait for another thread that is opening it, and borrow it."""
        key = (topic, partition)
        ready, victim = self._reserve(key)
        if isinstance(ready, PooledProducer):
            return ready
        try:
            if victim is not None:
                self._close(victim)
            self._check_partitions(topic, 1 if place == "cancellations" else self._partitions)
            pooled = PooledProducer(
                key, self._client.create_producer(self._names.part(topic, partition), **self._options.of(place))
            )
        except BaseException as error:
            with self._lock:
                ready.error = error
                del self._opening[key]
                self._changed.notify_all()
            raise
        with self._lock:
            del self._opening[key]
            self._take(pooled)
            self._open[key] = pooled
            self._changed.notify_all()
        return pooled

    def discard(self, pooled: PooledProducer) -> None:
        """Forget a producer that must not send any more; the next send opens another. Idle cleanup closes it."""
        with self._lock:
            if self._open.get(pooled.key) is pooled:
                del self._open[pooled.key]
                self._discarded.append(pooled)
                self._changed.notify_all()

    def flush(self) -> None:
        """Send pending batches, and wait for their outcomes; the callbacks of the sends report them."""
        with self._lock:
            busy = [pooled for pooled in self._open.values() if pooled.in_flight]
        for pooled in busy:
            with suppress(Exception):  # a failed send makes the flush fail too, and has its own callback
                pooled.producer.flush()

    def close_idle(self) -> None:
        """Close producers that were not used since the last call but one, and have no sends in flight."""
        with self._lock:
            idle = [
                pooled for pooled in self._open.values() if not pooled.in_flight and pooled.last_turn <= self._idle_turn
            ]
            for pooled in idle:
                del self._open[pooled.key]
            self._idle_turn = self._turn
            # A discarded producer can have sends in flight, which a close would end as unknown.
            discarded = [pooled for pooled in self._discarded if not pooled.in_flight]
            self._discarded = [pooled for pooled in self._discarded if pooled.in_flight]
            self._changed.notify_all()
        for pooled in (*idle, *discarded):
            self._close(pooled)

    def close_all(self, timeout_ms: int) -> None:
        """Close every producer; sends in flight end with an unknown outcome at once.

        If a broker does not answer, each close waits for the client's operation time-out (30 s by default). So the
        closes run in parallel, and after ``timeout_ms`` they are no longer waited for.
        """
        with self._lock:
            every = [*self._open.values(), *self._discarded]
            self._open.clear()
            self._discarded.clear()
            self._closed = True
            self._changed.notify_all()
        closing = [
            threading.Thread(target=self._close, args=(pooled,), name="timewheel-producer-close", daemon=True)
            for pooled in every
        ]
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        for thread in closing:
            try:
                thread.start()
            except RuntimeError:
                thread.run()  # the interpreter is ending, and starts no threads then from Python 3.12 on
        for thread in closing:
            if thread.ident is not None:
                self._clock.join(thread, deadline_ms - self._clock.monotonic_ms())

    def _reserve(self, key: Key) -> tuple[PooledProducer | Opening, PooledProducer | None]:
        """Borrow the open producer, or reserve the right to open it, with an idle producer to close first."""
        with self._lock:
            while True:
                if self._closed:
                    raise ClientMisuse(CLOSED)
                pooled = self._open.get(key)
                if pooled is not None:
                    self._take(pooled)
                    return pooled, None
                others = self._opening.get(key)
                if others is None and self._has_place():
                    victim = self._evicted()
                    opening = self._opening[key] = Opening()
                    return opening, victim
                self._waiters += 1
                try:
                    self._changed.wait()
                finally:
                    self._waiters -= 1
                if others is not None and others.error is not None:
                    raise others.error

    def _is_full(self) -> bool:
        return len(self._open) + len(self._opening) >= self._max_producers

    def _has_place(self) -> bool:
        if not self._is_full() or any(not pooled.in_flight for pooled in self._open.values()):
            return True
        return not self._may_wait()

    def _evicted(self) -> PooledProducer | None:
        """Remove the least recently used idle producer, to be closed, if the pool is full."""
        idle = [pooled for pooled in self._open.values() if not pooled.in_flight] if self._is_full() else []
        if not idle:
            return None
        victim = min(idle, key=lambda pooled: pooled.last_turn)
        del self._open[victim.key]
        return victim

    def _take(self, pooled: PooledProducer) -> None:
        pooled.in_flight += 1
        self._turn += 1
        pooled.last_turn = self._turn

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

    def _close(self, pooled: PooledProducer) -> None:
        try:
            pooled.producer.close()
        except Exception as error:  # noqa: BLE001 - the client raises errors of its own; nothing depends on this close
            self._hooks.emit(ProducerCloseFailed(topic=self._names.part(*pooled.key), error=repr(error)))
