"""Copies on their way into the journal: gathered, numbered, limited, confirmed."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import pulsar

from timewheel.broker.protocol.errors import BinaryProtocolError
from timewheel.client.native import NO_SCHEMA, flush_soon, properties_size
from timewheel.client.positions import EntryPosition
from timewheel.client.schemas import SCHEMA_REFUSALS
from timewheel.core.clock import Clock
from timewheel.core.envelope import FROM_PROPERTY, PROBE_PROPERTY
from timewheel.core.errors import AdminError
from timewheel.core.grouping import MOVE_LINGER_MS
from timewheel.core.names import Names
from timewheel.relay.driver.hop_producers import Connections, HopBatch, HopBatches, HopProducers, LeaseHeld, Member
from timewheel.relay.driver.source import Handle, SessionFailed
from timewheel.shadow.machine.journal import Journal, UnackedOriginals
from timewheel.shadow.machine.move_decider import MoveDecision, fence_number
from timewheel.shadow.stored_entries import Original

Stays = dict[EntryPosition, tuple[MoveDecision, str]]
"""Entries that turned out not to be movable: the decision and the reason."""

LAGS = 1_000
MAX_IN_FLIGHT = 4_000
MAX_BYTES_IN_FLIGHT = 16_000_000
SEND_TIMEOUT_MS = 30_000
ROOM_MS = 2_000
MAX_REFUSED = 10_000  # limit of remembered schema versions: a producer may write any number into a message
_OF_MESSAGE = frozenset({pulsar.Result.MessageTooBig, pulsar.Result.InvalidMessage})
OF_SESSION = (SessionFailed, LeaseHeld, AdminError, BinaryProtocolError, pulsar.PulsarException)
"""Errors that do not concern a single message."""


@dataclass(slots=True)
class MoveCounts:
    """The counters of a partition's mover, as `MoverStatus` shows them; written by its thread, read without a lock."""

    moved: int = 0
    deduplicated: int = 0
    handled: int = 0  # entries that some subscription had acknowledged when they were read
    acked_again: int = 0
    nudges: int = 0
    failures: int = 0
    caught_up: bool = False
    decisions: Counter[MoveDecision] = field(default_factory=Counter)
    lags_ms: deque[int] = field(default_factory=lambda: deque(maxlen=LAGS))
    """Of originals that came while a session ran; those that it found when it began were late for other reasons."""


@dataclass(eq=False)
class Copies:
    """The copies of a mover's session, for its thread; updates the counts, the journal and `stays`."""

    client: Any
    part: str
    partition: int
    _: KW_ONLY
    names: Names
    handle: Handle
    clock: Clock
    counts: MoveCounts
    journal: Journal
    unacked_originals: UnackedOriginals
    stays: Stays

    def __post_init__(self) -> None:
        self._hops = HopProducers(
            self.client, self.part, self.partition, names=self.names, fingerprint="", max_pending=MAX_IN_FLIGHT,
            send_timeout_ms=SEND_TIMEOUT_MS, named_send_timeout_ms=SEND_TIMEOUT_MS, label="move|",
        )  # fmt: skip
        self._groups = HopBatches(self._hops, self._on_sent)
        self._connections = Connections(self.client, self._hops, self.handle, self.clock)
        self._outcomes: deque[tuple[HopBatch, Any, Any]] = deque()
        self._bytes = 0
        self._ordinal = 0
        self._fences: dict[int, int] = {}
        self._refused: set[int] = set()
        self._waiting_since_ms: int | None = None
        self._gathered: list[Member] = []
        self.in_flight = 0  # copies that are gathered or sent, and not confirmed

    def take_lease(self) -> None:
        """Open the producer whose name only one shadow at a time can have; raises LeaseHeld if another has it."""
        self._hops.for_groups(self.names.journal, NO_SCHEMA)

    def fence(self, versions: Iterable[int]) -> EntryPosition:
        """Shut out the copies of earlier sessions, which are all before the returned position of the last fence.

        A fence is an empty message that relays drop. No copy of a schema version may be sent before its fence is
        stored; a version that the journal's registry refuses, or that the due topic's no longer has, stays unfenced.
        Raises SessionFailed if a fence is not stored: another session was quicker.
        """
        last = EntryPosition(-1, -1)
        for version in versions:
            self.handle.beat()
            try:
                producer, mark = self._hops.for_groups(self.names.journal, version)
            except (pulsar.IncompatibleSchema, pulsar.TopicNotFound) as error:
                if version == NO_SCHEMA and isinstance(error, pulsar.TopicNotFound):
                    raise  # the journal itself
                self._refuse(version)
                continue
            number = fence_number(mark, self.clock.now_ms())
            answer: Future[tuple[Any, Any]] = Future()
            producer.send_async(
                b"",
                lambda *given, answer=answer: answer.set_result(given),
                properties={PROBE_PROPERTY: ""},
                sequence_id=number,
                disable_replication=True,
            )
            flush_soon(producer)
            result, place = answer.result()  # ends at the latest with the client's time-out
            if result.value or place.ledger_id() < 0:
                raise SessionFailed(f"the fence was not stored: {result.name}, or another session's was sooner")
            self._fences[version] = number
            last = max(last, EntryPosition(place.ledger_id(), place.entry_id()))
        return last

    def is_fenced(self, version: int) -> bool:
        """Return whether copies of a schema version may be sent."""
        return version in self._fences

    def can_have(self, version: int) -> bool:
        """Return whether the due topic's registry has a schema version, and the journal's accepts it."""
        if version not in self._refused:
            try:
                self._hops.look_up(version)
            except SCHEMA_REFUSALS:
                self._refuse(version)
        return version not in self._refused

    def _refuse(self, version: int) -> None:
        if len(self._refused) >= MAX_REFUSED:
            self._refused.clear()
        self._refused.add(version)

    def close(self) -> None:
        """Give the producers' names back."""
        self._hops.give_back()

    @property
    def patience_ms(self) -> int | None:
        """Time for which the gathered copies may still wait; None: there are none."""
        since_ms = self._waiting_since_ms
        return None if since_ms is None else max(since_ms + MOVE_LINGER_MS - self.clock.monotonic_ms(), 0)

    def add(self, original: Original, version: int, properties: dict[str, str]) -> None:
        """Gather a copy of a fenced schema version, -1: none; waits if too many are under way."""
        size = original.size + properties_size(properties)
        if self.in_flight >= MAX_IN_FLIGHT or self._bytes + size > MAX_BYTES_IN_FLIGHT:
            self.send()
            self.await_below(MAX_IN_FLIGHT // 2)
        self._ordinal += 1
        number = self._fences[version] + self._ordinal
        member = Member(self._ordinal, original, properties, size)
        self._gathered.append(member)
        with self._making():
            self._groups.add(self.names.journal, version, number, member)
        self.in_flight += 1
        self._bytes += size
        if self._waiting_since_ms is None:
            self._waiting_since_ms = self.clock.monotonic_ms()

    def send(self) -> None:
        if self._waiting_since_ms is not None:
            self._waiting_since_ms = None
            with self._making():
                self._groups.send()
            self._gathered.clear()

    @contextmanager
    def _making(self) -> Iterator[None]:
        """Attribute an error of the client to the copies gathered since the last send: these entries stay."""
        try:
            yield
        except OF_SESSION:
            raise
        except Exception as error:
            self.stays.update(dict.fromkeys(map(_place, self._gathered), (MoveDecision.DAMAGED, repr(error))))
            raise SessionFailed(f"a copy cannot be made: {error!r}") from error

    def await_below(self, below: int = 1, *, also_while_stopping: bool = False) -> None:
        """Wait until fewer copies and bytes are under way; sends without an answer fail by themselves."""
        handle = self.handle
        while self.in_flight and (self.in_flight >= below or self._bytes > MAX_BYTES_IN_FLIGHT // 2):
            if handle.stopping and (not also_while_stopping or not handle.drain_left_ms()):
                return
            with handle.changed:
                if not self._outcomes:
                    self.clock.wait(handle.changed, ROOM_MS)
            handle.beat()
            self.settle()

    def settle(self) -> None:
        """Process the confirmations; SessionFailed: a copy was not stored, or a producer is to be opened anew."""
        while self._outcomes:
            group, result, message_id = self._outcomes.popleft()
            members = group.members
            self.in_flight -= len(members)
            self._bytes -= sum(member.size for member in members)
            if result.value:
                if result in _OF_MESSAGE:
                    why = (MoveDecision.LARGE, f"{result.name}: with its copy's properties, or with those it goes with")
                    self.stays.update(dict.fromkeys(map(_place, members), why))
                raise SessionFailed(f"a copy was not stored: {result.name}")
            if message_id.batch_index() != len(members) - 1:
                raise SessionFailed("the client has cut a group of copies: which of them are stored is read again")
            if message_id.ledger_id() < 0:
                self.counts.deduplicated += len(members)
                raise SessionFailed("a copy is stored, and not known where: its answer was lost with the connection")
            self.counts.moved += len(members)
            copy = EntryPosition(message_id.ledger_id(), message_id.entry_id())
            self.journal.add(_place(members[-1]), copy)
            self.unacked_originals.stored(copy, self.clock.monotonic_ms())
        self._connections.inspect(self.clock.monotonic_ms())

    def _on_sent(self, group: HopBatch, result: Any, message_id: Any) -> None:
        """Queue the outcome of a send; called on the client's thread."""
        self._outcomes.append((group, result, message_id))
        with self.handle.changed:
            self.handle.changed.notify_all()


def _place(member: Member) -> EntryPosition:
    return EntryPosition.parse(member.properties[FROM_PROPERTY].partition(" ")[0])
