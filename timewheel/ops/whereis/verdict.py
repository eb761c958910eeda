"""What came of the search for a timer, as values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, unique

from timewheel.admin.internals import EntryPosition
from timewheel.core.cut_offs import CutOff
from timewheel.core.envelope import Envelope
from timewheel.ops.gaps.looking import Unseen
from timewheel.ops.whereis.itinerary import Stop
from timewheel.ops.whereis.reading import Cost, Partition, Seen
from timewheel.ops.whereis.wanted import Wanted

__all__ = ["Searched", "Sighting", "State", "Whereabouts"]


@unique
class State(Enum):
    """Where a timer is."""

    HELD = "held"
    """In a holding topic."""
    DUE = "due"
    """In a due topic, and not every subscription has acknowledged it: it waits, or a consumer has it in hand."""
    HANDLED = "handled"
    """Every subscription has acknowledged it, and none has it parked, or about to be tried again."""
    RETRYING = "retrying"
    """A subscription's handler has not handled it: its next attempt waits in the subscription's own topic."""
    PARKED = "parked"
    """A subscription has given it up: it waits for an operator."""
    REMOVED = "removed"
    """Nothing is stored any more of the time when it was in its due topic: it was handled, if it was ever sent, and if
    relays were on time then."""
    CANCELLED = "cancelled"
    """It was cancelled or replaced: what is left of it is dropped on its way, and handed out nowhere any more. If
    nothing is left of it, only its id is known: then it was handled only if the cancel came too late."""
    DEAD = "dead"
    """In the dead-letter topic."""
    NOT_FOUND = "not_found"
    """It was never sent so, or it takes a way that the plan does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """An entry with the timer in it.

    Args:
        topic: Full name of the partition.
        position: Of the entry.
        envelope: The timer's, as it lies there.
        published_ms: When the entry was published, UTC milliseconds.
        waits_for: Subscriptions that have not acknowledged it.
        done_by: Those that have.
        is_due: It is a due topic.
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
        """As one entry of a partition shows it, to subscriptions that have acknowledged it or not."""
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
        topic: Its full name.
        entered_ms: Where in it: about the entries of this time.
        reads: Entries that were looked at for that.
        found: It was there.
        is_before_all: What is stored there begins later.
    """

    topic: str
    entered_ms: int
    reads: int
    found: bool
    is_before_all: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Where a timer is.

    Args:
        wanted: Which one.
        at_ms: When it was looked for, UTC milliseconds.
        state: In short.
        here: The entry that it is in now; None: it was not found.
        sightings: All entries in which it was seen on the way, the last one at the end.
        way: From its send to its due topic, if its due time is known: past and coming stops.
        reason: Of a dead letter; why the search ended before all was looked at; or what may be known besides.
        cut_off: By which it is cancelled or replaced: the copy that was seen last, or, if none was seen, whatever was
            sent under its id before the cut. None: it is not, or nobody looked.
        searched: What was looked at, in order.
        unseen: What could not be looked at.
        cost: Of it all.
    """

    wanted: Wanted
    at_ms: int
    state: State
    here: Sighting | None
    sightings: tuple[Sighting, ...]
    way: tuple[Stop, ...]
    reason: str | None
    cut_off: CutOff | None
    searched: tuple[Searched, ...]
    unseen: tuple[Unseen, ...]
    cost: Cost

    @property
    def due_ms(self) -> int | None:
        """When it is due, as its envelope says, or else whoever asked; None: nobody said it."""
        seen = self.sightings[-1].envelope.due_ms if self.sightings else None
        return self.wanted.due_ms if seen is None else seen
