"""The stored entries of a plan's topics at a moment, made by playing the plan, behind the admin calls of a search.

For relay-held topics sends are batched for ten milliseconds and hops for a second, as in production; all other messages
are published singly. Entries that were acknowledged long ago are trimmed.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.support.manual_clock import ManualClock
from timewheel.broker.admin.entries import StoredEntry
from timewheel.broker.admin.stats import CursorStats, InternalStats, Ledger, TopicStats, read_topic_stats
from timewheel.client.positions import EntryPosition
from timewheel.core.envelope import Envelope
from timewheel.core.errors import AdminMissing
from timewheel.core.ids import TimerIds
from timewheel.core.names import PARKED_SUBSCRIPTION, RELAY_SUBSCRIPTION, namespace_of, partition_topic
from timewheel.core.plan import Plan
from timewheel.inspect.whereis import Routes

LEDGER_ENTRIES = 5_000
KEPT = 200  # entries before the mark-delete position that are still stored
SEND_LINGER_MS, HOP_LINGER_MS = 10, 1_000


class Sent(NamedTuple):
    timer_id: str
    sent_ms: int
    due_ms: int
    partition: int


@dataclass(slots=True)
class _Entry:
    publish_ms: int
    timers: list[Envelope]
    leaves_ms: int


class StoredPlan:
    """Stands in for an `AdminClient`.

    Args:
        sends: Ascending (send time, delay), in milliseconds.
        late_ms: Longest time from a release to its hop, in addition to the linger.
    """

    def __init__(
        self, plan: Plan, now_ms: int, sends: Sequence[tuple[int, int]], *, seed: int = 1, late_ms: int = 20
    ) -> None:
        self.plan, self._now_ms = plan, now_ms
        self._source = random.Random(seed)
        self._late_ms = late_ms
        self.clock = ManualClock(now_ms)
        self.topics = self
        self.reads = 0
        self._count = len(sends)
        self._stats: dict[str, InternalStats] = {}
        ids = [TimerIds(self._source.randbytes) for _ in range(2)]
        ways = Routes(plan)
        self.sent: list[Sent] = []
        groups: defaultdict[tuple[str, bool, int], list[tuple[int, Envelope, int]]] = defaultdict(list)
        for sent_ms, delay_ms in sends:
            who = self._source.randrange(2)
            timer_id = ids[who].new(sent_ms)
            partition = int(timer_id[-8:], 16) % plan.partitions
            self.sent.append(Sent(timer_id, sent_ms, sent_ms + delay_ms, partition))
            self._play(groups, ways, self.sent[-1], who)
        stored: defaultdict[str, list[_Entry]] = defaultdict(list)
        for (name, _, _), found in groups.items():
            publish_ms = max(one[0] for one in found) if len(found) > 1 and found[0][1].hops else found[0][0]
            stored[name].append(_Entry(publish_ms, [one[1] for one in found], max(one[2] for one in found)))
        self._stored = {name: self._kept(entries) for name, entries in stored.items()}

    def store(self, topic: str, envelope: Envelope, publish_ms: int, *, until_ms: int) -> None:
        """Add an entry to a partition, as a late relay does, or in a place that `Routes` does not foresee."""
        self._stats.pop(topic, None)
        self._stored.setdefault(topic, []).append(_Entry(publish_ms, [envelope], until_ms))

    def _kept(self, entries: list[_Entry]) -> list[_Entry]:
        """Trim ledgers from the front, once all their entries are acknowledged."""
        ordered = sorted(entries, key=lambda one: one.publish_ms)
        done = 0
        while done < len(ordered) and ordered[done].leaves_ms <= self._now_ms:
            done += 1
        return ordered[max(done - KEPT, 0) :]

    def _play(self, groups: Any, ways: Routes, sent: Sent, who: int) -> None:
        for stop in ways.way(sent.sent_ms, sent.due_ms):
            # In the order of sends, as timers of a slot leave it.
            lag_ms = self._late_ms * len(self.sent) // self._count if stop.hops else self._source.randrange(3)
            publish_ms = stop.entered.first_ms + lag_ms
            if publish_ms > self._now_ms:
                return
            name = partition_topic(stop.topic, sent.partition)
            envelope = Envelope(sent.timer_id, sent.due_ms, stop.entered.first_ms, hops=stop.hops)
            linger_ms = HOP_LINGER_MS if stop.hops else SEND_LINGER_MS
            number = len(groups)
            if not stop.is_due and self.plan.holds_in_relay:
                number = publish_ms // linger_ms * 10 + (9 if stop.hops else who)
            groups[name, bool(stop.hops), number].append((publish_ms, envelope, stop.leaves_ms))

    def internal_stats(self, topic: str) -> InternalStats:
        if topic not in self._stats:
            self._stats[topic] = self._stats_of(topic)
        return self._stats[topic]

    def _stats_of(self, topic: str) -> InternalStats:
        entries = self._stored.get(topic, [])
        done = 0
        while done < len(entries) and entries[done].leaves_ms <= self._now_ms:
            done += 1
        acked = "".join(
            f"({self._at(n).ledger}:{self._at(n).entry - 1}..{self._at(n).ledger}:{self._at(n).entry}]"
            for n in range(done, len(entries))
            if entries[n].leaves_ms <= self._now_ms
        )
        mark = self._at(done - 1) if done else EntryPosition(100, -1)
        cursor = CursorStats(
            mark_delete=mark, read=mark, gap_count=0, entries_since_mark_delete=0, consumed=0, cursor_ledger=1,
            state="Open", acked_text=f"[{acked}]",
        )  # fmt: skip
        sizes = [min(LEDGER_ENTRIES, len(entries) - first) for first in range(0, len(entries), LEDGER_ENTRIES)]
        return InternalStats(
            entries=len(entries), entries_added=len(entries), size_bytes=0, last_confirmed=mark, state="LedgerOpened",
            ledgers=tuple(
                Ledger(ledger_id=100 + number, entries=size, size_bytes=0, offloaded=False)
                for number, size in enumerate(sizes)
            ),
            cursors=dict.fromkeys((*self.plan.subscriptions, RELAY_SUBSCRIPTION, PARKED_SUBSCRIPTION), cursor),
        )  # fmt: skip

    def position_at(self, topic: str, at_ms: int) -> EntryPosition:
        return self._at(bisect_left(self._stored.get(topic, []), at_ms, key=lambda entry: entry.publish_ms))

    def entry(self, topic: str, position: EntryPosition) -> StoredEntry:
        entries = self._stored.get(topic, [])
        number = (position.ledger - 100) * LEDGER_ENTRIES + position.entry
        if number >= len(entries):
            raise AdminMissing(404, "GET", "no such entry")
        self.reads += 1
        found = entries[number]
        single = len(found.timers) == 1
        return StoredEntry(
            position=position,
            payload=b"" if single else _batch(found.timers),
            publish_at_ms=found.publish_ms,
            event_at_ms=None,
            deliver_at_ms=None,
            properties=found.timers[0].properties() if single else {},
            producer="",
            sequence_id=0,
            partition_key=None,
            ordering_key=None,
            batch_messages=None if single else len(found.timers),
            null_payload=False,
            encrypted=False,
        )

    def list(self, namespace: str) -> list[str]:
        return [name for name in self._stored if namespace_of(name) == namespace]

    def properties(self, _topic: str) -> dict[str, str]:
        return {}

    def stats(self, topic: str, **_asked: bool) -> TopicStats:
        waiting = sum(entry.leaves_ms > self._now_ms for entry in self._stored[topic])
        names = (*self.plan.subscriptions, RELAY_SUBSCRIPTION, PARKED_SUBSCRIPTION)
        return read_topic_stats({"subscriptions": {name: {"msgBacklog": waiting} for name in names}}, clients=True)

    def _at(self, number: int) -> EntryPosition:
        return EntryPosition(100 + number // LEDGER_ENTRIES, number % LEDGER_ENTRIES)


def _batch(timers: Sequence[Envelope]) -> bytes:
    return b"".join(_message(envelope.properties()) for envelope in timers)


def _message(properties: dict[str, str]) -> bytes:
    metadata = b"".join(
        _field(1, _field(1, name.encode()) + _field(2, value.encode())) for name, value in properties.items()
    ) + bytes([3 << 3, 0])
    return len(metadata).to_bytes(4, "big") + metadata


def _field(number: int, data: bytes) -> bytes:
    assert len(data) < 128, "one byte of length is enough here"
    return bytes([number << 3 | 2, len(data)]) + data
