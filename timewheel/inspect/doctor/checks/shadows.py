"""Checks of a due topic with an intake: whether a shadow moves as desired, and the obstacles."""

from __future__ import annotations

import re
from collections.abc import Iterator

from timewheel.broker.admin.parts import relays_of
from timewheel.core.durations import HOUR_MS, span, spelled
from timewheel.core.escapes import pulsar_admin, timewheel_command
from timewheel.core.plan import Plan
from timewheel.core.plurals import counted
from timewheel.core.routing import Router
from timewheel.core.steps import far_ms
from timewheel.inspect.doctor.check import Check
from timewheel.inspect.doctor.finding import Finding, Kind, Severity
from timewheel.inspect.doctor.seen import Part, Seen, SeenTopic, Source
from timewheel.inspect.shadowed import MOVING, UNDER_WAY, mover_in

NOBODY_MOVES = Kind(
    slug="nobody-moves",
    severity=Severity.ERROR,
    why="Moved timers do not move on, and timers far from due stay in the due topic and make gaps there.",
    do="Start, pause or abort the shadow by a command.",
)
JOURNAL_OLD = Kind(
    slug="journal-is-old",
    severity=Severity.WARNING,
    why="A message that is never acknowledged pins the due topic: the journal grows, and is repeated at each load.",
    do="Find the message, and handle or acknowledge it.",
)
UNNAMED_SUBSCRIPTION = Kind(
    slug="unnamed-subscription",
    severity=Severity.WARNING,
    why="A shadow moves only timers that wait on every subscription; an unread subscription pins its journal for ever.",
    do="Write the subscription into the plan, or remove it.",
)
MOVERS_DIFFER = Kind(
    slug="movers-differ",
    severity=Severity.WARNING,
    why="A mover with another plan sends timers another way: timers that both have met are stored twice.",
    do="Give all processes that move these timers the same plan file.",
)
JOURNAL_REMOVED = Kind(
    slug="journal-removed",
    severity=Severity.ERROR,
    why="Acknowledged originals whose copies had not moved on yet are lost with the journal; no timer is moved.",
    do="Start the shadow again; search the due topic for lost timers.",
)
COMPACTED = Kind(
    slug="compacted-due-topic",
    severity=Severity.WARNING,
    why="Compaction keeps a cursor of its own, which no shadow can move; its readers get the newest of each key only.",
    do="Switch compaction off for the due topic.",
)

COMPACTION = "__compaction"
PINNED_MS = HOUR_MS
"""Longest usual time from the oldest original's due time until it is handled; after that an operator should check."""
MAX_NAMED = 3
_HOP = re.compile(r"tw\|(?!move\|)([^|]+)\|[^|]+\|-?\d+\|([^|]+)")
"""Name of a relay's producer: the source of its hops, and the fingerprint of its routing."""
_DRAIN = "-drain"


def _journal_of(seen: Seen) -> SeenTopic | None:
    return next((topic for topic in seen.topics if _has_role(seen, topic, "journal")), None)


def _has_role(seen: Seen, topic: SeenTopic, role: str) -> bool:
    """Return whether a topic has a role; always False if the plan has no intake."""
    return seen.plan is not None and seen.plan.intake and topic.spec is not None and topic.spec.role == role


def _move_decider(seen: Seen) -> Iterator[Finding]:
    journal = _journal_of(seen)
    if journal is None or seen.shadow_state != MOVING:
        return
    alone = [part for part in journal.parts if mover_in(part.stats) is None]
    if alone:
        parts = counted(len(journal.parts), "partition")
        read = f"its requested state is {MOVING}, and no mover writes into {len(alone)} of {parts}"
        start = timewheel_command("shadow", "run", seen.target)
        relays = sorted({relay for part in alone for relay in relays_of(part.stats)})
        cure = f"see the log of {relays[0]}, the relay here; then restart it: {start}" if relays else start
        yield Finding(kind=NOBODY_MOVES, subject=journal.name, read=read, cure=cure)


def _journal(seen: Seen) -> Iterator[Finding]:
    journal = _journal_of(seen)
    oldest = [] if journal is None else [part for part in journal.parts if part.journal_since_ms is not None]
    if journal is None or seen.plan is None or not oldest:
        return
    bound_ms = far_ms(seen.plan) + PINNED_MS

    def age_ms(part: Part) -> int:
        return seen.at_ms - (part.journal_since_ms or 0)

    part = max(oldest, key=age_ms)
    if age_ms(part) > bound_ms:
        read = f"{part.name} has kept a copy for {span(age_ms(part))}; {spelled(bound_ms)} is usual at most"
        cure = timewheel_command("gaps", "explain", seen.plan.due_topic)
        yield Finding(kind=JOURNAL_OLD, subject=journal.name, read=read, cure=cure)


def _subscriptions(seen: Seen) -> Iterator[Finding]:
    for topic in seen.topics:
        if topic.spec is None or not _has_role(seen, topic, "due"):
            continue
        unnamed: dict[str, int] = {}
        for _, name, stats in topic.subscriptions():
            if name not in topic.spec.subscriptions and name != COMPACTION:
                unnamed[name] = unnamed.get(name, 0) + stats.backlog
        for name, backlog in sorted(unnamed.items()):
            read = f"{name} is not in the plan; {counted(backlog, 'entry waits', 'entries wait')} for it"
            cure = f"write it among the subscriptions of {seen.target}; or, if it is not needed: "
            cure += pulsar_admin("topics", "unsubscribe", topic.name, "-s", name)
            yield Finding(kind=UNNAMED_SUBSCRIPTION, subject=topic.name, read=read, cure=cure)


def _movers(seen: Seen) -> Iterator[Finding]:
    if seen.plan is None or not seen.plan.intake:
        return
    own = Router(seen.plan).fingerprint
    found: dict[str, str] = {}
    for topic in seen.topics:
        for part in topic.parts:
            for producer in part.stats.producers:
                match = _HOP.fullmatch(producer.name)
                if match is not None and _is_of(seen.plan, match[1]):
                    where = f" at {producer.address}" if producer.address else ""
                    found.setdefault(match[2].removesuffix(_DRAIN), f"{producer.name}{where}")
    others = [name for fingerprint, name in sorted(found.items()) if fingerprint != own]
    if others:
        more = f", and {len(others) - MAX_NAMED} more" if len(others) > MAX_NAMED else ""
        beside = "; others move them by this plan" if own in found else ""
        yield Finding(
            kind=MOVERS_DIFFER,
            subject=seen.plan.due_topic,
            read=f"moved by another plan than {seen.target}: {', '.join(others[:MAX_NAMED])}{more}{beside}",
            cure=f"{timewheel_command('shadow', 'run', seen.target)}, in place of the connected movers",
        )


def _is_of(plan: Plan, source: str) -> bool:
    """Return whether a relay's producer comes from a topic of the plan; producer names omit the scheme."""
    return any(f"persistent://{source}".startswith(f"{prefix}.") for prefix in Router(plan).names.own_prefixes)


def _removed(seen: Seen) -> Iterator[Finding]:
    journal = _journal_of(seen)
    if journal is None or journal.namespace not in seen.namespaces:
        return
    cure = f"{seen.provisions}; then {timewheel_command('shadow', 'start', seen.target)}"
    if journal.exists:
        gone = len(set(range(journal.state.partitions or 0)) - journal.state.existing)
        if gone and seen.shadow_state in UNDER_WAY:
            read = f"its requested state is {seen.shadow_state}, and {gone} of its partitions are missing"
            yield Finding(kind=JOURNAL_REMOVED, subject=journal.name, read=read, cure=cure)
        return
    held = [topic for topic in seen.topics if topic.step is not None and topic.backlog]
    if held:
        read = f"it is missing, and timers wait in {held[0].name}" + (f" and {len(held) - 1} more" if held[1:] else "")
        yield Finding(kind=JOURNAL_REMOVED, subject=journal.name, read=read, cure=cure)


def _compaction(seen: Seen) -> Iterator[Finding]:
    for topic in seen.topics:
        if not _has_role(seen, topic, "due") or not topic.exists:
            continue
        policies = seen.namespaces.get(topic.namespace)
        threshold = (None if policies is None else policies.document.get("compaction_threshold")) or 0
        cure = pulsar_admin("topicPolicies", "set-compaction-threshold", topic.name, "-t", 0)
        if any(name == COMPACTION for _, name, _ in topic.subscriptions()):
            read = f"it has the cursor {COMPACTION}"
            yield Finding(kind=COMPACTED, subject=topic.name, read=read, cure=f"{cure}; then remove that cursor")
        elif threshold > 0:
            read = f"compaction_threshold is {threshold:,} bytes, set on the namespace {topic.namespace}"
            yield Finding(kind=COMPACTED, subject=topic.name, read=read, cure=cure)


SHADOWS = (
    Check(kinds=(NOBODY_MOVES,), inspect=_move_decider, needs=frozenset({Source.TOPICS})),
    Check(kinds=(MOVERS_DIFFER,), inspect=_movers, needs=frozenset({Source.TOPICS})),
    Check(kinds=(JOURNAL_OLD,), inspect=_journal, needs=frozenset({Source.TOPICS, Source.ENTRIES})),
    Check(kinds=(UNNAMED_SUBSCRIPTION,), inspect=_subscriptions, needs=frozenset({Source.TOPICS})),
    Check(kinds=(JOURNAL_REMOVED,), inspect=_removed, needs=frozenset({Source.TOPICS, Source.NAMESPACES})),
    Check(kinds=(COMPACTED,), inspect=_compaction, needs=frozenset({Source.TOPICS, Source.NAMESPACES})),
)
