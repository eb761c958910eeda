"""Result of the search for a timer, as values, and for JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum, unique
from typing import Any

from timewheel.client.positions import EntryPosition
from timewheel.core.cancellations import Cancellation
from timewheel.core.envelope import Envelope
from timewheel.inspect.gaps.snapshot import Unseen
from timewheel.inspect.whereis.itinerary import Stop, Wanted
from timewheel.inspect.whereis.reading import Cost, Partition, Seen


@unique
class State(Enum):
    """State of a timer."""

    HELD = "held"
    """The timer is in a holding topic."""
    DUE = "due"
    """The timer is in a due topic, and not every subscription has acknowledged it: it waits or is in flight."""
    HANDLED = "handled"
    """Every subscription has acknowledged the timer, and it is neither parked nor waiting for a retry."""
    RETRYING = "retrying"
    """A subscription's handler has not handled the timer: its next attempt waits in the subscription's retry topic."""
    PARKED = "parked"
    """A subscription has given the timer up: it waits for an operator."""
    REMOVED = "removed"
    """No entry is stored any more from the time when it was in its due topic: it was handled, if it was ever sent, and
    if relays were on time then.
    """
    CANCELLED = "cancelled"
    """The timer was cancelled or replaced: remaining copies are dropped on their way, and no longer delivered. Without
    a remaining copy only the id is known; in that case it was handled only if the cancel came too late.
    """
    DEAD = "dead"
    """The timer is in the dead-letter topic."""
    NOT_FOUND = "not_found"
    """The timer was never sent with this id or time, or its way does not follow from the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """An entry that contains the timer.

    Args:
        topic: Full name of the partition.
        position: Position of the entry.
        envelope: The stored envelope of the timer.
        published_ms: Publish time of the entry, UTC milliseconds.
        waits_for: Subscriptions that have not acknowledged it.
        done_by: Subscriptions that have acknowledged it.
        is_due: True for a due topic.
    """

    topic: str
    position: EntryPosition
    envelope: Envelope
    published_ms: int
    waits_for: tuple[str, ...]
    done_by: tuple[str, ...]
    is_due: bool

    @classmethod
    def of(
        cls, partition: Partition, seen: Seen, envelope: Envelope, subscriptions: Iterable[str], *, is_due: bool = False
    ) -> Sighting:
        """Create a sighting from an entry, and determine the subscriptions that have acknowledged it."""
        done = {name: partition.acknowledged_by(seen.position, name) for name in subscriptions}
        return cls(
            topic=partition.name,
            position=seen.position,
            envelope=envelope,
            published_ms=seen.publish_ms,
            waits_for=tuple(name for name, is_done in done.items() if not is_done),
            done_by=tuple(name for name, is_done in done.items() if is_done),
            is_due=is_due,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """A partition that was searched.

    Args:
        topic: Full name of the partition.
        entered_ms: Time whose entries were searched.
        reads: Entries read.
        found: True if the timer was found.
        is_before_all: True if the stored entries begin later.
    """

    topic: str
    entered_ms: int
    reads: int
    found: bool
    is_before_all: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Whereabouts of a timer.

    Args:
        wanted: The timer.
        at_ms: Time of the search, UTC milliseconds.
        state: State of the timer.
        here: The entry that contains it now; None if it was not found.
        sightings: All entries on its way that contain it, in order.
        way: Past and future stops from its send to its due topic, if its due time is known.
        reason: Reason of a dead letter, reason why the search ended early, or a remark.
        cancellation: Cancellation that cancels or replaces the last copy that was seen, or, if none was seen,
            everything sent under its id before the cut. None if no cancellation applies, or cancellations are unknown.
        searched: Partitions that were searched, in order.
        unseen: Topics that could not be read.
        cost: Cost of the search.
    """

    wanted: Wanted
    at_ms: int
    state: State
    here: Sighting | None
    sightings: tuple[Sighting, ...]
    way: tuple[Stop, ...]
    reason: str | None
    cancellation: Cancellation | None
    searched: tuple[Searched, ...]
    unseen: tuple[Unseen, ...]
    cost: Cost

    @property
    def due_ms(self) -> int | None:
        """Due time from its envelope, or else from the caller; None if it is not known to the millisecond."""
        seen = self.sightings[-1].envelope.due_ms if self.sightings else None
        return self.wanted.exact_due_ms if seen is None else seen


def whereabouts_facts(found: Whereabouts) -> dict[str, Any]:
    """Return everything known about a timer."""
    sent, cancellation = found.wanted.sent, found.cancellation
    return {
        "timer_id": found.wanted.timer_id,
        "at_ms": found.at_ms,
        "state": found.state.value,
        "sent_from_ms": sent.first_ms if found.wanted.knows_sent else None,
        "sent_to_ms": sent.last_ms if found.wanted.knows_sent else None,
        "due_ms": found.due_ms,
        "here": None if found.here is None else _sighting(found.here),
        "seen": [_sighting(one) for one in found.sightings],
        "way": [
            {
                "topic": stop.topic,
                "enters_ms": stop.entered.first_ms,
                "leaves_ms": stop.leaves_ms,
                "is_due_topic": stop.is_due,
            }
            for stop in found.way
        ],
        "reason": found.reason,
        "cancellation": None
        if cancellation is None
        else {cancellation.kind: cancellation.name, "cut": cancellation.cut, "forget_ms": cancellation.forget_ms},
        "searched": [asdict(one) for one in found.searched],
        "unseen": [asdict(one) for one in found.unseen],
        **asdict(found.cost),
    }


def _sighting(one: Sighting) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "position": one.position.text,
        "published_ms": one.published_ms,
        "entered_ms": one.envelope.entered_ms,
        "hops": one.envelope.hops,
        "generation": one.envelope.generation,
        "revision": one.envelope.revision,
        "waits_for": list(one.waits_for),
        "done_by": list(one.done_by),
    }
