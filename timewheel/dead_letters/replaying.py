"""Replay letters, or discard them.

Every publish is confirmed before an acknowledgement, so a crash in between leaves a dead letter that was replayed and
still exists: a copy under the same id, never a loss. Acknowledgements are by entry: if only part of a batch is
selected, the rest is first published to the tail of its own topic again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Self

import pulsar

from timewheel.broker.admin.client import AdminClient
from timewheel.client.dead_letters import DEAD_ENCRYPTION, DEAD_FROM, DEAD_PART, DEAD_PREFIX, DEAD_SCHEMA, PARKED_PART
from timewheel.client.native import carry, keys_of, schema_version_of
from timewheel.client.positions import EntryPosition
from timewheel.client.reaching import reaching
from timewheel.client.results import Outcome, cause_of, is_of_message, outcome_of_result
from timewheel.client.schemas import Schemas
from timewheel.client.surface import ClientLike, own_numbers
from timewheel.core.cancellations import Stamps
from timewheel.core.clock import Clock, SystemClock
from timewheel.core.durations import spelled, whole_number
from timewheel.core.envelope import (
    FIRST_LIFE,
    ID_PROPERTY,
    MAX_GENERATION,
    MAX_TIMER_ID_CHARS,
    PREFIX,
    Envelope,
    Life,
    due_in,
)
from timewheel.core.errors import EnvelopeError
from timewheel.core.names import partition_for_key, partition_of, parts_of
from timewheel.core.plan import Plan, beyond
from timewheel.core.rng import Random
from timewheel.core.routing import Router
from timewheel.dead_letters.dead_letters import Box, DeadLetter, DeadLetterPosition, dead_letter_box, parked_box
from timewheel.inspect.errors import ReplayFailed


class ReplayTarget(NamedTuple):
    """Destination of a replayed dead letter.

    Args:
        topic: Full name of the partition, or of a due topic that is not partitioned.
        deliver_at_ms: Delivery time to request from the broker, UTC milliseconds; 0 for at once.
        envelope: The new envelope; None for a dead letter without an id, which is sent unchanged and handled at once.
    """

    topic: str
    deliver_at_ms: int
    envelope: Envelope | None

    def properties(self, had: Mapping[str, str]) -> dict[str, str]:
        """Return the new properties: those of the sender, and the envelope."""
        kept = {name: value for name, value in had.items() if not name.startswith((PREFIX, DEAD_PREFIX))}
        return kept if self.envelope is None else {**kept, **self.envelope.properties()}


class Refused(NamedTuple):
    """The dead letter cannot be replayed this way; the reason is a sentence."""

    reason: str


def again(router: Router, dead_letter: DeadLetter, now_ms: int, *, due_now: bool = False) -> ReplayTarget | Refused:
    """Route a dead letter to where a producer would send it now, under its own id and due time.

    The dead letter keeps its partition, its generation and its group, so that handlers treat it as the same timer. Its
    hops are counted from 0, since too many hops may be the reason why it is dead.

    Args:
        router: Router of the plan.
        dead_letter: The dead letter.
        now_ms: Present time, UTC milliseconds.
        due_now: Make it due now instead of at its due time; required if its due time cannot be read.
    """
    envelope, plan = dead_letter.envelope, router.plan
    if (why := _why_not_whole(dead_letter)) is not None:
        return Refused(why)
    # A message that another client sent to the intake has no envelope, but a due time.
    own_ms = due_in(dead_letter.properties) if envelope is None else envelope.due_ms
    due_ms = now_ms if due_now else own_ms
    if due_ms is None:
        return Refused("it has no due time that can be read: --now sends it to be handled at once")
    if due_ms - now_ms > plan.max_delay_ms:
        delay_ms = due_ms - now_ms
        return Refused(
            f"it is due in {spelled(delay_ms)}, {beyond(delay_ms, plan)}; or --now sends it to be handled at once"
        )
    generation, life = (0, FIRST_LIFE) if envelope is None else (envelope.generation, envelope.life)
    if life.only_for and not router.has_retries(life.only_for):
        return Refused(f"it is a retry of {life.only_for}, which has no retry topic in this plan")
    route = router.route_of_send(due_ms, now_ms, STORED_WITHIN_MS, life.only_for)
    timer_id = dead_letter.properties.get(ID_PROPERTY) or ""
    if not timer_id and due_ms > now_ms:
        # By its place: a replay that is made again after a crash sends a copy of the same timer.
        timer_id = f"{dead_letter.topic}:{dead_letter.place}"[-MAX_TIMER_ID_CHARS:]
    fresh = (
        Envelope(timer_id, due_ms, now_ms, generation, 0, plan.revision, life)
        if timer_id and len(timer_id) <= MAX_TIMER_ID_CHARS
        else None
    )
    return ReplayTarget(_part(router, route.topic, dead_letter), route.deliver_at_ms, fresh)


def handled_again(
    router: Router, dead_letter: DeadLetter, subscription: str, due_ms: int, now_ms: int, stamp: int
) -> ReplayTarget | Refused:
    """Route a parked timer to the subscription that parked it, and to no other, as a first attempt.

    The timer gets a new generation, so that consumers that remember parking it treat it as a different timer. Earlier
    cancellations do not stop it: an operator wants it handled.

    Args:
        router: Router of the plan.
        dead_letter: The parked timer.
        subscription: Subscription that parked it.
        due_ms: Due time, UTC milliseconds.
        now_ms: Present time, UTC milliseconds.
        stamp: A new stamp (`timewheel.core.cancellations.Stamps`), above the dead letter's generation.
    """
    envelope, plan = dead_letter.envelope, router.plan
    if (why := _why_not_whole(dead_letter)) is not None:
        return Refused(why)
    if envelope is None:
        return Refused("it has no envelope that can be read: publish it again from its source")
    if envelope.generation == MAX_GENERATION:
        return Refused("its generation is the highest possible, which no producer writes: publish it again")
    if not router.has_retries(subscription):
        return Refused(f"{subscription} has no retry topic in this plan: write retry = true in it")
    life = Life(group=envelope.life.group, group_stamp=stamp if envelope.life.group else 0, only_for=subscription)
    fresh = Envelope(envelope.timer_id, due_ms, now_ms, stamp, 0, plan.revision, life)
    route = router.route_of_send(due_ms, now_ms, STORED_WITHIN_MS, subscription)
    return ReplayTarget(_part(router, route.topic, dead_letter), route.deliver_at_ms, fresh)


def _why_not_whole(dead_letter: DeadLetter) -> str | None:
    """Return the reason why a dead letter differs from the message that was sent; None if it does not."""
    properties = dead_letter.properties
    if (part := properties.get(DEAD_PART) or properties.get(PARKED_PART)) is not None:
        return f"it has {part} of what was sent: join all parts, or ask its sender, and send it again"
    if DEAD_ENCRYPTION in properties:
        return f"it is encrypted: decrypt it ({DEAD_ENCRYPTION} says how), and send it again"
    return None


def _part(router: Router, topic: str, dead_letter: DeadLetter) -> str:
    """Return the partition with the dead letter's former number, so that its key stays in place."""
    had, partitions = partition_of(dead_letter.source)[1], router.plan.own_partitions
    return router.names.part(
        topic, had if 0 <= had < partitions else partition_for_key(dead_letter.key or "", partitions)
    )


RECEIVE_TIMEOUT_MS = 10_000
SEND_TIMEOUT_MS = 10_000
STORED_WITHIN_MS = 60_000
"""From the choice of a topic on: its producer is opened, perhaps, and the messages before it are stored."""

Decision = Callable[[DeadLetter, Any], ReplayTarget | Refused | None]
"""Maps a dead letter and its message to its destination, or to a refusal; None for no destination."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """Outcome of a dead letter.

    Args:
        dead_letter: The dead letter.
        sent_to: The partition that it was published to; None if it was not published.
        refused: Reason why it was left unchanged; None if it was replayed or discarded.
    """

    dead_letter: DeadLetter
    sent_to: str | None = None
    refused: str | None = None


def replay(
    client: ClientLike, admin: AdminClient, plan: Plan, dead_letters: Sequence[DeadLetter], *, due_now: bool = False
) -> list[ReplayResult]:
    """Replay dead letters, each to the topic where its producer would send it now, and acknowledge them.

    Args:
        client: Client that creates the producers, and the consumer that acknowledges.
        admin: Client that checks the destinations: a client would create a missing topic, without subscriptions.
        plan: Plan that routes the dead letters.
        dead_letters: Letters to replay, from `timewheel.dead_letters.dead_letters` of the `dead_letter_box`.
        due_now: Make them due now, instead of at their due time.

    Raises:
        ReplayFailed: A publish was not confirmed, or the broker refused; the remaining letters are unchanged.
    """
    router = Router(plan)

    def decide(dead_letter: DeadLetter) -> ReplayTarget | Refused:
        return again(router, dead_letter, admin.clock.now_ms(), due_now=due_now)

    return _deal(client, dead_letter_box(plan), dead_letters, _Existing(admin, decide), admin.clock)


def replay_parked(
    client: ClientLike,
    admin: AdminClient,
    plan: Plan,
    subscription: str,
    dead_letters: Sequence[DeadLetter],
    *,
    rng: Random,
    per_s: float | None = None,
) -> list[ReplayResult]:
    """Replay parked timers to their subscription, as first attempts, and acknowledge them.

    Args:
        client: Client that creates the producers, and the consumer that acknowledges.
        admin: Client that checks the destinations.
        plan: Plan that routes the dead letters.
        subscription: Subscription that parked them.
        dead_letters: Letters to replay, from `timewheel.dead_letters.dead_letters` of the `parked_box`.
        rng: Source of randomness for their new generations.
        per_s: Number of timers that become due each second; None makes all due at once.

    Raises:
        ReplayFailed: A publish was not confirmed, or the broker refused; the remaining letters are unchanged.
        NoSuchTarget: The plan does not have the subscription.
    """
    router, stamps = Router(plan), Stamps(rng)
    due_ms = spread(len(dead_letters), admin.clock.now_ms(), per_s)

    def decide(dead_letter: DeadLetter) -> ReplayTarget | Refused:
        now_ms = admin.clock.now_ms()
        above = 0 if dead_letter.envelope is None else dead_letter.envelope.generation
        return handled_again(router, dead_letter, subscription, next(due_ms), now_ms, stamps.new(now_ms, above))

    return _deal(client, parked_box(plan, subscription), dead_letters, _Existing(admin, decide), admin.clock)


def spread(count: int, now_ms: int, per_s: float | None) -> Iterator[int]:
    """Yield the due time of each timer, UTC milliseconds.

    Args:
        count: Number of timers.
        now_ms: Present time, UTC milliseconds.
        per_s: Timers per second; None for all at once.
    """
    for number in range(count):
        yield now_ms if per_s is None else now_ms + int(number * 1_000 / per_s)


def drop(
    client: ClientLike, box: Box, dead_letters: Sequence[DeadLetter], *, clock: Clock | None = None
) -> list[ReplayResult]:
    """Discard letters for good.

    Args:
        client: Client that creates the consumer that acknowledges.
        box: Topic of the dead letters.
        dead_letters: Letters to discard, from `timewheel.dead_letters.dead_letters`.
        clock: Clock for waits; defaults to the system clock.

    Raises:
        ReplayFailed: The broker refused.
    """
    return _deal(client, box, dead_letters, lambda _letter, _message: None, clock or SystemClock())


def _is_of_dead_letter(result: str) -> bool:
    """Return whether a result, by its name, concerns this letter only and not the next."""
    return result == "CryptoError" or is_of_message(result)


class _NotStored(Exception):
    """A publish failed for a reason that concerns its letter only."""


class _NoSuchNote(Exception):
    """The properties were not written by a relay of this plan."""


class _Existing:
    """Decides by the message itself, and refuses a destination that does not exist."""

    def __init__(self, admin: AdminClient, decide: Callable[[DeadLetter], ReplayTarget | Refused]) -> None:
        self._admin = admin
        self._decide = decide
        self._known: dict[str, frozenset[str]] = {}

    def __call__(self, dead_letter: DeadLetter, message: Any) -> ReplayTarget | Refused:
        if dead_letter.is_whole:
            return Refused(f"{dead_letter.reason}: it can be dropped, or read by a client of its topic")
        # Decide by the message itself: the admin API shows only Latin-1.
        found = self._decide(_as_received(dead_letter, message))
        if isinstance(found, Refused):
            return found
        topic = partition_of(found.topic)[0]
        if topic not in self._known:
            partitions = self._admin.topics.partitions(topic)
            self._known[topic] = frozenset() if partitions is None else frozenset(parts_of(topic, partitions))
        known = found.topic in self._known[topic]
        return found if known else Refused(f"there is no topic {found.topic}: `timewheel topics ensure PLAN`")


def _deal(
    client: ClientLike, box: Box, dead_letters: Sequence[DeadLetter], decide: Decision, clock: Clock
) -> list[ReplayResult]:
    entries: defaultdict[tuple[str, EntryPosition], dict[DeadLetterPosition, DeadLetter]] = defaultdict(dict)
    for dead_letter in dead_letters:
        entries[dead_letter.topic, dead_letter.place.position][dead_letter.place] = dead_letter
    results: list[ReplayResult] = []
    for topic in sorted({topic for topic, _ in entries}):
        with _Replayer(client, topic, box, clock) as desk:
            for position in sorted(position for where, position in entries if where == topic):
                results += desk.deal(position, entries[topic, position], decide)
    return results


def _as_received(dead_letter: DeadLetter, message: Any) -> DeadLetter:
    properties = message.properties()
    try:
        envelope = Envelope.read(properties)
    except EnvelopeError:
        envelope = None
    key = keys_of(message)[0]
    return replace(
        dead_letter, envelope=envelope, key=key if isinstance(key, str) else None, properties=properties, payload=b""
    )


class _Replayer:
    """Producers and consumer for the dead letters of a partition, opened once."""

    def __init__(self, client: ClientLike, topic: str, box: Box, clock: Clock) -> None:
        self._client = reaching(client)
        self._clock = clock
        self._topic = topic
        self._box = box
        self._producers: dict[tuple[str, str, int], Any] = {}
        self._definitions: dict[str, Schemas] = {}
        self._consumer: Any = None

    def __enter__(self) -> Self:
        try:
            self._consumer = self._client.subscribe(
                self._topic,
                self._box.subscription,
                consumer_type=pulsar.ConsumerType.Shared,
                initial_position=pulsar.InitialPosition.Earliest,
                receiver_queue_size=1,  # acknowledges by position; a message it receives is returned when it closes
            )
        except pulsar.PulsarException as error:
            raise ReplayFailed(self._topic, f"its subscription could not be opened: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        for opened in (*self._producers.values(), self._consumer):
            opened.close()

    def deal(
        self, position: EntryPosition, wanted: dict[DeadLetterPosition, DeadLetter], decide: Decision
    ) -> list[ReplayResult]:
        """Publish the messages of an entry as decided, wait for confirmation, then acknowledge the entry."""
        try:
            return self._deal(position, wanted, decide)
        except (pulsar.PulsarException, _NotStored, UnicodeDecodeError) as error:
            if isinstance(error, pulsar.PulsarException) and not _is_of_dead_letter(type(error).__name__):
                raise ReplayFailed(self._topic, f"{position.text}: {error}") from error
            # Messages of this entry that were stored become copies when the entry is replayed again.
            return [
                ReplayResult(dead_letter=dead_letter, refused=f"it cannot be published: {error}")
                for dead_letter in wanted.values()
            ]

    def _deal(
        self, position: EntryPosition, wanted: dict[DeadLetterPosition, DeadLetter], decide: Decision
    ) -> list[ReplayResult]:
        whole = wanted.get(DeadLetterPosition(*position))
        if whole is not None and whole.is_whole:
            return self._deal_whole(whole, decide)
        results: list[ReplayResult] = []
        refile: list[Any] = []
        outcomes: SimpleQueue[Any] = SimpleQueue()
        published = 0
        for place, message in self._messages(position):
            dead_letter = wanted.get(place)
            if dead_letter is None:
                refile.append(message)
                continue
            decision = decide(dead_letter, message)
            if isinstance(decision, ReplayTarget) and (lost := self._lost_schema(message)):
                decision = Refused(lost)
            if isinstance(decision, Refused):
                results.append(ReplayResult(dead_letter=dead_letter, refused=decision.reason))
                refile.append(message)
                continue
            if decision is not None:
                self._publish(message, decision, outcomes)
                published += 1
            results.append(ReplayResult(dead_letter=dead_letter, sent_to=None if decision is None else decision.topic))
        if all(one.refused for one in results):
            return results
        for message in refile:
            self._publish(message, ReplayTarget(self._topic, 0, None), outcomes, message.properties())
        self._await_confirmed(outcomes, published + len(refile))
        self._consumer.acknowledge(pulsar.MessageId(-1, position.ledger, position.entry, -1))
        return results

    def _deal_whole(self, dead_letter: DeadLetter, decide: Decision) -> list[ReplayResult]:
        decision = decide(dead_letter, None)
        if isinstance(decision, Refused):
            return [ReplayResult(dead_letter=dead_letter, refused=decision.reason)]
        position = dead_letter.place.position
        self._consumer.acknowledge(pulsar.MessageId(-1, position.ledger, position.entry, -1))
        return [ReplayResult(dead_letter=dead_letter)]

    def _messages(self, position: EntryPosition) -> list[tuple[DeadLetterPosition, Any]]:
        """Return all messages of an entry as a reader receives them: unaltered, unlike those from the admin API."""
        start = pulsar.MessageId(-1, position.ledger, position.entry, -1)
        reader = self._client.create_reader(self._topic, start, start_message_id_inclusive=True)
        found: list[tuple[DeadLetterPosition, Any]] = []
        try:
            while reader.has_message_available():
                message = reader.read_next(RECEIVE_TIMEOUT_MS)
                at = message.message_id()
                if (at.ledger_id(), at.entry_id()) != position:
                    break
                found.append((DeadLetterPosition(at.ledger_id(), at.entry_id(), at.batch_index()), message))
        finally:
            reader.close()
        return found

    def _publish(
        self, message: Any, decision: ReplayTarget, outcomes: SimpleQueue[Any], properties: dict[str, str] | None = None
    ) -> None:
        had = message.properties()
        producer = self._producer(decision.topic, message, had if properties is None else {})
        carry(
            producer,
            message,
            lambda result, message_id: outcomes.put((result, message_id)),  # on the client's thread: it cannot raise
            decision.properties(had) if properties is None else properties,
            deliver_at_ms=decision.deliver_at_ms,
        )

    def _producer(self, topic: str, message: Any, properties: dict[str, str]) -> Any:
        source, version = self._schema_of(message, properties)
        key = (topic, source, version)
        if key not in self._producers:
            self._producers[key] = self._client.create_producer(
                topic,
                batching_enabled=False,
                block_if_queue_full=True,
                send_timeout_millis=SEND_TIMEOUT_MS,
                **self._schemas(source).producer_options(version),
                **own_numbers(),
            )
        return self._producers[key]

    def _schema_of(self, message: Any, properties: dict[str, str]) -> tuple[str, int]:
        """Return the topic that has the message's schema, and the schema's version. Raises `_NoSuchNote` if the
        properties name a topic that no relay of this plan reads.
        """
        # A dead letter is stored without its schema, and a property names it; a re-filed letter keeps that property. A
        # parked timer is stored with its schema.
        noted = properties.get(DEAD_SCHEMA) if self._box.sources else None
        if noted is None:
            return self._topic, schema_version_of(message)
        version, source = whole_number(noted), properties.get(DEAD_FROM, "")
        # Some names crash the client, and with it the whole process.
        if version is None or not source.startswith(self._box.sources):
            raise _NoSuchNote
        return source, version

    def _lost_schema(self, message: Any) -> str | None:
        """Return the reason why the message's schema cannot be used; None if it exists."""
        try:
            source, version = self._schema_of(message, message.properties())
        except _NoSuchNote:
            return f"its {DEAD_SCHEMA} and {DEAD_FROM} name no schema of a topic of this plan: no relay wrote them"
        try:
            self._schemas(source).producer_options(version)
        except pulsar.TopicNotFound:  # or the topic was created anew without the schema
            problem = "is gone with that topic"
        except pulsar.PulsarException as error:
            problem = f"could not be read ({error})"
        else:
            return None
        return (
            f"its schema, version {version} of {partition_of(source)[0]}, {problem}: publish it again from its source"
        )

    def _schemas(self, source: str) -> Schemas:
        return self._definitions.setdefault(source, Schemas(self._client, source))

    def _await_confirmed(self, outcomes: SimpleQueue[Any], published: int) -> None:
        for _ in range(published):
            try:
                result, message_id = self._clock.get(outcomes, SEND_TIMEOUT_MS + RECEIVE_TIMEOUT_MS)
            except Empty:
                raise ReplayFailed(self._topic, "no answer to a publish: it is left as it was") from None
            if _is_of_dead_letter(result.name):
                raise _NotStored(result.name)
            if outcome_of_result(result, message_id) is not Outcome.OK:
                raise ReplayFailed(
                    self._topic, f"a publish was not confirmed ({cause_of(result)}): it is left as it was"
                )
