"""The ledgers of a topic and the cursors in it, as a broker keeps them: positions, gaps, and what an unload forgets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from timewheel.broker.admin.stats import CursorStats, Ledger
from timewheel.broker.protocol.wire import data_field, number_field
from timewheel.client.positions import EntryPosition
from timewheel.core.broker_profile import BrokerProfile
from timewheel.inspect.gaps.gap_status import reload_of
from timewheel.testing.virtual.scheduler import Scheduler

NOWHERE = EntryPosition(-1, -1)  # where an entry is that is not stored


@dataclass(slots=True)
class Sent:
    """A message as its producer sent it."""

    payload: bytes | None  # None: a null payload
    properties: dict[str, str]
    key: bytes = b""
    ordering_key: bytes = b""
    event_ms: int = 0
    deliver_at_ms: int = 0
    sequence_id: int = -1

    @property
    def size(self) -> int:
        texts = [*self.properties, *self.properties.values()]
        return len(self.payload or b"") + sum(map(len, texts)) + 64


@dataclass(slots=True)
class Entry:
    """A message, or a batch of messages, as it is stored."""

    messages: tuple[Sent, ...]
    producer_name: str
    sequence_id: int
    publish_ms: int
    is_batch: bool = False
    schema_version: int = -1
    position: EntryPosition = NOWHERE

    @property
    def deliver_at_ms(self) -> int:
        """Delivery time that the broker is asked for; 0: at once, as a batch (broker-facts: delayed-never-batched)."""
        return 0 if self.is_batch else self.messages[0].deliver_at_ms

    @property
    def size(self) -> int:
        return sum(message.size for message in self.messages)

    @property
    def schema_bytes(self) -> bytes | None:
        return None if self.schema_version < 0 else self.schema_version.to_bytes(8, "big")

    @property
    def payload(self) -> bytes:
        """The payload as it is stored, uncompressed: of a batch each message behind its own metadata."""
        if not self.is_batch:
            return self.messages[0].payload or b""
        stored = b""
        for one in self.messages:
            content = one.payload or b""
            pairs = (data_field(1, data_field(1, key) + data_field(2, text)) for key, text in one.properties.items())
            metadata = b"".join(pairs) + (data_field(2, one.key) if one.key else b"") + number_field(3, len(content))
            stored += len(metadata).to_bytes(4, "big") + metadata + content
        return stored


@dataclass(slots=True)
class _Ledger:
    number: int
    opened_ms: int
    entries: list[Entry] = field(default_factory=list)
    size_bytes: int = 0


class ManagedLedger:
    """The stored entries of a topic."""

    def __init__(self, profile: BrokerProfile, scheduler: Scheduler, new_ledger_id: Callable[[], int]) -> None:
        self._profile = profile
        self._scheduler = scheduler
        self._new_ledger_id = new_ledger_id
        self._ledgers: dict[int, _Ledger] = {}  # in order
        self.added = 0
        self.last_confirmed = NOWHERE
        self._open = self.open_ledger()

    def open_ledger(self) -> _Ledger:
        """Begin another ledger, and leave no empty one behind."""
        if self._ledgers and not self._open.entries:
            del self._ledgers[self._open.number]
        number = self._new_ledger_id()
        self._open = self._ledgers[number] = _Ledger(number, self._scheduler.now_ms)
        if self.last_confirmed.ledger < 0:
            self.last_confirmed = EntryPosition(number, -1)
        return self._open

    def append(self, entry: Entry) -> EntryPosition:
        """Store an entry behind all others; return its position."""
        ledger = self.open_ledger() if self._open.entries and self._is_full(self._open) else self._open
        entry.position = self.last_confirmed = EntryPosition(ledger.number, len(ledger.entries))
        ledger.entries.append(entry)
        ledger.size_bytes += entry.size
        self.added += 1
        return entry.position

    def _is_full(self, ledger: _Ledger) -> bool:
        profile, age_ms = self._profile, self._scheduler.now_ms - ledger.opened_ms
        is_large = len(ledger.entries) >= profile.ledger_max_entries or ledger.size_bytes >= profile.ledger_max_bytes
        return (is_large and age_ms >= profile.ledger_min_age_ms) or age_ms >= profile.ledger_max_age_ms

    def read(self, position: EntryPosition) -> Entry | None:
        """Return the entry at a position; None: there is none."""
        ledger = self._ledgers.get(position.ledger)
        if ledger is None or not 0 <= position.entry < len(ledger.entries):
            return None
        return ledger.entries[position.entry]

    def after(self, position: EntryPosition) -> Entry | None:
        """Return the first entry behind a position; None: there is none yet."""
        if position >= self.last_confirmed:
            return None
        return next(self.all_after(position), None)

    def all_after(self, position: EntryPosition) -> Iterator[Entry]:
        """Yield all entries behind a position."""
        for number, ledger in [*self._ledgers.items()]:
            if number >= position.ledger:
                entries = ledger.entries
                for index in range(position.entry + 1 if number == position.ledger else 0, len(entries)):
                    yield entries[index]

    def between(self, begin: EntryPosition, end: EntryPosition) -> Iterator[Entry]:
        """Yield the entries behind a position, up to another."""
        return takewhile(lambda entry: entry.position <= end, self.all_after(begin))

    def number_after(self, position: EntryPosition) -> int:
        """Return how many entries are behind a position."""
        after = sum(len(ledger.entries) for number, ledger in self._ledgers.items() if number >= position.ledger)
        return after - (position.entry + 1 if position.ledger in self._ledgers else 0)

    @property
    def beginning(self) -> EntryPosition:
        """The place before the first entry."""
        return EntryPosition(next(iter(self._ledgers)), -1)

    def before(self, position: EntryPosition) -> EntryPosition:
        """Return the place from which the next read brings the entry at a position, or what is nearest to it."""
        return max(
            self.beginning, min(self.last_confirmed, EntryPosition(position.ledger, max(position.entry - 1, -1)))
        )

    def published_before(self, at_ms: int) -> EntryPosition:
        """Return the position of the last entry before the first that was published at a time or later."""
        older = takewhile(lambda entry: entry.publish_ms < at_ms, self.all_after(self.beginning))
        return max((entry.position for entry in older), default=self.beginning)

    def trim(self, position: EntryPosition) -> None:
        """Delete the ledgers that end at or before a position, but for the open one."""
        for number, ledger in [*self._ledgers.items()]:
            if ledger is not self._open and (number, len(ledger.entries) - 1) <= position:
                del self._ledgers[number]

    @property
    def ledgers(self) -> tuple[Ledger, ...]:
        """The ledgers, as the admin API tells of them."""
        return tuple(
            Ledger(ledger_id=number, entries=len(ledger.entries), size_bytes=ledger.size_bytes, offloaded=False)
            for number, ledger in self._ledgers.items()
        )


WRITE_EVERY_MS = 1_000  # a cursor, while it moves (``managedLedgerDefaultMarkDeleteRateLimit``)


class Cursor:
    """What a subscription has acknowledged."""

    def __init__(self, log: ManagedLedger, mark_delete: EntryPosition) -> None:
        self._log = log
        self.mark_delete = mark_delete  # all entries up to here are acknowledged
        self.read = mark_delete  # the last entry that was read in order; the next read begins behind it
        self.acked: set[EntryPosition] = set()  # behind `mark_delete`
        self.consumed = 0
        self.cursor_ledger = -1  # of its own ledger; -1: it was not written since the topic was loaded
        self._written = mark_delete
        self._written_ms = -WRITE_EVERY_MS
        self._unwritten: list[EntryPosition] = []  # acknowledged since the cursor was written

    def is_acked(self, position: EntryPosition) -> bool:
        return position <= self.mark_delete or position in self.acked

    def acknowledge(self, position: EntryPosition) -> None:
        if not self.is_acked(position):
            self.consumed += 1
            self._unwritten.append(position)
            self.acked.add(position)
            self._advance()

    def acknowledge_to(self, position: EntryPosition) -> None:
        """Acknowledge all entries up to a position."""
        position = min(position, self._log.last_confirmed)
        for entry in self._log.between(self.mark_delete, position):
            if entry.position not in self.acked:
                self.consumed += 1
                self._unwritten.append(entry.position)
        self.mark_delete = max(self.mark_delete, position)
        self.acked = {one for one in self.acked if one > position}
        self._advance()

    def _advance(self) -> None:
        while self.acked and (entry := self._log.after(self.mark_delete)) is not None and entry.position in self.acked:
            self.acked.remove(entry.position)
            self.mark_delete = entry.position
        self.read = max(self.read, self.mark_delete)

    def write(self, now_ms: int, ledger_id: Callable[[], int], *, at_once: bool = False) -> bool:
        """Write it down, unless it was within the last second; return whether it is written."""
        if not at_once and now_ms - self._written_ms < WRITE_EVERY_MS:
            return False
        if self.cursor_ledger < 0:
            self.cursor_ledger = ledger_id()
        self._written, self._written_ms = self.mark_delete, now_ms
        self._unwritten.clear()
        return True

    def crash(self) -> None:
        """Forget all acknowledgements since it was written, as a broker does that is killed."""
        self.acked.update(entry.position for entry in self._log.between(self._written, self.mark_delete))
        self.acked.difference_update(self._unwritten)
        self.mark_delete = self._written

    def ranges(self) -> list[tuple[EntryPosition, EntryPosition]]:
        """Return the acknowledged ranges behind the mark-delete position: each from behind one entry up to another.

        A range ends with its ledger.
        """
        found: list[tuple[EntryPosition, EntryPosition]] = []
        for position in sorted(self.acked):
            begin = EntryPosition(position.ledger, position.entry - 1)
            if found and found[-1][1] == begin:
                begin, _ = found.pop()
            found.append((begin, position))
        return found

    @property
    def backlog(self) -> int:
        """Number of entries that are not acknowledged."""
        return self._log.number_after(self.mark_delete) - len(self.acked)

    @property
    def backlog_bytes(self) -> int:
        return sum(entry.size for entry in self._log.all_after(self.mark_delete))

    def rewind(self) -> None:
        """Read again from the first entry that is not acknowledged."""
        self.read = self.mark_delete

    def stats(self) -> CursorStats:
        """The cursor, as the admin API tells of it."""
        ranges = self.ranges()
        following = self._log.after(self.read)
        return CursorStats(
            mark_delete=self.mark_delete,
            read=EntryPosition(self.read.ledger, self.read.entry + 1) if following is None else following.position,
            gap_count=len(ranges),
            entries_since_mark_delete=self._log.number_after(self.mark_delete) - self._log.number_after(self.read),
            consumed=self.consumed,
            cursor_ledger=self.cursor_ledger,
            state="NoLedger" if self.cursor_ledger < 0 else "Open",
            acked_text="[" + ",".join(f"({begin.text}..{end.text}]" for begin, end in ranges) + "]",
        )

    def load(self, profile: BrokerProfile) -> None:
        """Forget what its last write did not hold, by the broker's limit and format; read again from there."""
        if self.acked:
            for run in reload_of(self.stats(), self._log.ledgers, profile).forgotten:
                self.acked -= {EntryPosition(run.ledger, entry) for entry in range(run.first, run.last + 1)}
        self.consumed, self.cursor_ledger = 0, -1
        self._advance()
        self.rewind()
        self._written = self.mark_delete
        self._unwritten.clear()
