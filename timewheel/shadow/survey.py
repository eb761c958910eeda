"""The results of a survey of a topic, as values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from timewheel.core.durations import format_duration
from timewheel.core.plan import Plan
from timewheel.core.steps import spare_ms
from timewheel.inspect.doctor import Finding
from timewheel.shadow.curing import Excess
from timewheel.shadow.machine.move_decider import MoveDecision
from timewheel.shadow.refusing import is_refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A number of entries, and the bytes of their payloads; estimated if a partition was not read as a whole."""

    entries: int
    size_bytes: int

    def __add__(self, other: Amount) -> Amount:
        return Amount(entries=self.entries + other.entries, size_bytes=self.size_bytes + other.size_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSurvey:
    """A subscription of a partition.

    Args:
        name: Its name.
        type: ``Shared``, ...; ``None`` (a text): no consumer is connected.
        pending: Entries that it has not acknowledged.
        acked: Entries behind its mark-delete position that it has acknowledged.
        gaps: Gaps now, by the broker's count.
        gaps_after: Gaps once all moved entries are acknowledged.
    """

    name: str
    type: str
    pending: int
    acked: int
    gaps: int
    gaps_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSurvey:
    """A partition.

    Args:
        topic: Its full name.
        entries: Entries behind the lowest mark-delete position.
        read: Number of them that were read.
        is_whole: All were read: figures are exact, as of the moment of the survey.
        subscriptions: The users' subscriptions.
        decisions: Entries that any subscription has pending, by decision.
    """

    topic: str
    entries: int
    read: int
    is_whole: bool
    subscriptions: tuple[SubscriptionSurvey, ...]
    decisions: Mapping[str, Amount]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Delays of the pending entries that were read, from publish to delivery, milliseconds."""

    p50_ms: int
    p90_ms: int
    p99_ms: int
    longest_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Estimated costs of the mover.

    Args:
        memory_bytes: Memory of its process.
        entries_per_s: Rate at which entries were read just now.
        catch_up_ms: Time to read all entries and to move those that are moved.
        writes: Mean writes for each moved timer: into the journal, from hold to hold, back into the topic.
    """

    memory_bytes: int
    entries_per_s: float
    catch_up_ms: int
    writes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A topic before any timer moves.

    Args:
        plan: The plan for its shadow.
        at_ms: Time of the survey, UTC milliseconds.
        far_ms: Remaining time from which an entry is moved.
        gap_limit: The broker's limit.
        parts: By partition.
        delays: None: no entry that was read has a delay.
        cost: None: no entry could be read.
        findings: Obstacles, and facts worth knowing; the worst first.
        excess: Gaps beyond the limit that the shadow would leave; None: there are none.
        fitting: The plan itself, or with the longest shorter window that leaves so few gaps that the broker keeps them
            with room to spare; None: no window does.
        native_per_hour: Number of delayed messages an hour that are sent too short before they are due to be moved.
        native_seen_ms: Time over which these were counted: since the oldest pending entry was sent.
        gaps_with: Gaps of the worst subscription once the shadow has caught up, with the next shorter and the next
            longer window, by the window, milliseconds.
    """

    plan: Plan
    at_ms: int
    far_ms: int
    gap_limit: int
    parts: tuple[PartSurvey, ...]
    delays: Delays | None
    cost: Cost | None
    findings: tuple[Finding, ...]
    excess: Excess | None = None
    fitting: Plan | None = None
    native_per_hour: float = 0.0
    native_seen_ms: int = 0
    gaps_with: Mapping[int, int] = field(default_factory=dict)

    @property
    def is_refused(self) -> bool:
        """True if the shadow is refused."""
        return is_refused(self.findings)

    @property
    def is_whole(self) -> bool:
        """True if every entry was read."""
        return all(part.is_whole for part in self.parts)

    @property
    def decisions(self) -> Mapping[str, Amount]:
        """Entries by decision, over all partitions."""
        return summed(part.decisions for part in self.parts)

    @property
    def moved(self) -> Amount:
        """Entries that would be moved now."""
        return self.decisions.get(MoveDecision.MOVE.value, Amount(entries=0, size_bytes=0))


def summed(every: Iterable[Mapping[str, Amount]]) -> dict[str, Amount]:
    """Sum amounts by decision over several partitions, the largest first."""
    found: dict[str, Amount] = {}
    for decisions in every:
        for name, amount in decisions.items():
            found[name] = found[name] + amount if name in found else amount
    return dict(sorted(found.items(), key=lambda one: -one[1].entries))


def survey_facts(found: Survey) -> dict[str, Any]:
    """Return a survey as plain values, for JSON."""
    delays, cost = found.delays, found.cost
    return {
        "due_topic": found.plan.due_topic,
        "at_ms": found.at_ms,
        "is_refused": found.is_refused,
        "is_whole": found.is_whole,
        "far_ms": found.far_ms,
        "spare_ms": spare_ms(found.plan),
        "native_per_hour": round(found.native_per_hour),
        "native_seen_ms": found.native_seen_ms,
        "gaps_after_with": {format_duration(window_ms): gaps for window_ms, gaps in found.gaps_with.items()},
        "gap_limit": found.gap_limit,
        "decisions": {name: _amount(amount) for name, amount in found.decisions.items()},
        "delays_ms": None
        if delays is None
        else {"p50": delays.p50_ms, "p90": delays.p90_ms, "p99": delays.p99_ms, "longest": delays.longest_ms},
        "estimates": None
        if cost is None
        else {
            "memory_bytes": cost.memory_bytes,
            "entries_per_s": round(cost.entries_per_s),
            "catch_up_ms": cost.catch_up_ms,
            "writes_per_moved": round(cost.writes, 2),
        },
        "partitions": [
            {
                "topic": part.topic,
                "entries": part.entries,
                "read": part.read,
                "is_whole": part.is_whole,
                "decisions": {name: _amount(amount) for name, amount in part.decisions.items()},
                "subscriptions": [
                    {
                        "name": one.name,
                        "type": one.type,
                        "pending": one.pending,
                        "acked": one.acked,
                        "gaps": one.gaps,
                        "gaps_after": one.gaps_after,
                    }
                    for one in part.subscriptions
                ],
            }
            for part in found.parts
        ],
        "findings": [
            {
                "slug": one.slug,
                "severity": one.severity.word,
                "subject": one.subject,
                "read": one.read,
                "why": one.why,
                "cure": one.cure,
            }
            for one in found.findings
        ],
    }


def _amount(amount: Amount) -> dict[str, int]:
    return {"entries": amount.entries, "bytes": amount.size_bytes}
