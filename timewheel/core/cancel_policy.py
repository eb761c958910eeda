"""Cancellation settings of a plan: a timer's life apart from its routing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from timewheel.core.durations import DAY_MS, MINUTE_MS, SECOND_MS
from timewheel.core.plan_checks import one_of, within_ms

WhenBlind = Literal["hold", "deliver"]

MAX_KEEP_MS = 400 * DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Settings of a plan whose timers may be cancelled, rescheduled and replaced.

    Args:
        keep_ms: Time after a timer's due time for which its cancellation is remembered. A timer that reaches a consumer
            later is parked, since it may have been cancelled. Raise the value with care: cancellations that are already
            stored keep the old value.
        skew_ms: Largest difference between the clocks of producers and consumers: a cancel is certain if it is
            confirmed more than this before the due time (broker-facts: cancellation-log).
        on_log_unavailable: Action of a consumer for a due timer while the log of cancellations does not answer:
            ``"hold"`` the timer, or ``"deliver"`` it after a while, cancelled or not.

    Raises:
        PlanError: A value is out of its range.
    """

    keep_ms: int = DAY_MS
    skew_ms: int = SECOND_MS
    on_log_unavailable: WhenBlind = "hold"

    def __post_init__(self) -> None:
        within_ms("cancel.keep", self.keep_ms, MINUTE_MS, MAX_KEEP_MS)
        within_ms("cancel.skew", self.skew_ms, 0, DAY_MS)
        one_of("cancel.on_log_unavailable", self.on_log_unavailable, ("hold", "deliver"))
