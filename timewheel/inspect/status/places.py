"""Status of a plan's topics at a moment, as values, by stretches of due times that grow with their distance: pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from timewheel.client.positions import EntryPosition
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.names import RELAY_CONSUMER, partition_of
from timewheel.core.plan import Plan
from timewheel.core.topology import FormerTopic
from timewheel.inspect.gaps.snapshot import Unseen
from timewheel.provision.former_findings import left_behind


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of timers.

    Args:
        count: The number; an estimate if `error` is not 0.
        error: Error of `count` at 95 %; 0 if exact.
    """

    count: float = 0.0
    error: float = 0.0

    def __add__(self, other: Amount) -> Amount:
        """Add an amount that was sampled independently."""
        return Amount(self.count + other.count, (self.error**2 + other.error**2) ** 0.5)

    @property
    def text(self) -> str:
        """The amount as "2,937", or "2,937 +- 12"."""
        return f"{self.count:,.0f}" + (f" +- {self.error:,.0f}" if self.error else "")

    def counted(self, noun: str, several: str | None = None) -> str:
        """Return the amount with its noun, as `timewheel.core.plurals.counted` does; an estimate takes the plural."""
        return f"{self.text} {noun if self.text == '1' else several or f'{noun}s'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A stretch of due times.

    Args:
        name: ``overdue``, ``next minute``, ``next hour``, ``next day``, ``day 2`` (the second from now), ...
        from_ms: First due time, UTC milliseconds; None if unbounded.
        until_ms: End of the stretch, exclusive.
    """

    name: str
    from_ms: int | None
    until_ms: int


class Horizon:
    """The stretches from a moment on.

    Args:
        now_ms: The moment, UTC milliseconds.
        longest_ms: Longest time ahead at which timers can be due.
    """

    def __init__(self, now_ms: int, longest_ms: int) -> None:
        days = max(-(-longest_ms // DAY_MS), 1)
        ends = [0, MINUTE_MS, HOUR_MS, *(day * DAY_MS for day in range(1, days + 1))]
        names = ["overdue", "next minute", "next hour", "next day", *(f"day {day}" for day in range(2, days + 1))]
        self._ends = [now_ms + end for end in ends]
        self.buckets = tuple(
            Bucket(name=name, from_ms=None if not number else self._ends[number - 1], until_ms=self._ends[number])
            for number, name in enumerate(names)
        )

    def number_of(self, due_ms: int) -> int:
        """Return the number of a due time's stretch; later due times count to the last stretch."""
        return min(bisect_right(self._ends, due_ms), len(self._ends) - 1)

    def numbers_of(self, first_ms: int, until_ms: int) -> range:
        """Return the numbers of the stretches that due times from the first to before the second moment are in."""
        return range(self.number_of(first_ms), self.number_of(until_ms - 1) + 1)


Kind = Literal["tier", "slot", "due", "retry", "intake", "journal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The first unacknowledged entry of a partition with a timer: a relay's probe may be before it.

    Args:
        position: Position of the entry.
        due_ms: Due time of its first timer, UTC milliseconds.
        leaves_ms: Release from a holding topic, entry into the intake or the journal, or due time in a due topic, UTC
            milliseconds.
        late_ms: Time since then; 0 if it is in the future.
    """

    position: EntryPosition
    due_ms: int
    leaves_ms: int
    late_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayHold:
    """A consumer of a partition.

    Args:
        name: Name of the consumer, which contains the id of a relay.
        address: Address of its connection.
        is_active: True if it receives the messages (on a Failover subscription, only one consumer does).
        unacked: Messages that it has in flight.
    """

    name: str
    address: str
    is_active: bool
    unacked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceStatus:
    """Status of a partition of the plan.

    Args:
        topic: Full name, with the partition's suffix.
        kind: Kind of the topic.
        subscription: Subscription whose acknowledgements count; of several, that with the largest backlog.
        entries: Unacknowledged entries; a batch is a single entry.
        timers: Timers in these entries.
        by_stretch: Timers by due time, for each stretch of the horizon.
        cancelled: Timers known to be cancelled or replaced.
        head: The first entry; None if the partition is drained, or the entry was removed before it was read.
        consumers: Connected consumers of the subscription.
        begins_anew: True if no consumer is connected, and a relay was a moment ago.
    """

    topic: str
    kind: Kind
    subscription: str
    entries: int
    timers: Amount
    by_stretch: tuple[Amount, ...]
    cancelled: Amount
    head: Head | None
    consumers: tuple[RelayHold, ...]
    begins_anew: bool = False

    @property
    def is_held(self) -> bool:
        """True if relays move the timers of this topic."""
        return self.is_entrance or self.kind in ("tier", "slot")

    @property
    def is_entrance(self) -> bool:
        """True if the timers of this topic move at once."""
        return self.kind in ("intake", "journal")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatus:
    """Sums over all partitions of a topic; the lateness is that of the latest head."""

    topic: str
    kind: Kind
    entries: int
    timers: Amount
    by_stretch: tuple[Amount, ...]
    late_ms: int
    consumers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Status of a plan at a moment.

    Args:
        plan: The plan.
        at_ms: Start of the read, UTC milliseconds.
        horizon: Stretches of due times from then on.
        places: Every existing partition that could be read.
        missing: Missing topics of the plan, and missing partitions of others.
        dead_letters: Unacknowledged entries in the dead-letter topic; None if it does not exist or could not be read.
        parked: The same for the topics of parked timers, over all subscriptions.
        former: Topics of earlier plans with a backlog; not included in ``places``.
        read: Entries read.
        knows_cancelled: True if the cancelled timers are known.
        unseen: Topics that could not be read.
    """

    plan: Plan
    at_ms: int
    horizon: Horizon
    places: tuple[PlaceStatus, ...]
    missing: tuple[str, ...]
    dead_letters: int | None
    parked: int | None
    former: tuple[FormerTopic, ...]
    read: int
    knows_cancelled: bool
    unseen: tuple[Unseen, ...]

    @property
    def timers(self) -> Amount:
        """All timers."""
        return summed(place.timers for place in self.places)

    @property
    def cancelled(self) -> Amount | None:
        """Timers known to be cancelled or replaced; None if unknown."""
        return summed(place.cancelled for place in self.places) if self.knows_cancelled else None

    @property
    def former_entries(self) -> int:
        """Entries that wait in topics of earlier plans; a batch is a single entry."""
        return sum(topic.backlog for topic in self.former)

    def by_stretch(self) -> tuple[Amount, ...]:
        """Return all timers by due time."""
        return _columns(self.places, len(self.horizon.buckets))

    def topics(self) -> tuple[TopicStatus, ...]:
        """Return the status by topic, in the order of the plan: the longest stays first."""
        found: defaultdict[str, list[PlaceStatus]] = defaultdict(list)
        for place in self.places:
            found[partition_of(place.topic)[0]].append(place)
        return tuple(
            TopicStatus(
                topic=topic,
                kind=parts[0].kind,
                entries=sum(part.entries for part in parts),
                timers=summed(part.timers for part in parts),
                by_stretch=_columns(parts, len(self.horizon.buckets)),
                late_ms=max(_late_ms(part) for part in parts),
                consumers=len({consumer.name for part in parts for consumer in part.consumers}),
            )
            for topic, parts in found.items()
        )

    @property
    def relay_late_ms(self) -> int:
        """Time since the latest head of a holding topic should have left it; 0 if all are on time."""
        return max((_late_ms(place) for place in self.places if place.is_held), default=0)

    def relays(self) -> dict[str, tuple[PlaceStatus, ...]]:
        """Return the partitions of holding topics that each connected relay reads, by relay id."""
        found: defaultdict[str, list[PlaceStatus]] = defaultdict(list)
        for place in self.places:
            if place.is_held:
                for consumer in place.consumers:
                    if consumer.is_active:
                        found[_relay_of(consumer.name)].append(place)
        return {name: tuple(found[name]) for name in sorted(found)}

    def late(self, limit_ms: int = 0) -> tuple[PlaceStatus, ...]:
        """Return the partitions whose head is later than a limit."""
        return tuple(place for place in self.places if _late_ms(place) > limit_ms)

    def unattended(self, limit_ms: int = 0) -> tuple[PlaceStatus, ...]:
        """Return the partitions of holding topics whose head is later than a limit, and that have no connected relay.

        The intake and the journal are without a limit: their timers move at once.
        """
        return tuple(
            place
            for place in self.places
            if place.is_held and not place.consumers and _late_ms(place) > (0 if place.is_entrance else limit_ms)
        )


def _relay_of(consumer: str) -> str:
    match = RELAY_CONSUMER.fullmatch(consumer)
    return match[1] if match else consumer


def summed(amounts: Iterable[Amount]) -> Amount:
    """Add amounts that were sampled independently."""
    return sum(amounts, Amount())


def _columns(places: Iterable[PlaceStatus], stretches: int) -> tuple[Amount, ...]:
    listed = list(places)
    return tuple(summed(place.by_stretch[number] for place in listed) for number in range(stretches))


def _late_ms(place: PlaceStatus) -> int:
    return 0 if place.head is None else place.head.late_ms


def status_facts(found: Status) -> dict[str, Any]:
    """Return everything known about a plan."""
    horizon = found.horizon
    return {
        "due_topic": found.plan.due_topic,
        "at_ms": found.at_ms,
        "timers": _amount(found.timers),
        "cancelled": None if found.cancelled is None else _amount(found.cancelled),
        "horizon": _stretches(found.by_stretch(), horizon, empty=True),
        "topics": [
            {
                "topic": one.topic,
                "kind": one.kind,
                "entries": one.entries,
                "timers": _amount(one.timers),
                "horizon": _stretches(one.by_stretch, horizon),
                "late_ms": one.late_ms,
                "consumers": one.consumers,
            }
            for one in found.topics()
        ],
        "partitions": [_place(place, horizon) for place in found.places],
        "relay_late_ms": found.relay_late_ms,
        "relays": {name: [place.topic for place in places] for name, places in found.relays().items()},
        "unattended": [place.topic for place in found.unattended()],
        "dead_letters": found.dead_letters,
        "parked": found.parked,
        "former": [
            {"topic": one.name, "entries": one.backlog, "left_behind": one in left_behind(found.plan, found.former)}
            for one in found.former
        ],
        "missing": list(found.missing),
        "read": found.read,
        "unseen": [asdict(one) for one in found.unseen],
    }


def _place(place: PlaceStatus, horizon: Horizon) -> dict[str, Any]:
    head = place.head
    return {
        "topic": place.topic,
        "kind": place.kind,
        "subscription": place.subscription,
        "entries": place.entries,
        "timers": _amount(place.timers),
        "horizon": _stretches(place.by_stretch, horizon),
        "head": None
        if head is None
        else {
            "position": head.position.text,
            "due_ms": head.due_ms,
            "leaves_ms": head.leaves_ms,
            "late_ms": head.late_ms,
        },
        "consumers": [asdict(one) for one in place.consumers],
    }


def _stretches(amounts: tuple[Amount, ...], horizon: Horizon, *, empty: bool = False) -> list[dict[str, Any]]:
    return [
        {"name": bucket.name, "from_ms": bucket.from_ms, "until_ms": bucket.until_ms, **_amount(amount)}
        for bucket, amount in zip(horizon.buckets, amounts, strict=True)
        if empty or amount.count or amount.error
    ]


def _amount(amount: Amount) -> dict[str, int]:
    return {"count": round(amount.count), "error": round(amount.error)}
