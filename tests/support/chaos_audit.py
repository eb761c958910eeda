"""Audits the stored copies in a due topic, and the lane of each.

Copies are counted with a Reader, which sees the stored messages, not the messages that a subscription received. The
plan's subscription `AUDIT` has no consumer, so the broker keeps all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import pulsar

from tests.support.chaos_ledger import Hop
from timewheel.client.positions import Position
from timewheel.core.envelope import ID_PROPERTY, TIMER_PROPERTY, Envelope
from timewheel.core.names import Names, parts_of
from timewheel.core.plan import Plan
from timewheel.core.topology import topology

AUDIT = "audit"
READ_TIMEOUT_MS = 10_000
EXAMPLES = 3


class Copy(NamedTuple):
    """A stored copy of a timer."""

    partition: int
    position: Position
    envelope: Envelope
    sent_ms: int  # when the producer, or the relay of the last hop, sent it; UTC milliseconds

    @property
    def lag_ms(self) -> int:
        """Time from the nominal release to the last hop; 0: the timer made no hop."""
        return self.sent_ms - self.envelope.entered_ms if self.envelope.hops else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Copies stored in a due topic."""

    stored: int  # copies in all
    on_time: int  # timers that arrived by on-time hops alone, made by any relays
    late: int  # timers that some relay, even one that was killed later, sent by the late lane at least once
    # copies beyond the first of timers that arrived by on-time hops alone (must be 0, broker-facts: exact-hops)
    extra_on_time: int
    # those among them that relays made: the same source position sent under two producer names. The other extra copies
    # had the same name and sequence id, and the broker stored them twice nevertheless.
    extra_by_relays: int
    extra_late: int  # copies beyond the first of the other timers
    # copies that a sender stored again, since it could not know the first to be stored in time (broker-facts:
    # slot-sweep), or at all (numbers-of-others); in none of the other figures
    resent: int
    dead_letters: int  # messages in the dead-letter topic
    # the longest time from a nominal release to the hop that took the timer's first copy into the due topic: the
    # largest delay of any partition of a holding topic
    lag_max_ms: int
    # some timers with extra copies on time: where and when each copy was stored, and all their hops
    examples: tuple[str, ...] = ()


NOT_COUNTED = Copies(
    stored=0,
    on_time=0,
    late=0,
    extra_on_time=0,
    extra_by_relays=0,
    extra_late=0,
    resent=0,
    dead_letters=0,
    lag_max_ms=0,
)
"""For plays without the subscription `AUDIT`."""


def count_copies(client: Any, plan: Plan, hops: Iterable[Hop], sends: Mapping[str, int]) -> Copies:
    """Read the due topic from its beginning to its end, and count."""
    dead_letters = count_dead_letters(client, plan) if plan.needs_relay else 0
    return copies_of(list(read_due_topic(client, plan)), list(hops), sends, dead_letters)


def copies_of(stored: Sequence[Copy], hops: Sequence[Hop], sends: Mapping[str, int], dead_letters: int = 0) -> Copies:
    """Count the copies in a due topic."""
    unnamed: set[str] = set()
    producers: defaultdict[tuple[str, int, int], set[str]] = defaultdict(set)
    for hop in hops:
        if hop.sequence_id:
            # A sequence id is a source position, unique in the cluster (broker-facts: exact-hops).
            producers[hop.timer_id, hop.number, hop.sequence_id].add(hop.producer)
        else:
            unnamed.add(hop.timer_id)
    several: Counter[str] = Counter()
    for (timer_id, _, _), names in producers.items():
        several[timer_id] += len(names) - 1

    hopped = {copy.envelope.timer_id for copy in stored if copy.envelope.hops}
    # A copy without a hop, although another copy came by hops, is the sender's second: it is not counted.
    found = Counter(
        copy.envelope.timer_id for copy in stored if copy.envelope.hops or copy.envelope.timer_id not in hopped
    )
    for timer_id, copies in found.items():
        found[timer_id] = max(copies - sends.get(timer_id, 1) + 1, 1)
    late = {timer_id: copies for timer_id, copies in found.items() if timer_id in unnamed}
    on_time = {timer_id: copies for timer_id, copies in found.items() if timer_id not in unnamed}
    first: dict[str, Copy] = {}
    for copy in sorted(stored, key=lambda copy: copy.sent_ms):
        first.setdefault(copy.envelope.timer_id, copy)
    return Copies(
        stored=len(stored),
        on_time=len(on_time),
        late=len(late),
        extra_on_time=sum(on_time.values()) - len(on_time),
        extra_by_relays=sum(min(copies - 1, several[timer_id]) for timer_id, copies in on_time.items()),
        extra_late=sum(late.values()) - len(late),
        resent=len(stored) - found.total(),
        dead_letters=dead_letters,
        lag_max_ms=max((copy.lag_ms for copy in first.values()), default=0),
        examples=tuple(
            _story(timer_id, stored, hops)
            for timer_id in islice((timer_id for timer_id, copies in on_time.items() if copies > 1), EXAMPLES)
        ),
    )


def _story(timer_id: str, stored: Iterable[Copy], hops: Iterable[Hop]) -> str:
    copies = [
        f"{copy.sent_ms} stored as {tuple(copy.position)} of partition {copy.partition} after {copy.envelope.hops} hops"
        for copy in stored
        if copy.envelope.timer_id == timer_id
    ]
    made = [
        f"{hop.at_ms} hop {hop.number} by {hop.pid} as {hop.producer} {hop.sequence_id}"
        for hop in hops
        if hop.timer_id == timer_id
    ]
    return f"{timer_id}: " + "; ".join(sorted(copies + made))


def count_dead_letters(client: Any, plan: Plan) -> int:
    """Count messages in the plan's dead-letter topic."""
    return sum(1 for _ in _read(client, Names(plan).dead_letter, 1))


def read_due_topic(client: Any, plan: Plan) -> Iterable[Copy]:
    """Yield every stored copy, in the order of each partition."""
    for partition, message in _read(client, plan.due_topic, plan.partitions):
        envelope = Envelope.read(message.properties())
        assert envelope is not None, f"a message without an envelope: {message.properties()}"
        yield Copy(partition, Position.of(message.message_id()), envelope, message.publish_timestamp())


def where_stored(client: Any, plan: Plan, timer_ids: Collection[str]) -> list[str]:
    """Return all stored copies of some timers, for the message of a failed test; acknowledged copies may be gone."""
    found = []
    for spec in topology(plan, 0).topics:
        for partition, message in _read(client, spec.name, spec.partitions):
            properties = message.properties()
            if properties.get(ID_PROPERTY) in timer_ids:
                position = tuple(Position.of(message.message_id()))
                topic = spec.parts[partition].rsplit("/", 1)[1]
                found.append(f"{properties[ID_PROPERTY]} {topic} {position} {properties[TIMER_PROPERTY]}")
    return sorted(found)


def _read(client: Any, topic: str, partitions: int) -> Iterator[tuple[int, Any]]:
    for partition, name in enumerate(parts_of(topic, partitions)):
        reader = client.create_reader(name, pulsar.MessageId.earliest)
        try:
            while reader.has_message_available():
                yield partition, reader.read_next(READ_TIMEOUT_MS)
        finally:
            reader.close()
