"""How the topics of a plan stand at one moment, as values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from timewheel.admin.internals import EntryPosition
from timewheel.core.former_topics import FormerTopic
from timewheel.core.names import RELAY_CONSUMER, partition_of
from timewheel.core.plan import Plan
from timewheel.ops.gaps.looking import Unseen
from timewheel.ops.status.horizon import Amount, Horizon

__all__ = ["Head", "PlaceStatus", "RelayHold", "Status", "TopicStatus", "summed"]

Kind = Literal["tier", "slot", "due", "retry", "intake", "journal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The first entry of a partition with a timer that is not acknowledged: a relay's probe may lie before it.

    Args:
        position: Where it lies.
        due_ms: Of its first timer, UTC milliseconds.
        leaves_ms: Its release from a holding topic, its entry into the intake or the journal, or its due time in a due
            topic.
        late_ms: How long ago that was; 0: it is to come.
    """

    position: EntryPosition
    due_ms: int
    leaves_ms: int
    late_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayHold:
    """A consumer of one partition.

    Args:
        name: Its name, which for relays has their id.
        address: Of its connection.
        is_active: It gets the messages (of a Failover subscription one does).
        unacked: Messages that it has in hand.
    """

    name: str
    address: str
    is_active: bool
    unacked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceStatus:
    """One partition of one topic of the plan.

    Args:
        topic: Its full name, with the partition's suffix.
        kind: What it is for.
        subscription: Whose acknowledgements count; of several that with the most left.
        entries: Not acknowledged; a batch is one entry.
        timers: In these.
        by_stretch: The same by due time, for each stretch of the horizon.
        cancelled: Those of them that are known to be cancelled or replaced.
        head: The first of them; None: there is none, or it was gone when it was looked at.
        consumers: That are connected to that subscription.
        begins_anew: None is, and a relay was a moment ago.
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
        """Whether relays move on what is in it."""
        return self.is_entrance or self.kind in ("tier", "slot")

    @property
    def is_entrance(self) -> bool:
        """Whether what is in it moves on at once."""
        return self.kind in ("intake", "journal")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatus:
    """All partitions of a topic together; the latest head of them."""

    topic: str
    kind: Kind
    entries: int
    timers: Amount
    by_stretch: tuple[Amount, ...]
    late_ms: int
    consumers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """A plan at one moment.

    Args:
        plan: Whose.
        at_ms: When the look began, UTC milliseconds.
        horizon: From then on.
        places: Every partition that is there and can be seen.
        missing: Topics of the plan that are not there, and partitions of others.
        dead_letters: Entries in the dead-letter topic that nobody has dealt with; None: it is not there, or not seen.
        parked: The same of the topics in which timers are parked, of all subscriptions together.
        former: Topics of earlier plans in which something waits; none of it is in ``places``.
        read: Entries that were looked at.
        knows_cancelled: It was known which timers are cancelled.
        unseen: What could not be looked at.
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
        """All of them."""
        return summed(place.timers for place in self.places)

    @property
    def cancelled(self) -> Amount | None:
        """Those of them that are known to be cancelled or replaced; None: it was not looked at."""
        return summed(place.cancelled for place in self.places) if self.knows_cancelled else None

    @property
    def former_entries(self) -> int:
        """That wait in topics of earlier plans; a batch is one entry."""
        return sum(topic.backlog for topic in self.former)

    def by_stretch(self) -> tuple[Amount, ...]:
        """All of them, by due time."""
        return _columns(self.places, len(self.horizon.buckets))

    def topics(self) -> tuple[TopicStatus, ...]:
        """By topic, in the order of the plan: where timers wait longest first."""
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
        """How long ago the latest head of a holding topic should have left it; 0: all are on time."""
        return max((_late_ms(place) for place in self.places if place.is_held), default=0)

    def relays(self) -> dict[str, tuple[PlaceStatus, ...]]:
        """The partitions of holding topics that each connected relay has, by its id."""
        found: defaultdict[str, list[PlaceStatus]] = defaultdict(list)
        for place in self.places:
            if place.is_held:
                for consumer in place.consumers:
                    if consumer.is_active:
                        found[_relay_of(consumer.name)].append(place)
        return {name: tuple(found[name]) for name in sorted(found)}

    def unattended(self) -> tuple[PlaceStatus, ...]:
        """Partitions of holding topics whose head is late, and to which no relay is connected."""
        return tuple(place for place in self.places if place.is_held and _late_ms(place) > 0 and not place.consumers)


def _relay_of(consumer: str) -> str:
    match = RELAY_CONSUMER.fullmatch(consumer)
    return match[1] if match else consumer


def summed(amounts: Iterable[Amount]) -> Amount:
    """The sum of amounts that were drawn apart."""
    return sum(amounts, Amount())


def _columns(places: Iterable[PlaceStatus], stretches: int) -> tuple[Amount, ...]:
    listed = list(places)
    return tuple(summed(place.by_stretch[number] for place in listed) for number in range(stretches))


def _late_ms(place: PlaceStatus) -> int:
    return 0 if place.head is None else place.head.late_ms
