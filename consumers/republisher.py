"""Publishes timers again, in a thread of its own.

Timers that arrived far too early (broker-facts: bounded-local-hold) go into the due topic, under their real due time;
timers to be tried again or parked go into the subscription's own topics.

The thread is separate because opening a producer can take as long as a broker is away, and meanwhile other timers
become due. Retried and parked timers are settled by this thread as soon as they are confirmed: until then, a kill would
repeat an attempt. All other outcomes are collected for the receiving thread, which may hand out timers.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import pulsar

from timewheel.client.dead_letters import PARKED_ERROR, PARKED_FROM, PARKED_PART, PARKED_REASON, without_notes
from timewheel.client.dead_letters import in_parts as send_in_parts
from timewheel.client.hooks import Alarms, Hooks
from timewheel.client.native import NO_SCHEMA, carry, keys_of, properties_size, schema_version_of, size_of
from timewheel.client.reaching import partition_count, unpartitioned_problem
from timewheel.client.results import Outcome, cause_of, is_of_message, is_producer_closed, outcome_of_result
from timewheel.client.schemas import SCHEMA_REFUSALS, Schemas
from timewheel.client.surface import ClientLike, ProducerLike, own_numbers
from timewheel.core.clock import Clock
from timewheel.core.envelope import FOR_PROPERTY, GROUP_PROPERTY, Envelope
from timewheel.core.grouping import LARGE_BYTES
from timewheel.core.names import partition_for_key, partition_of
from timewheel.core.next_hop import again, retry_hop
from timewheel.core.plan import Plan
from timewheel.core.routing import Router
from timewheel.events import ProducerCloseFailed, RepublishFailed, TimerParked

from .message import InFlight, Mark, Parked
from .source import missing_topic

MAX_PRODUCERS = 1_024
"""Maximum number of open producers: one per partition topic and schema version; beyond it the oldest is closed."""
SEND_TIMEOUT_MS = 10_000
"""Timeout after which the outcome is unknown and the timer is published once more, which its key makes harmless."""
OPENING_MS = 2_000  # if opening a producer takes longer, the timer's destination is decided anew
MAX_ROUTES = 4  # decisions for a publish; a second decision mostly finds its producer open
JOIN_TIMEOUT_MS = 5_000
BRIEF = 1  # the attempt at parking that leaves out the error, and most of the reason
BRIEF_REASON_CHARS = 100
MAX_ATTEMPTS = 5  # attempts after the brief attempt store a timer in parts, ever smaller parts

_Where = tuple[str, str, int, bool]
"""A partition topic; the topic that the message came from, and the version of its schema; whether it is compressed."""


class _Answered(NamedTuple):
    """The outcome of a publish, by the client's result."""

    timer: InFlight
    where: _Where
    producer: ProducerLike
    attempt: int
    result: Any
    outcome: Outcome


class Republisher:
    """Publishes timers again; starts its thread with the first timer."""

    def __init__(self, client: ClientLike, plan: Plan, subscription: str, clock: Clock, hooks: Hooks) -> None:
        self._client = client
        self._plan = plan
        self._router = Router(plan)
        self._subscription = subscription
        self._parked = self._router.names.parked(subscription)
        self._clock = clock
        self._hooks = hooks
        self._alarms = Alarms(hooks, clock)
        self.settles: Callable[[InFlight, bool], None] | None = None
        """Called on this thread for each timer to be tried again or parked, with whether it is certainly stored."""
        # Bounded by the engine's MAX_REPUBLISHING: timers to publish, outcomes of publishes, None at the end.
        self._waiting: queue.SimpleQueue[InFlight | _Answered | None] = queue.SimpleQueue()
        self._outcomes: deque[tuple[InFlight, bool]] = deque()
        self._schemas: dict[str, Schemas] = {}
        self._producers: dict[_Where, ProducerLike] = {}
        self._thread: threading.Thread | None = None

    def submit(self, timer: InFlight) -> None:
        """Take over a timer until `outcomes` returns it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="timewheel-republisher", daemon=True)
            self._thread.start()
        self._waiting.put(timer)

    def outcomes(self) -> list[tuple[InFlight, bool]]:
        """Return early timers answered since the last call, each with whether it is certainly stored."""
        self._alarms.flush()
        found = []
        while self._outcomes:
            found.append(self._outcomes.popleft())
        return found

    def close(self) -> None:
        """Stop; unconfirmed timers stay unacknowledged."""
        if self._thread is not None:
            self._waiting.put(None)
            self._clock.join(self._thread, JOIN_TIMEOUT_MS)
            self._thread = None
        self._alarms.flush(at_end=True)

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            if isinstance(item, _Answered):
                self._take(item)
                continue
            self._begin(item)
        self._close_producers()
        while not self._waiting.empty():
            if isinstance(item := self._waiting.get(), _Answered):
                self._take(item)

    def _take(self, answered: _Answered) -> None:
        timer, where, producer, attempt, result, outcome = answered
        if outcome is Outcome.OK:
            self._settle(timer, None)
        elif is_of_message(result.name):
            self._refused(timer, attempt, f"{where[0]}: {cause_of(result)}")
        else:
            if outcome is Outcome.DROPPED and self._producers.get(where) is producer:
                self._close_producer(where)  # a client that takes its name can have its messages dropped
            if is_producer_closed(result):
                self._producers.pop(where, None)
            self._settle(timer, f"{where[0]}: {cause_of(result)}")

    def _begin(self, timer: InFlight, attempt: int = 0) -> None:
        try:
            self._publish(timer, attempt)
        except SCHEMA_REFUSALS as error:
            self._refused(timer, attempt, cause_of(error))
        except Exception as error:  # noqa: BLE001 - after any error, the timer is still stored and is tried again
            self._settle(timer, cause_of(error))

    def _refused(self, timer: InFlight, attempt: int, cause: str) -> None:
        """Park a message that is refused for its own sake, not its topic's, in the best form that is accepted."""
        if timer.redirect is None or attempt == MAX_ATTEMPTS:
            self._settle(timer, cause)
            return
        if not isinstance(timer.redirect, Parked):
            timer.redirect, attempt = Parked(f"it cannot be stored to be tried again: {cause}"), -1
        self._begin(timer, attempt + 1)

    def _settle(self, timer: InFlight, cause: str | None) -> None:
        """Report the outcome for a timer; ``cause`` is the reason why it is not certainly stored."""
        if timer.redirect is None or self.settles is None:
            self._outcomes.append((timer, cause is None))
        else:
            self.settles(timer, cause is None)
        if cause is not None:
            self._alarms.raised(RepublishFailed(timer=timer.key, error=cause))
        elif isinstance(timer.redirect, Parked):
            self._alarms.raised(TimerParked(topic=timer.arrival.message.topic_name(), reason=timer.redirect.reason))

    def _publish(self, timer: InFlight, attempt: int) -> None:
        message, envelope = timer.arrival.message, timer.arrival.envelope
        in_parts, had = attempt > BRIEF, _kept(timer)
        large = in_parts or size_of(message) + properties_size(had) >= LARGE_BYTES
        version = NO_SCHEMA if in_parts else schema_version_of(message)
        # The partition stays (broker-facts: keys-and-partitions); a due topic that is not partitioned has none.
        partition = partition_of(message.topic_name())[1]
        if partition < 0:
            key = keys_of(message)[0]
            text = key if isinstance(key, str) else key.decode("latin-1")
            partition = partition_for_key(text, self._plan.own_partitions)
        routes = 0
        while True:
            routes, began_ms = routes + 1, self._clock.monotonic_ms()
            topic, deliver_at_ms, properties = self._redirect(timer, envelope, self._clock.now_ms(), attempt)
            where = (self._router.names.part(topic, partition), message.topic_name(), version, large)
            producer = self._producers.get(where) or self._opened(where, topic, partition)
            # If opening took long, the destination is decided anew, since it depends on the time.
            if self._clock.monotonic_ms() - began_ms <= OPENING_MS or routes == MAX_ROUTES:
                break
        put = self._waiting.put

        def answered(result: Any, message_id: Any) -> None:
            # On the client's thread: no exception may be raised here, and no call may take long.
            put(_Answered(timer, where, producer, attempt, result, outcome_of_result(result, message_id)))

        if in_parts:
            send_in_parts(producer, message, had, properties, PARKED_PART, attempt - BRIEF, answered)
        else:
            carry(producer, message, answered, {**had, **properties}, deliver_at_ms=deliver_at_ms)

    def _redirect(
        self, timer: InFlight, envelope: Envelope | None, now_ms: int, attempt: int
    ) -> tuple[str, int, dict[str, str]]:
        """Return the topic, the delay to ask for, and timewheel's properties."""
        if isinstance(timer.redirect, Parked):
            why = _why(timer.redirect, str(timer.arrival.message.topic_name()), is_brief=attempt >= BRIEF)
            # A plain client's message has no id yet; it gets an id by which it can be found.
            if envelope is not None and timer.arrival.mark is Mark.NATIVE:
                why |= envelope.properties()
            return self._parked, 0, why
        assert envelope is not None, "only what has a due time can be early, and only what has an id is tried again"
        if timer.redirect is None:
            came_from = partition_of(timer.arrival.message.topic_name())[0]
            hop = again(self._router, envelope, now_ms, came_from)
        else:
            within_ms = OPENING_MS + SEND_TIMEOUT_MS
            due_ms = timer.redirect.due_ms
            hop = retry_hop(self._router, envelope, self._subscription, due_ms, now_ms, stored_within_ms=within_ms)
        return hop.topic, hop.deliver_at_ms, hop.envelope.properties()

    def _opened(self, where: _Where, topic: str, partition: int) -> ProducerLike:
        part, source, version, large = where
        names = self._router.names
        # Opening it all the same could create the topic without policies, and its messages would have no reader.
        if not names.is_partitioned(topic):
            if (problem := unpartitioned_problem(self._client, names, topic)) is not None:
                raise problem
        elif partition_count(self._client, topic) <= partition:
            raise missing_topic(topic)
        if len(self._producers) >= MAX_PRODUCERS:
            self._close_producer(next(iter(self._producers)))
        schemas = self._schemas.setdefault(source, Schemas(self._client, source))
        # Under the version that the message was written with, whichever schema this consumer has (broker-facts:
        # byte-for-byte).
        producer: ProducerLike = self._client.create_producer(
            part,
            **schemas.producer_options(version),
            **own_numbers(),
            **({"compression_type": pulsar.CompressionType.ZSTD} if large else {}),
            batching_enabled=False,
            block_if_queue_full=True,
            send_timeout_millis=SEND_TIMEOUT_MS,
        )
        self._producers[where] = producer
        return producer

    def _close_producers(self) -> None:
        for where in list(self._producers):
            self._close_producer(where)
        self._schemas.clear()

    def _close_producer(self, where: _Where) -> None:
        producer = self._producers.pop(where)
        try:
            producer.flush()
            producer.close()
        except pulsar.PulsarException as error:
            self._hooks.emit(ProducerCloseFailed(topic=where[0], error=str(error)))


def _kept(timer: InFlight) -> dict[str, str]:
    """Return the properties that a message keeps; the new properties come on top."""
    kept = without_notes(timer.arrival.message.properties())
    if not isinstance(timer.redirect, Parked):
        # Beside an envelope of version 1 they were not ours, and the new envelope may be of version 2.
        kept.pop(GROUP_PROPERTY, None)
        kept.pop(FOR_PROPERTY, None)
    return kept


def _why(parked: Parked, source: str, *, is_brief: bool) -> dict[str, str]:
    reason = parked.reason[:BRIEF_REASON_CHARS] if is_brief else parked.reason
    found = {PARKED_REASON: reason, PARKED_FROM: source}
    if parked.error and not is_brief:
        found[PARKED_ERROR] = parked.error
    return found
