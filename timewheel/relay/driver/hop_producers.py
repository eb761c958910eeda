"""The producers of a source partition, hops that leave in groups and in runs, and the outcomes of all sends.

A named producer is the lease of its hops (broker-facts: named-producers): its name contains source and destination, so
only one relay at a time can have it, and the broker drops duplicates of its messages. Any client that may send to the
destination can use the name as well. If the mark of the name is higher than any number that its relay can have sent,
this producer sends no message: it stays open as the lease, and a producer with a random name sends (broker-facts:
numbers-of-others). A random name also replaces a name that is held by a client that can be no relay (broker-facts:
names-held-by-others).

A named producer has no send time-out: after one the client sends later messages without the earlier ones, whose numbers
the broker then takes for seen (broker-facts: exact-hops). `Session` watches over answers instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Final, Literal, NamedTuple, Self

import pulsar

from timewheel.client.native import NO_SCHEMA, carry, flush_soon, try_opening
from timewheel.client.positions import Position
from timewheel.client.reopening import INSPECT_MS, Connection, Reopening
from timewheel.client.results import SEEN_BEFORE, Outcome, fails_alone, outcome_of_error
from timewheel.client.schemas import Schemas
from timewheel.client.surface import own_numbers
from timewheel.core.clock import Clock
from timewheel.core.grouping import GROUP_BYTES, GROUP_MESSAGES
from timewheel.core.names import Names, partition_topic
from timewheel.events import RelayNumbersUsedUp
from timewheel.relay.driver.source import Handle, HeldNames, SessionFailed, Source, Tools
from timewheel.relay.machine.interface import NEVER
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
    """Return the name of the producer from a source partition to a destination.

    Schemas are announced per producer, so each schema version (-1 for none) has its own sequence of numbers
    (broker-facts: named-producers). Under the name of another routing's producer the broker would drop a new position
    as a duplicate (broker-facts: names-follow-routing).
    """
    return f"tw|{label}{_short(source)}|{_short(destination)}|{version}|{fingerprint}"


@dataclass(eq=False)
class HopProducers:
    """Opens, keeps and closes the producers of a source partition; for a single thread."""

    client: Any  # the user's `pulsar.Client`
    source: str  # full name of the source partition
    # its index; destinations get the same index, so that a key stays on its partition (broker-facts:
    # keys-and-partitions)
    partition: int
    _: KW_ONLY
    names: Names
    fingerprint: str  # fingerprint of the plan's routing, for the names of the producers
    max_pending: int  # maximum number of sends under way, over all producers
    send_timeout_ms: int  # of unnamed producers
    named_send_timeout_ms: int = 0  # 0: none
    label: str = ""  # stands before the source in the names of its producers
    # returns whether this mark of a named producer, to a destination, cannot come from the source's relay
    is_forged: Callable[[str, int], bool] = lambda *_: False
    # called when another client holds the name of a producer to a destination; returns whether that client can be no
    # relay
    is_strangers: Callable[[str, str], bool] = lambda *_: False
    is_free: Callable[[str], None] = lambda _: None  # called with a name that the broker has given
    send_held: Callable[[], None] = lambda: None  # called before a producer is closed: hops for it may be held back

    def __post_init__(self) -> None:
        self._schemas = Schemas(self.client, self.source)
        self._producers: dict[_Key, Any] = {}
        self._leases: dict[Any, Any] = {}  # by the producer that sends in place of its lease
        self._marks: dict[Any, int] = {}

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

        ``head`` returns the position of the message that is forwarded now, ``last`` the last position in the source by
        a network request: only where the mark is above the head's number, as after a crash.
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
            tools.client, source.name, source.partition, names=tools.names, fingerprint=tools.router.fingerprint,
            max_pending=tools.max_in_flight, send_timeout_ms=tools.send_timeout_ms, is_forged=is_forged,
            is_strangers=is_strangers, is_free=held.is_free,
        )  # fmt: skip

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
        """Return the producer for this source's messages of a schema version (-1: none) to a topic, each sent alone.

        Messages that the broker delays cannot be batched. Hops that leave the plan's routing have another name
        (broker-facts: names-follow-routing), and so have large messages, which are compressed: their numbers are a
        separate sequence.

        Raises:
            LeaseHeld: Another client has that name.
            PulsarException: The producer could not be opened.
        """
        lane: _Lane = "unnamed" if delayed or large else "unnamed batch"
        if named:
            lane = "way out" if leaves_plan else "single"
        key: _Key = (topic, version, lane, large)
        producer = self._producers.get(key)
        return self._open(key, self.names.part(topic, self.partition)) if producer is None else producer

    def for_groups(self, topic: str, version: int) -> tuple[Any, int]:
        """Return the named producer for groups to a topic, and its mark; raises as `to`.

        The mark is the highest sequence id that the broker had stored from it when it was opened; -1 for none.
        """
        key: _Key = (topic, version, "group", False)
        producer = self._producers.get(key)
        if producer is None:
            producer = self._open(key, self.names.part(topic, self.partition))
        return producer, self._marks[producer]

    def has_come(
        self, topic: str, version: int, number: int, *, in_group: bool, leaves_plan: bool = False, large: bool = False
    ) -> bool:
        """Return whether an earlier session sent this number by the named lane; raises as `to`."""
        if in_group:
            return number <= self.for_groups(topic, version)[1]
        return not self.is_new(self.to(topic, version, named=True, leaves_plan=leaves_plan, large=large), number)

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

    def connections(self) -> list[tuple[str, Any]]:
        """Return all open producers, each with its topic."""
        return [(producer.topic(), producer) for producer in (*self._producers.values(), *self._leases.values())]

    def give_back(self) -> None:
        """Close all producers, so that another relay can have their names; all sends have been confirmed."""
        producers, self._producers, self._marks = [*self._producers.values(), *self._leases.values()], {}, {}
        self._leases = {}
        for producer in producers:
            _close(producer)

    def look_up(self, version: int) -> None:
        """Load a schema version from the source's registry; PulsarException: it does not exist, or no answer came."""
        self._schemas.producer_options(version)

    def _open(self, key: _Key, destination: str) -> Any:
        if len(self._producers) >= MAX_PRODUCERS:
            self._close_oldest()
        _, version, lane, large = key
        is_named = lane in ("single", "way out", "group")
        options = {
            "send_timeout_millis": self.named_send_timeout_ms if is_named else self.send_timeout_ms,
            # More than can be under way: the client fails a send over its bound in the callback (broker-facts:
            # full-send-queue).
            "max_pending_messages": self.max_pending + 1,
            **self._schemas.producer_options(version),
        }
        # Without a number a batch may be cut anew after a crash; with a number it, or its rest, would be dropped
        # (broker-facts: exact-hops, batched-hops).
        options["batching_enabled"] = lane == "unnamed batch"
        if lane == "group":
            options |= _UNBOUNDED
        if large:
            options["compression_type"] = pulsar.CompressionType.ZSTD
        if is_named:
            routing = self.fingerprint + ("-drain" if lane == "way out" else "") + ("-large" if large else "")
            options["producer_name"] = producer_name(self.source, destination, version, routing, self.label)
        else:
            options |= own_numbers()
        try:
            producer = self._producers[key] = self.client.create_producer(destination, **options)
        except pulsar.PulsarException as error:
            if not is_named or outcome_of_error(error) is not Outcome.BUSY:
                raise
            if not self.is_strangers(destination, options["producer_name"]):
                raise LeaseHeld(options["producer_name"]) from error
            producer = self._producers[key] = self._open_by_random_name(destination, options)
            return producer
        if is_named:
            self.is_free(options["producer_name"])
            self._marks[producer] = mark = producer.last_sequence_id()
            if mark >= 0 and self.is_forged(destination, mark):
                lease, producer = producer, self._open_by_random_name(destination, options)
                self._producers[key], self._leases[producer] = producer, lease
                del self._marks[lease]
        return producer

    def _open_by_random_name(self, destination: str, options: dict[str, Any]) -> Any:
        producer = self.client.create_producer(destination, **options | own_numbers())
        self._marks[producer] = -1
        return producer

    def _close_oldest(self) -> None:
        self.send_held()
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


HEARTBEAT_MS = 5_000
"""The longest wait, so that a jump of the clock is noticed and the thread is known to live. Where hundreds of
partitions hold a head, waking up is most of the cost of a relay at rest.
"""


class Connections:
    """The connections of a session: its producers, and those that `inspect` is given; for a single thread."""

    def __init__(self, client: Any, hops: HopProducers, handle: Handle, clock: Clock) -> None:
        self._hops = hops
        self._handle = handle
        self._reopening = Reopening(clock, partial(try_opening, client))
        self.inspect_at_ms = 0  # monotonic time of the next inspection

    @property
    def patience_ms(self) -> int:
        """The longest wait until the next inspection."""
        return INSPECT_MS if self._reopening.is_waiting else HEARTBEAT_MS

    def inspect(self, now_ms: int, *more: tuple[str, Connection]) -> None:
        """Inspect all connections, if it is time; SessionFailed: the next session gets a lost connection back sooner.

        Args:
            now_ms: Monotonic time.
            more: Further connections, each with its topic.
        """
        if now_ms < self.inspect_at_ms or self._handle.stopping:
            return
        self.inspect_at_ms = now_ms + INSPECT_MS
        topic = self._reopening.inspect([*more, *self._hops.connections()])
        if topic is not None:
            raise SessionFailed(f"the connection to {topic} was lost, and a broker serves it again")


class Member(NamedTuple):
    """A message of a group as it was received, the properties that replace its own, and the bytes of both."""

    ordinal: int
    message: Any
    properties: dict[str, str]
    size: int


class HopBatch:
    """Messages for the same topic with the same schema version, sent as one entry.

    The mark is the highest sequence id that the broker had stored from the named producer when it was opened.
    """

    def __init__(self, topic: str, version: int, producer: Any, mark: int) -> None:
        self.topic = topic
        self.version = version
        self.producer = producer
        self._mark = mark
        self.members: list[Member] = []
        self._size = 0
        self.end = -1  # the sequence id of the last position

    @property
    def is_new(self) -> bool:
        """True if the broker can have it from no earlier session."""
        return self.end > self._mark

    def takes(self, sequence_id: int, size: int) -> bool:
        """True if another message may join: by the broker's mark, by count and by bytes."""
        if not self.members:
            return True
        straddles = self.end <= self._mark < sequence_id
        return not straddles and len(self.members) < GROUP_MESSAGES and self._size + size <= GROUP_BYTES

    def add(self, member: Member, sequence_id: int) -> None:
        """Append the next message."""
        self.members.append(member)
        self._size += member.size
        self.end = sequence_id


class HopBatches:
    """The incomplete groups of a source partition; for a single thread (broker-facts: batched-hops).

    A group is complete before its first message is handed to the client, since all its messages carry the number of its
    last position: wherever a crash cuts, a position up to the broker's mark is stored, and a position above it is not.
    Two cases must never occur: a group that straddles the mark as of the opening of the producer, and a group that the
    client cuts in two. The code here prevents the first; the batch index of the last message reveals the second.
    """

    def __init__(self, hops: HopProducers, on_sent: Callable[[HopBatch, Any, Any], None]) -> None:
        self._hops = hops
        self._on_sent = on_sent
        self._open: dict[tuple[str, int], HopBatch] = {}

    def add(self, topic: str, version: int, sequence_id: int, member: Member) -> None:
        """Add a message to the group of its destination and schema version; a full group is sent first; as `to`."""
        key = topic, version
        group = self._open.get(key)
        if group is not None and not group.takes(sequence_id, member.size):
            del self._open[key]
            self._send(group)
            group = None
        if group is None:
            producer, mark = self._hops.for_groups(topic, version)
            group = self._open[key] = HopBatch(topic, version, producer, mark)
        group.add(member, sequence_id)

    def send(self) -> None:
        groups, self._open = self._open, {}
        for group in groups.values():
            self._send(group)

    def _send(self, group: HopBatch) -> None:
        producer, end = group.producer, group.end
        *others, last = group.members
        # All messages of an entry have the same outcome: the last message reports it.
        for member in others:
            carry(producer, member.message, None, member.properties, sequence_id=end)
        carry(producer, last.message, partial(self._on_sent, group), last.properties, sequence_id=end)
        flush_soon(producer)


class Sent(NamedTuple):
    """A hop that was handed over alone: its ordinal, and whether the broker can have it from no earlier session."""

    ordinal: int
    is_new: bool
    answer: dict[Any, Any]  # the arguments of its callback: the result, and as its value the message id


class _HopRun:
    """The last of its hops is held back: message, properties, delivery time and sequence id."""

    __slots__ = ("held", "hops", "producer")

    def __init__(self, producer: Any) -> None:
        self.producer = producer
        self.hops: list[Sent] = []
        self.held: tuple[Any, dict[str, str], int, int] = (None, {}, 0, 0)

    def hand_over(self, callback: Any) -> None:
        message, properties, deliver_at_ms, sequence_id = self.held
        carry(self.producer, message, callback, properties, deliver_at_ms=deliver_at_ms, sequence_id=sequence_id)


LONGEST_RUN = 64


class HopRuns:
    """Hops that are sent alone, in runs of a producer; for a single thread.

    Only the last hop of a run has a callback in Python, since each callback waits for the interpreter's lock on the
    client's thread (broker-facts: callbacks-in-c).

    The newest hop of each producer is held back, since another may follow: `end` before any wait.
    """

    def __init__(self, on_run: Callable[[list[Sent], Any, Any], None]) -> None:
        self._on_run = on_run
        self.open: dict[Any, _HopRun] = {}
        """By producer; each holds a hop back."""

    def add(
        self, producer: Any, message: Any, properties: dict[str, str], deliver_at_ms: int, sequence_id: int, hop: Sent
    ) -> None:
        """Send the hop before it by this producer, and hold this one back."""
        run = self.open.get(producer)
        if run is None or not self._continues(run):
            run = self.open[producer] = _HopRun(producer)
        run.hops.append(hop)
        run.held = message, properties, deliver_at_ms, sequence_id

    def end(self) -> None:
        """Send all that is held back."""
        if self.open:
            runs, self.open = self.open, {}
            for run in runs.values():
                self._end(run)

    def _continues(self, run: _HopRun) -> bool:
        """Send the hop that a run holds back; return whether another may follow in this run."""
        if len(run.hops) >= LONGEST_RUN:
            self._end(run)
            return False
        answer = run.hops[-1].answer
        run.hand_over(answer.setdefault)
        if not answer or next(iter(answer)).value == 0:
            return True
        ((result, message_id),) = answer.items()
        self._on_run(run.hops, result, message_id)  # it was refused on the spot
        return False

    def _end(self, run: _HopRun) -> None:
        run.hand_over(partial(self._on_run, run.hops))


UNHEARD_MS = 100


class Confirmations:
    """Outcomes of sends: a queue with one writer, the client's thread, and one reader, the partition's thread.

    Its length is bounded by the sends under way. The condition of the handle wakes the reader.
    """

    def __init__(self, handle: Handle, clock: Clock) -> None:
        self._handle = handle
        self._clock = clock
        self.outcomes: deque[tuple[int, str | None]] = deque()
        """(ordinal, failure). Public, since checking its length directly costs a call less than a method."""
        self.cut: deque[tuple[HopBatch, bool]] = deque()
        """Groups not sent as one entry, each with whether the client refused it whole; else its outcome is unknown."""
        self._unheard: deque[Sent] = deque()
        """Hops of a run whose last was answered before them, as the client refuses a message on the spot."""
        self._wake_at = NEVER

    def on_sent(self, ordinal: int, result: Any, message_id: Any) -> None:
        """Record the outcome of a message of an unnamed producer; runs on the client's thread, like `on_run`."""
        self.on_run([Sent(ordinal, True, {})], result, message_id)

    def on_run(self, hops: list[Sent], result: Any, message_id: Any) -> None:
        """Record the outcomes of hops, of which the last is answered now.

        Runs on the client's thread: never raises.
        """
        hops[-1].answer[result] = message_id
        failed = False
        for hop in hops:
            if hop.answer:
                failed |= self._record(hop)
            else:
                self._unheard.append(hop)
        if failed or len(self.outcomes) >= self._wake_at:
            self._wake()

    def _record(self, hop: Sent) -> bool:
        """Record the outcome of an answered hop; return whether it failed."""
        ((result, message_id),) = hop.answer.items()
        failure = None
        if result.value:
            failure = result.name
        elif message_id.ledger_id() < 0:
            if hop.is_new:
                failure = SEEN_BEFORE
            else:
                self._handle.counts.deduplicated += 1
        elif message_id.batch_index() <= 0:  # the first message of a batch counts as the entry
            self._handle.counts.entries += 1
        self.outcomes.append((hop.ordinal, failure))
        return failure is not None

    def on_group(self, group: HopBatch, result: Any, message_id: Any) -> None:
        """Record the outcome of a group's last message; runs on the client's thread, like `on_sent`."""
        members = group.members
        failure = None
        refused = bool(result.value) and fails_alone(result.name) and len(members) > 1
        if refused or (not result.value and message_id.batch_index() != len(members) - 1):
            self.cut.append((group, refused))
            self._wake()
            return
        if result.value:
            failure = result.name
        elif message_id.ledger_id() < 0:
            if group.is_new:
                failure = SEEN_BEFORE
            else:
                self._handle.counts.deduplicated += len(members)
        else:
            self._handle.counts.entries += 1
        self.outcomes.extend((member.ordinal, failure) for member in members)
        if failure is not None or len(self.outcomes) >= self._wake_at:
            self._wake()

    def _wake(self) -> None:
        with self._handle.changed:
            self._handle.changed.notify_all()

    def wait(self, timeout_ms: int, *, wake_at: int, also_while_stopping: bool = False) -> None:
        """Wait for ``wake_at`` outcomes, a stop, or the time."""
        handle = self._handle
        with handle.changed:
            # The client's thread appends first and then reads _wake_at: either it sees this write, or we see its
            # outcome.
            self._wake_at = wake_at
            if self._unheard:
                timeout_ms = min(timeout_ms, UNHEARD_MS)
            if len(self.outcomes) < wake_at and not self.cut and (also_while_stopping or not handle.stopping):
                self._clock.wait(handle.changed, timeout_ms)
            self._wake_at = NEVER
        handle.beat()

    def take(self) -> tuple[list[int], list[tuple[int, str]]]:
        """Return the ordinals confirmed by now, and the ordinals that are not stored, each with its failure."""
        ordinals: list[int] = []
        failures: list[tuple[int, str]] = []
        for _ in range(len(self._unheard)):
            hop = self._unheard.popleft()
            if hop.answer:
                self._record(hop)
            else:
                self._unheard.append(hop)
        for _ in range(len(self.outcomes)):
            ordinal, failure = self.outcomes.popleft()
            if failure is None:
                ordinals.append(ordinal)
            else:
                failures.append((ordinal, failure))
        return ordinals, failures
