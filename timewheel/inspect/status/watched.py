"""The topics of a plan in which timers wait, each with the due times that its name permits: pure."""

from __future__ import annotations

from dataclasses import dataclass

from timewheel.core.names import RELAY_SUBSCRIPTION
from timewheel.core.plan import Calendar, Plan
from timewheel.core.steps import Step
from timewheel.core.topology import calendar_intervals, entrances_of, topology


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedTopic:
    """A topic of the plan, with the due times that its name permits: from the first to before the second."""

    name: str
    step: Step
    subscriptions: tuple[str, ...]
    is_retry: bool = False
    from_ms: int | None = None
    until_ms: int | None = None


def topics_of(plan: Plan, now_ms: int) -> list[WatchedTopic]:
    """Return holding topics with their steps, then due topics; slots and intervals with their due times."""
    found = []
    all_of_it = topology(plan, now_ms)
    for held in all_of_it.holding:
        from_ms = until_ms = None
        if held.step.kind == "slot":
            # The coming turn of the ring: a slot that starts before now is being swept, or late.
            turn_ms = held.step.slots * held.step.slot_ms
            start_ms = now_ms // turn_ms * turn_ms + held.slot * held.step.slot_ms
            from_ms = start_ms if start_ms + held.step.slot_ms > now_ms else start_ms + turn_ms
            until_ms = from_ms + held.step.slot_ms
        found.append(
            WatchedTopic(
                name=held.name,
                step=held.step,
                subscriptions=(RELAY_SUBSCRIPTION,),
                from_ms=from_ms,
                until_ms=until_ms,
            )
        )
    found += [
        WatchedTopic(name=topic.name, step=topic.step, subscriptions=(RELAY_SUBSCRIPTION,))
        for topic in entrances_of(plan)
    ]
    due = [spec.name for spec in all_of_it.topics if spec.role == "due"]
    if isinstance(plan.scheme, Calendar):
        length_ms = plan.scheme.interval_ms
        step = Step(kind="due", interval_ms=length_ms)
        starts = [number * length_ms for number in calendar_intervals(plan, now_ms)]
        found += [
            WatchedTopic(
                name=name,
                step=step,
                subscriptions=plan.subscriptions,
                from_ms=start_ms,
                until_ms=start_ms + length_ms,
            )
            for name, start_ms in zip(due, starts, strict=True)
        ]
    else:
        found += [WatchedTopic(name=name, step=Step(kind="due"), subscriptions=plan.subscriptions) for name in due]
    retries = (spec for spec in all_of_it.topics if spec.role == "retry")
    found += [
        WatchedTopic(name=spec.name, step=Step(kind="due"), subscriptions=spec.subscriptions, is_retry=True)
        for spec in retries
    ]
    return found
