"""Cancellations for cancels, and their messages. Pure; shared by both producers."""

from __future__ import annotations

from timewheel.client.results import Outcome
from timewheel.core.arguments import check_kind
from timewheel.core.cancellations import Cancellation
from timewheel.core.envelope import MAX_GROUP_CHARS, MAX_TIMER_ID_CHARS, unit_mistake
from timewheel.core.errors import BadArgument, CancelFailed, CancelOutcomeUnknown, CancelRefused, TimewheelError
from timewheel.core.names import Names
from timewheel.core.plan import Cancel, Plan

from .prepare import Outgoing
from .timer import SendOptions, Timer

MAX_ATTEMPTS = 4  # limit on sends of a cancellation; each further send follows a producer that was found closed


def cancellation_of_timer(plan: Plan, timer: Timer | str, stamp: int, now_ms: int) -> Cancellation:
    """Build the cancellation that cancels a timer."""
    timer_id, due_ms = id_and_due(plan, timer)
    return Cancellation("timer", timer_id, stamp, _forget_ms(plan, due_ms, now_ms))


def cancellation_of_group(plan: Plan, group: str, stamp: int, now_ms: int) -> Cancellation:
    """Build the cancellation that cancels all timers of a group so far; errors as `cancellation_of_timer`."""
    enabled(plan, group)
    _check_name(group, "group", MAX_GROUP_CHARS)
    return Cancellation("group", group, stamp, _forget_ms(plan, None, now_ms))


def cancellation_of_replaced(plan: Plan, outgoing: Outgoing, now_ms: int) -> Cancellation:
    """Build the cancellation that is sent after a timer which replaces the earlier timers of its id.

    It is remembered as long as any timer sent until now may come, whatever due time the caller knows: another
    replacement, by another caller or by an attempt without an answer, may be due later.
    """
    return Cancellation("timer", outgoing.timer_id, outgoing.generation, _forget_ms(plan, None, now_ms))


def id_and_due(plan: Plan, timer: object) -> tuple[str, int | None]:
    """Return the id of a timer, and its due time if it is known; see `cancellation_of_timer` for the errors."""
    enabled(plan, timer)
    timer_id, due_ms = timer, None
    if isinstance(timer, Timer):
        if timer.due_topic and timer.due_topic != plan.due_topic:
            raise CancelRefused(timer.id, f"it was sent to {timer.due_topic}, and this plan's is {plan.due_topic}")
        timer_id, due_ms = timer.id, _due_ms(timer)
        _check_generation(timer)
    _check_name(timer_id, "timer id", MAX_TIMER_ID_CHARS)
    assert isinstance(timer_id, str)
    return timer_id, due_ms


def replacing(plan: Plan, timer: Timer, options: SendOptions) -> SendOptions:
    """Return the options by which a send reschedules a timer."""
    check_kind("timer", timer, Timer, "the Timer that send returned is needed; cancel takes an id alone")
    id_and_due(plan, timer)
    timer_id = options.get("timer_id")
    if timer_id not in (None, timer.id):
        raise BadArgument("timer_id", timer_id, f"reschedule keeps the id of its timer, {timer.id!r}")
    if options.get("replace") is False:
        raise BadArgument("replace", False, "reschedule always replaces its timer; to send beside it, use send")
    return {**options, "timer_id": timer.id, "replace": True}


def _due_ms(timer: Timer) -> int:
    """Check the due time of a timer that callers may have built: a cancel is remembered until that time, not longer."""
    due_ms: object = timer.due_ms
    if isinstance(due_ms, bool) or not isinstance(due_ms, int):
        mistake: str | None = "no whole number of milliseconds since 1970"
    else:
        mistake = unit_mistake(due_ms)
    if mistake is not None:
        raise CancelRefused(
            timer.id, f"its due_ms, {due_ms!r}, is {mistake}; where it is not known, give the id instead of the Timer"
        )
    return timer.due_ms


def _check_generation(timer: Timer) -> None:
    generation: object = timer.generation
    if isinstance(generation, bool) or not isinstance(generation, int) or generation < 0:
        raise CancelRefused(
            timer.id,
            f"its generation, {generation!r}, is no whole number from 0; where it is not known, give the id instead of "
            "the Timer",
        )


def enabled(plan: Plan, what: object) -> Cancel:
    """Return the plan's settings; refuse without ``[cancel]``, where no consumer would look for a cancellation."""
    if plan.cancel is None:
        raise CancelRefused(
            what,
            "the plan has no [cancel]: add it, run timewheel topics ensure PLAN, restart the consumers with it, then "
            "the producers",
        )
    return plan.cancel


def message_of(plan: Plan, cancellation: Cancellation) -> Outgoing:
    """Build the message for the log of cancellations."""
    line = cancellation.line().encode()
    return Outgoing(
        Names(plan).cancellations, 0, "cancellations", line, {}, None, None, None, 0, cancellation.name, 0, 0
    )


def after_cancel(
    outgoing: Outgoing, outcome: Outcome, cause: str, *, attempts: int, stored: bool = False
) -> Outgoing | TimewheelError | None:
    """Decide the next step when the outcome of a cancellation's message is known. None: it is stored. An Outgoing: send
    it again. An error: report it to the caller; trying again is always safe. ``stored``: an earlier attempt may be.
    """
    if outcome is Outcome.OK:
        return None
    if outcome in (Outcome.REOPEN, Outcome.DROPPED) and attempts < MAX_ATTEMPTS:
        return outgoing
    kind = CancelOutcomeUnknown if stored or outcome in (Outcome.UNKNOWN, Outcome.DROPPED) else CancelFailed
    return kind(outgoing.timer_id, outgoing.topic, cause)


def _forget_ms(plan: Plan, due_ms: int | None, now_ms: int) -> int:
    """Return the time from which no timer of the cancellation can come any more: a later timer is parked anyway."""
    cancel = enabled(plan, None)
    latest_due_ms = now_ms + plan.max_delay_ms if due_ms is None else due_ms
    return max(latest_due_ms, now_ms) + cancel.keep_ms + cancel.skew_ms


def _check_name(name: object, what: str, most: int) -> None:
    if not isinstance(name, str):
        raise CancelRefused(name, f"a {what} is text")
    if not name:
        raise CancelRefused(name, f"a {what} is not empty")
    if len(name) > most:
        raise CancelRefused(name, f"a {what} has at most {most} characters, this one {len(name)}")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise CancelRefused(name, f"a {what} has no half of a surrogate pair") from error
