"""Checks of relays: presence wherever timers wait for a relay, standby relays, and lateness."""

from __future__ import annotations

from collections.abc import Iterator

from timewheel.broker.admin.parts import begins_anew, relays_of
from timewheel.core.durations import SECOND_MS, format_duration, span
from timewheel.core.names import RELAY_CONSUMER, RELAY_SUBSCRIPTION
from timewheel.core.plurals import counted
from timewheel.inspect.doctor.check import Check
from timewheel.inspect.doctor.finding import Finding, Kind, Severity
from timewheel.inspect.doctor.seen import Part, Seen, SeenTopic, Source
from timewheel.inspect.shadowed import ENDS
from timewheel.provision.foreign_settings import relay_count_findings
from timewheel.provision.former_findings import run_command

NO_RELAY = Kind(
    slug="no-relay",
    severity=Severity.ERROR,
    why="Timers wait here, and no relay moves them on: they will not be delivered.",
    do="Start a relay, embedded in consumers or as a service.",
)
RELAY_ELSEWHERE = Kind(
    slug="relay-elsewhere",
    severity=Severity.ERROR,
    why="Timers wait here, and the running relay does not read them: it has just started, keeps restarting this "
    "partition, or works by another plan.",
    do="See its log and its plan file; restart it with this plan.",
)
NO_RELAY_YET = Kind(
    slug="no-relay-yet",
    severity=Severity.INFO,
    why="Nothing waits in this plan's own topics yet; the first timer that does needs a relay.",
    do="Start a relay before timers become due.",
)
NO_STANDBY = Kind(
    slug="no-standby",
    severity=Severity.INFO,
    why="One relay works alone: while it is down, timers do not move on.",
    do="Run two or three relays.",
)
MANY_RELAYS = Kind(
    slug="many-relays",
    severity=Severity.WARNING,
    why="All but one relay of a partition keep threads and connections and do nothing, and each may take it over.",
    do="Run relays as a service of two or three.",
)
RELAY_LATE = Kind(
    slug="relay-late",
    severity=Severity.ERROR,
    why="A timer should have left so long ago that the plan's guard is used up: timers are delivered late.",
    do="See whether relays run and are ready, and their logs.",
)
RELAY_BEHIND = Kind(
    slug="relay-behind",
    severity=Severity.WARNING,
    why="A timer should have left already: when the plan's guard is used up, timers are delivered late.",
    do="See whether relays run and are ready, and their logs.",
)
FOREIGN_CONSUMER = Kind(
    slug="foreign-consumer",
    severity=Severity.ERROR,
    why="A client that is no relay takes timers from the relays here: timers that it acknowledges are lost.",
    do="Stop it. To look, use a reader or timewheel status PLAN.",
)
MAX_NAMED = 3
BEHIND_SHARE = 0.5
"""Fraction of the guard; the rest remains until the next run."""


def _presence(seen: Seen) -> Iterator[Finding]:
    # Slots are visited when they are released; only tiers, the intake and the journal always have relays connected.
    always = [
        topic
        for topic in seen.topics
        if topic.spec is not None and (topic.spec.role == "tier" or topic.spec.is_entrance) and topic.parts
    ]
    empty = []
    elsewhere = _reading(seen)
    for topic in always:
        alone = [part for part in topic.parts if not _relays(part)]
        waiting = [part for part in alone if _backlog(part)]
        if waiting:
            entries = sum(map(_backlog, waiting))
            parts = f"{len(waiting)} of {counted(len(topic.parts), 'partition')}"
            wait = counted(entries, "entry waits", "entries wait")
            read = f"{wait} in {parts}{_first_due(seen, waiting)}; no relay is connected"
            if any(begins_anew(part.stats.subscriptions[RELAY_SUBSCRIPTION], seen.at_ms) for part in waiting):
                read += " now; one was some seconds ago: it keeps restarting, or has just ended"
                cure = "see the relay's log: relay_session_failed and relay_session_crashed have the reason"
                yield Finding(kind=RELAY_ELSEWHERE, subject=topic.name, read=read, cure=cure)
            elif elsewhere and seen.plan is not None:
                read += f"; relay {elsewhere[0]} reads {elsewhere[1]}"
                restart = f"it: {_start(seen)}" if seen.plan.relay == "service" else "the consumer that it runs in"
                cure = f"see the log of relay {elsewhere[0]}; then restart {restart}"
                yield Finding(kind=RELAY_ELSEWHERE, subject=topic.name, read=read, cure=cure)
            else:
                yield Finding(kind=NO_RELAY, subject=topic.name, read=read, cure=_start(seen))
        elif alone:
            empty.append(topic.name)
    if seen.shadow_state in ENDS:
        return  # a shadow that ends needs a relay for waiting timers only: no relay for later, and no standby
    if empty and seen.plan is not None:
        read = f"no relay is connected to {empty[0]}" + (f" and {len(empty) - 1} more" if empty[1:] else "")
        read += f"; relay {elsewhere[0]} reads {elsewhere[1]}" if elsewhere else ""
        yield Finding(kind=NO_RELAY_YET, subject=seen.plan.due_topic, read=read, cure=_start(seen))
    yield from _numbers(seen, always)


def _first_due(seen: Seen, parts: list[Part]) -> str:
    due_ms = min((part.head.due_ms for part in parts if part.head is not None), default=None)
    if due_ms is None:
        return ""
    away = span(abs(due_ms - seen.at_ms))
    return f", the first due in {away}" if due_ms > seen.at_ms else f", the first overdue by {away}"


def _numbers(seen: Seen, tiers: list[SeenTopic]) -> Iterator[Finding]:
    for topic in tiers[:1]:  # relays read all tiers alike
        most = max(_relays(part) for part in topic.parts)
        if most == 1:
            read = f"one relay is connected to {topic.name}"
            yield Finding(kind=NO_STANDBY, subject=topic.name, read=read, cure=_start(seen))
        if topic.spec is not None and seen.plan is not None and seen.plan.relay == "embedded":
            for found in relay_count_findings(topic.spec, most, seen.target):
                yield Finding(kind=MANY_RELAYS, subject=topic.name, read=found.problem, cure=found.remedy)


def _reading(seen: Seen) -> tuple[str, str] | None:
    """Return a relay that is connected to a topic of this or an earlier plan, with the topic; None without a relay."""
    found = {relay: topic.name for topic in seen.former for relay in topic.relays}
    found |= {relay: topic.name for topic in seen.topics for part in topic.parts for relay in relays_of(part.stats)}
    return next(iter(sorted(found.items())), None)


def _start(seen: Seen) -> str:
    if seen.plan is not None and seen.plan.relay == "embedded":
        return "start a consumer of the plan: its relay is within it"
    return run_command(seen.plan, seen.target)


def _relays(part: Part) -> int:
    relays = part.stats.subscriptions.get(RELAY_SUBSCRIPTION)
    return 0 if relays is None else len(relays.consumers or ())


def _backlog(part: Part) -> int:
    relays = part.stats.subscriptions.get(RELAY_SUBSCRIPTION)
    return 0 if relays is None else relays.backlog


def _lateness(seen: Seen) -> Iterator[Finding]:
    if seen.plan is None:
        return
    for topic in seen.topics:
        heads = [(part.head, part) for part in topic.parts if part.head is not None]
        if not heads:
            continue
        head, part = min(heads, key=lambda one: one[0].release_ms)
        late_ms = seen.at_ms - head.release_ms
        if late_ms <= max(seen.plan.guard_ms * BEHIND_SHARE, SECOND_MS):
            continue
        guard = format_duration(seen.plan.guard_ms)
        yield Finding(
            kind=RELAY_LATE if late_ms > seen.plan.guard_ms else RELAY_BEHIND,
            subject=topic.name,
            read=f"timer {head.timer_id} should have left {part.name} {span(late_ms)} ago; the guard is {guard}",
            cure=_start(seen),
        )


def _foreign(seen: Seen) -> Iterator[Finding]:
    for topic in seen.topics:
        if topic.step is None and (topic.spec is None or not topic.spec.is_entrance):
            continue
        found = sorted(
            {
                f"{consumer.name or 'one without a name'} at {consumer.address or 'an unknown address'}"
                for part in topic.parts
                if (relays := part.stats.subscriptions.get(RELAY_SUBSCRIPTION)) is not None
                for consumer in relays.consumers or ()
                if not RELAY_CONSUMER.fullmatch(consumer.name)
            }
        )
        if found:
            more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
            yield Finding(
                kind=FOREIGN_CONSUMER,
                subject=topic.name,
                read=f"connected to {RELAY_SUBSCRIPTION}, and no relay: {', '.join(found[:MAX_NAMED])}{more}",
                cure="stop the program at that address",
            )


RELAYS = (
    Check(kinds=(FOREIGN_CONSUMER,), inspect=_foreign, needs=frozenset({Source.TOPICS})),
    Check(
        kinds=(NO_RELAY, RELAY_ELSEWHERE, NO_RELAY_YET, NO_STANDBY, MANY_RELAYS),
        inspect=_presence,
        needs=frozenset({Source.TOPICS}),
    ),
    Check(kinds=(RELAY_LATE, RELAY_BEHIND), inspect=_lateness, needs=frozenset({Source.TOPICS, Source.ENTRIES})),
)
