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
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pulsar

from timewheel.client.dead_letters import PARKED_ERROR, PARKED_FROM, PARKED_PART, PARKED_REASON, without_notes
from timewheel.client.dead_letters import in_parts as send_in_parts
from timewheel.client.hooks import Alarms, Hooks
from timewheel.client.native import NO_SCHEMA, carry, keys_of, properties_size, schema_version_of, size_of
from timewheel.client.producer_pool import ROUND_MS, Opened, PooledProducer, ProducerPool
from timewheel.client.reaching import partition_count, unpartitioned_problem
from timewheel.client.results import NO_RESULT, Outcome, cause_of, is_of_message, outcome_of_result
from timewheel.client.schemas import SCHEMA_REFUSALS, Schemas
from timewheel.client.surface import ClientLike, ProducerLike, own_numbers
from timewheel.core.clock import Clock
from timewheel.core.durations import HOUR_MS
from timewheel.core.envelope import FOR_PROPERTY, GROUP_PROPERTY, Envelope
from timewheel.core.grouping import LARGE_BYTES
from timewheel.core.names import partition_for_key, partition_of
from timewheel.core.next_hop import again, retry_hop
from timewheel.core.plan import Plan
from timewheel.core.routing import Router
from timewheel.events import RepublishFailed, TimerParked

from .message import InFlight, Mark, Parked
from .source import missing_topic

MAX_PRODUCERS = 1_024
"""Maximum number of open producers: one per partition topic and schema version; beyond it the oldest is closed."""
SEND_TIMEOUT_MS = 10_000
"""Timeout after which the outcome is unknown and the timer is published once more, which its key makes harmless."""
OPENING_MS = 2_000  # time allowed for opening a producer when the topic of a retry is decided
MAX_OPENINGS = 4  # for a publish: its topic may have changed when its producer is open
IDLE_MS = 4 * HOUR_MS  # a producer that was not used for so long is closed
JOIN_TIMEOUT_MS = 5_000
BRIEF = 1  # the attempt at parking that leaves out the error, and most of the reason
BRIEF_REASON_CHARS = 100
MAX_ATTEMPTS = 5  # attempts after the brief attempt store a timer in parts, ever smaller parts

_Where = tuple[str, str, int, bool]
"""A partition topic; the topic that the message came from, and the version of its schema; whether it is compressed."""


@dataclass(slots=True, eq=False)
class _Publishing:
    """A timer that is being published; also the client's callback for it."""

    timer: InFlight
    attempt: int  # 0 at first; higher for ever briefer forms of a timer that is parked
    finished: Callable[[_Publishing], None]
    openings: int = 0  # count of openings that it waited for
    pooled: PooledProducer[_Where] = field(init=False)
    began: int = 0
    opened: Opened | None = None  # the opening that it waits for
    result: Any = None  # the client's result; None until it is known
    message_id: Any = None
    has_ended: bool = False

    def __call__(self, result: Any, message_id: Any) -> None:
        """Take the result, on the client's thread: nothing may be raised here, and no call may take long."""
        self.message_id = message_id
        self.result = result
        self.finished(self)


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
        # Bounded by the engine's MAX_REPUBLISHING: timers to publish, those with an end of opening or sending, None at
        # the end.
        self._waiting: queue.SimpleQueue[InFlight | _Publishing | None] = queue.SimpleQueue()
        self._outcomes: deque[tuple[InFlight, bool]] = deque()
        self._schemas: dict[str, Schemas] = {}
        self._pool: ProducerPool[_Where] = ProducerPool(
            max_producers=MAX_PRODUCERS,
            send_timeout_ms=SEND_TIMEOUT_MS,
            idle_ms=IDLE_MS,
            name_of=lambda where: where[0],
            clock=clock,
            hooks=hooks,
        )
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
        next_round_ms = self._clock.monotonic_ms() + ROUND_MS
        while True:
            wait_ms = self._clock.idle_ms(None, next_round_ms - self._clock.monotonic_ms())
            with suppress(queue.Empty):
                if (item := self._clock.get(self._waiting, wait_ms)) is None:
                    break
                self._take(item)
            if self._clock.monotonic_ms() >= next_round_ms:
                for publishing in self._pool.inspect():
                    publishing.result = NO_RESULT
                    self._ended(publishing)
                next_round_ms = self._clock.monotonic_ms() + ROUND_MS
        self._pool.flush()
        self._pool.close_all(JOIN_TIMEOUT_MS)
        while not self._waiting.empty():
            if isinstance(item := self._waiting.get(), _Publishing) and item.result is not None:
                self._ended(item)

    def _take(self, item: InFlight | _Publishing) -> None:
        if not isinstance(item, _Publishing):
            self._begin(item)
        elif item.result is not None:
            self._ended(item)
        else:
            self._try(item)

    def _ended(self, publishing: _Publishing) -> None:
        """Take the client's result; no effect if the time of the publishing has passed before."""
        if publishing.has_ended:
            return
        publishing.has_ended = True
        self._pool.give_back([publishing])
        timer, result, pooled = publishing.timer, publishing.result, publishing.pooled
        topic = pooled.key[0]
        outcome = outcome_of_result(result, publishing.message_id)
        if outcome is Outcome.OK:
            self._settle(timer, None)
        elif is_of_message(result.name):
            self._refused(timer, publishing.attempt, f"{topic}: {cause_of(result)}")
        else:
            self._pool.failed(pooled, result, outcome)
            self._settle(timer, f"{topic}: {cause_of(result)}")

    def _begin(self, timer: InFlight, attempt: int = 0) -> None:
        self._try(_Publishing(timer, attempt, self._waiting.put, began=self._pool.round))

    def _try(self, publishing: _Publishing) -> None:
        try:
            if publishing.opened is not None:
                self._pool.check_opened(publishing.opened)
            self._publish(publishing)
        except SCHEMA_REFUSALS as error:
            self._refused(publishing.timer, publishing.attempt, cause_of(error))
        except Exception as error:  # noqa: BLE001 - after any error, the timer is still stored and is tried again
            self._settle(publishing.timer, cause_of(error))

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

    def _publish(self, publishing: _Publishing) -> None:
        """Publish a timer, now or once a producer is open: then its topic is decided anew, since the time counts."""
        timer, attempt = publishing.timer, publishing.attempt
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
        topic, deliver_at_ms, properties = self._redirect(timer, envelope, self._clock.now_ms(), attempt)
        where = (self._router.names.part(topic, partition), message.topic_name(), version, large)
        if not self._pool.borrow(where, publishing):
            self._await_producer(publishing, where, topic, partition)
            return
        producer = publishing.pooled.producer
        try:
            if in_parts:
                send_in_parts(producer, message, had, properties, PARKED_PART, attempt - BRIEF, publishing)
            else:
                carry(producer, message, publishing, {**had, **properties}, deliver_at_ms=deliver_at_ms)
        except BaseException:
            self._pool.give_back([publishing])
            raise

    def _await_producer(self, publishing: _Publishing, where: _Where, topic: str, partition: int) -> None:
        if publishing.openings == MAX_OPENINGS:
            raise TimeoutError(f"{where[0]}: its producer was closed {MAX_OPENINGS} times before it could be used")
        publishing.openings += 1
        publishing.opened = self._pool.open(where, partial(self._open, where, topic, partition))
        publishing.opened.add_done_callback(lambda _: self._waiting.put(publishing))

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

    def _open(self, where: _Where, topic: str, partition: int) -> ProducerLike:
        """Open a producer of the client; runs on a thread of the pool."""
        part, source, version, large = where
        names = self._router.names
        # Opening it all the same could create the topic without policies, and its messages would have no reader.
        if not names.is_partitioned(topic):
            if (problem := unpartitioned_problem(self._client, names, topic)) is not None:
                raise problem
        elif partition_count(self._client, topic) <= partition:
            raise missing_topic(topic)
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
        return producer


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
