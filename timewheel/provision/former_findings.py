"""Describe who moves timers in topics of earlier plans: a relay, a consumer, or none."""

from __future__ import annotations

import json
from collections.abc import Sequence

from timewheel.core.durations import format_duration
from timewheel.core.escapes import timewheel_command
from timewheel.core.names import CalendarTopic, Names, namespace_of
from timewheel.core.plan import Native, Plan
from timewheel.core.plurals import counted
from timewheel.core.topology import FormerTopic
from timewheel.provision.foreign_settings import Finding

TARGET = "PLAN"
"""Placeholder for a plan's file whose name is not known."""


def run_command(plan: Plan | None, target: str = TARGET) -> str:
    """Return the command that runs the relays of a plan: the relays of a plan with an intake belong to its shadow."""
    return timewheel_command("shadow" if plan is not None and plan.intake else "relay", "run", target)


def left_behind(plan: Plan, topics: Sequence[FormerTopic]) -> tuple[FormerTopic, ...]:
    """Return the topics whose waiting timers no relay or consumer of the plan would move.

    A separate relay can list topics and drains the holding topics of an earlier plan. A relay inside a consumer cannot
    list topics unless the service passes it a `FormerTopics`: then it is seen to drain them. Neither reads a namespace
    that the plan does not name. Consumers read the intervals that the plan names. Parked timers wait for an operator.
    """
    return tuple(
        topic for topic in topics if topic.backlog and topic.parked_by is None and not _is_redirected(plan, topic)
    )


def _is_redirected(plan: Plan, topic: FormerTopic) -> bool:
    if topic.holding is None:
        return topic.is_followed
    return bool(topic.drained_by) or (plan.relay == "service" and not _unnamed(plan, [topic]))


def _unnamed(plan: Plan, topics: Sequence[FormerTopic]) -> set[str]:
    """Return the namespaces of topics that the plan does not name."""
    return {namespace_of(topic.name) for topic in topics} - {*Names(plan).namespaces}


def remedy_for(plan: Plan, topics: Sequence[FormerTopic], target: str = TARGET) -> str:
    """Describe the remedy for timers that are left behind.

    Args:
        plan: The plan that leaves them behind.
        topics: The topics in which they wait.
        target: The user's name for the plan.
    """
    remedies = []
    if unnamed := _unnamed(plan, topics):
        former = json.dumps([*plan.former_namespaces, *sorted(unnamed)])
        remedies.append(f"write former_namespaces = {former} in the plan, and have its relays take that up")
    if any(topic.holding is not None and namespace_of(topic.name) not in unnamed for topic in topics):
        by_relay = (
            f"keep a relay that can list topics running until they are empty "
            f"({run_command(plan, target)}, or consumers with former_topics=)"
        )
        way_out = f"run {timewheel_command('relay', 'abort', target)} once all services have this plan"
        remedies.append(way_out if isinstance(plan.scheme, Native) else by_relay)
    lengths_ms = {
        interval.interval_ms
        for topic in topics
        if topic.is_due and (interval := CalendarTopic.parse(plan.due_topic, topic.name)) is not None
    }
    if lengths_ms:
        lengths = ", ".join(f'"{format_duration(length_ms)}"' for length_ms in sorted(lengths_ms))
        remedies.append(f"write former_intervals = [{lengths}] in the plan, so that its consumers read them too")
    if any(not topic.is_partitioned for topic in topics):
        remedies.append(
            "keep consumers of the plan that says partitions = 0 running until it is empty: those of a calendar cannot "
            "read a due topic that is not partitioned"
        )
    entrances = {Names(plan).intake, Names(plan).journal}
    if any(topic.name in entrances for topic in topics):
        remedies.append(
            f"keep {timewheel_command('shadow', 'run', target)} going, with the plan that says intake = true, until "
            f"{timewheel_command('shadow', 'status', target)} shows an empty journal"
        )
    if any(topic.holding is None and not topic.is_due and topic.name not in entrances for topic in topics):
        remedies.append("run the version of timewheel that made them, with the plan that named them")
    return "; ".join(remedies)


def findings_of(plan: Plan, topics: Sequence[FormerTopic], target: str = TARGET) -> tuple[Finding, ...]:
    """Return a finding for each topic with a backlog; arguments as of `remedy_for`."""
    return tuple(_finding(plan, topic, target) for topic in topics if topic.backlog)


def _finding(plan: Plan, topic: FormerTopic, target: str) -> Finding:
    entries = f"{counted(topic.backlog, 'entry waits', 'entries wait')} here, of an earlier plan"
    send_outcome = f"afterwards: {timewheel_command('topics', 'ensure', target, '--remove-drained')}"
    if topic.parked_by is not None:
        whose = ("--subscription", topic.parked_by)
        problem = f"{entries}: {topic.parked_by} has parked these timers, and no consumer handles them without a replay"
        remedy = (
            f"{timewheel_command('parked', 'list', target, *whose)} shows them, "
            f"{timewheel_command('parked', 'replay', target, *whose, '--all')} has them handled if the plan has "
            f"retry = true, {timewheel_command('parked', 'discard', target, *whose, '--all')} drops them; "
            f"{send_outcome}"
        )
    elif not _is_redirected(plan, topic):
        problem, remedy = f"{entries}: {_why_it_stays(plan, topic)}", remedy_for(plan, [topic], target)
    elif topic.holding is None:
        problem, remedy = f"{entries}: this plan's consumers read it", send_outcome
    else:
        stay = "the broker's delay" if topic.holding.by_broker else "its stay or its slot"
        is_native = isinstance(plan.scheme, Native)
        goes = "goes to the due topic at once" if is_native else f"leaves after {stay}, and goes on by this plan"
        drains = timewheel_command("relay", "abort", target) if is_native else run_command(plan, target)
        problem, remedy = f"{entries}: each {goes}", f"{drains} drains it; {send_outcome}"
        if topic.drained_by:
            relay = f"relay {', '.join(topic.drained_by)}"
            problem, remedy = f"{problem}; {relay} drains it", f"keep {relay} running until it is empty; {send_outcome}"
    return Finding(level="warning", where=topic.name, problem=problem, remedy=remedy)


def _why_it_stays(plan: Plan, topic: FormerTopic) -> str:
    """Explain why no relay or consumer of the plan moves a topic's timers, and name the relays connected at present."""
    if unnamed := _unnamed(plan, [topic]):
        why = f"no relay moves it on, since this plan does not name the namespace {unnamed.pop()}"
    elif topic.holding is not None:
        why = "this plan's consumers, with their relays inside, do not find it by themselves"
    else:
        why = "no relay moves it on"
    return why + (f"; connected now: relay {', '.join(topic.relays)}" if topic.relays else "")
