"""The results of a verification of a shadow's audit, as values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from timewheel.client.positions import EntryPosition
from timewheel.core.plan import Plan
from timewheel.inspect.doctor import Unread
from timewheel.shadow.machine.audit import Place, Trouble, Wrong
from timewheel.shadow.machine.states import DesiredState

SHOWN = 20
"""Troubles of each kind and partition that are listed individually."""


class Stuck(NamedTuple):
    """A partition that makes no progress.

    Args:
        topic: Its full name.
        head: Position of its first entry.
        late_ms: How long ago that entry should have moved on.
    """

    topic: str
    head: EntryPosition
    late_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAudit:
    """The audit of a partition.

    Args:
        topic: Its full name.
        entries: Entries stored behind the lowest mark-delete position.
        read: Of these, those that the broker has delivered: it does not deliver its own entries.
        acked: Of those, those that every subscription has acknowledged.
        decisions: The others, by decision.
        is_caught_up: The mover has processed the backlog.
        journal: Copies that the journal holds.
        places: Copies by place.
        troubles: Timers with the same defect at every snapshot.
        memory_bytes: Most memory for the copies.
    """

    topic: str
    entries: int
    read: int
    acked: int
    decisions: Mapping[str, int]
    is_caught_up: bool
    journal: int
    places: Mapping[Place, int]
    troubles: tuple[Trouble, ...]
    memory_bytes: int

    @property
    def wrong(self) -> Mapping[Wrong, int]:
        """Number of timers by defect."""
        counts = Counter(one.wrong for one in self.troubles)
        return {wrong: counts[wrong] for wrong in Wrong}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The audit of a plan.

    Args:
        plan: The plan.
        at_ms: When the last snapshot began, UTC milliseconds.
        desired: The desired state.
        looks: More than 1: a defect was suspected, and checked again.
        parts: By partition.
        missing: Topics of the plan that do not exist.
        stuck: Partitions that had the same head at every snapshot, though it should have moved on long ago.
        unread: Topics that could not be read: timers that wait there count as lost.
    """

    plan: Plan
    at_ms: int
    desired: DesiredState
    looks: int
    parts: tuple[PartitionAudit, ...]
    missing: tuple[str, ...] = ()
    stuck: tuple[Stuck, ...] = ()
    unread: tuple[Unread, ...] = ()

    @property
    def is_balanced(self) -> bool:
        """True if no timer has a defect, and no partition is stuck."""
        return not self.stuck and not any(part.troubles for part in self.parts)

    @property
    def wrong(self) -> Mapping[Wrong, int]:
        """Number of timers by defect, over all partitions."""
        return {wrong: sum(part.wrong[wrong] for part in self.parts) for wrong in Wrong}


def verification_facts(found: Verification) -> dict[str, Any]:
    """Return a verification as plain values, for JSON."""
    return {
        "due_topic": found.plan.due_topic,
        "at_ms": found.at_ms,
        "state": found.desired.state.value,
        "since_ms": found.desired.since_ms,
        "is_balanced": found.is_balanced,
        "looks": found.looks,
        "missing": list(found.missing),
        "stuck": [{"topic": one.topic, "head": one.head.text, "late_ms": one.late_ms} for one in found.stuck],
        "unseen": [{"what": one.subject, "source": one.source.value, "reason": one.reason} for one in found.unread],
        **{wrong.value: count for wrong, count in found.wrong.items()},
        "partitions": [
            {
                "topic": part.topic,
                "entries": part.entries,
                "read": part.read,
                "acked": part.acked,
                "decisions": dict(part.decisions),
                "is_caught_up": part.is_caught_up,
                "journal": part.journal,
                "places": {place.name.lower(): count for place, count in part.places.items()},
                "memory_bytes": part.memory_bytes,
                **{wrong.value: count for wrong, count in part.wrong.items()},
                "troubles": [_trouble(one) for one in shown(part)],
            }
            for part in found.parts
        ],
    }


def shown(part: PartitionAudit) -> list[Trouble]:
    """Return some troubles of each kind."""
    return [one for wrong in Wrong for one in [each for each in part.troubles if each.wrong is wrong][:SHOWN]]


def _trouble(one: Trouble) -> dict[str, Any]:
    return {
        "wrong": one.wrong.value,
        "due_ms": one.due_ms or None,
        "original": None if one.original is None else one.original.text,
        "copy": None if one.copy is None else one.copy.text,
    }
