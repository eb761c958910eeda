"""The longest delay: what a plan allows, what any plan could, and what helps a timer that is due later."""

from __future__ import annotations

from timewheel.core.durations import MAX_DURATION_MS, format_duration, rounded_up, spelled
from timewheel.core.errors import SendRefused
from timewheel.core.escapes import timewheel_command

__all__ = ["DelayTooLong", "beyond"]


class DelayTooLong(SendRefused):
    """The due time is beyond the plan's ``max_delay``."""

    def __init__(self, delay_ms: int, max_delay_ms: int) -> None:
        self.delay_ms = delay_ms
        self.max_delay_ms = max_delay_ms
        super().__init__(f"a delay of {spelled(delay_ms)} is {beyond(delay_ms, max_delay_ms)}")


def beyond(delay_ms: int, max_delay_ms: int) -> str:
    """How a delay passes the limits, and what helps; the end of a sentence.

    Args:
        delay_ms: Above ``max_delay_ms``.
        max_delay_ms: The plan's.
    """
    fact = f"beyond the plan's max_delay of {format_duration(max_delay_ms)}"
    if delay_ms > MAX_DURATION_MS:
        most = format_duration(MAX_DURATION_MS)
        return f"{fact}, and no plan allows more than {most}: keep it in a store of your own, and send it later"
    enough, ensures = rounded_up(delay_ms), timewheel_command("topics", "ensure", "PLAN")
    return f'{fact}: send it later, or write max_delay = "{enough}" into the plan and run {ensures}'
