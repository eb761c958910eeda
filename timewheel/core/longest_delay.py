"""The longest delay: a plan's limit, how far the limit can be raised, and the remedy for a timer that is due later."""

from __future__ import annotations

from dataclasses import replace

from timewheel.core.durations import MAX_DURATION_MS, format_duration, parse_duration, rounded_up, spelled
from timewheel.core.errors import PlanError, SendRefused
from timewheel.core.escapes import timewheel_command
from timewheel.core.plan import Plan


class DelayTooLong(SendRefused):
    """The due time is beyond the plan's ``max_delay``."""

    def __init__(self, delay_ms: int, plan: Plan) -> None:
        self.delay_ms = delay_ms
        self.max_delay_ms = plan.max_delay_ms
        super().__init__(f"a delay of {spelled(delay_ms)} is {beyond(delay_ms, plan)}")


def beyond(delay_ms: int, plan: Plan) -> str:
    """Describe how a delay exceeds the limits, with the remedy; the end of a sentence.

    Args:
        delay_ms: Delay above the plan's ``max_delay``.
        plan: Plan whose other limits the remedy respects.
    """
    fact = f"beyond the plan's max_delay of {format_duration(plan.max_delay_ms)}"
    enough_ms = parse_duration(rounded_up(delay_ms)) if delay_ms <= MAX_DURATION_MS else delay_ms
    try:
        replace(plan, max_delay_ms=enough_ms)
    except PlanError as error:
        return (
            f"{fact}, and a longer one breaks another limit ({error.field}: {error.limit}): keep it in a store of your "
            "own, and send it later"
        )
    ensures = timewheel_command("topics", "ensure", "PLAN")
    return f'{fact}: send it later, or write max_delay = "{format_duration(enough_ms)}" into the plan and run {ensures}'
