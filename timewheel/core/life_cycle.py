"""What a plan says of a timer's life besides its way: whether it may be taken back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from timewheel.core.durations import DAY_MS, MINUTE_MS, SECOND_MS
from timewheel.core.plan_checks import one_of, within_ms

__all__ = ["Cancel", "WhenBlind"]

WhenBlind = Literal["hold", "deliver"]

MAX_KEEP_MS = 400 * DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Timers of a plan may be cancelled, rescheduled and replaced.

    Args:
        keep_ms: How long after a timer's due time its cut-off is remembered. What comes later than that to a consumer
            is parked, since nobody could say whether it was cancelled. It may be made longer only with care: what was
            cancelled before is remembered for the old one.
        skew_ms: How far clocks of producers and consumers may differ: a cancel that is confirmed so long before the due
            time is certain (broker-facts: cut-off-log).
        when_blind: What a consumer does with a due timer while the log of cut-offs does not answer: ``"hold"`` it, or
            ``"deliver"`` it after a while, cancelled or not.

    Raises:
        PlanError: A rule is broken.
    """

    keep_ms: int = DAY_MS
    skew_ms: int = SECOND_MS
    when_blind: WhenBlind = "hold"

    def __post_init__(self) -> None:
        within_ms("cancel.keep", self.keep_ms, MINUTE_MS, MAX_KEEP_MS)
        within_ms("cancel.skew", self.skew_ms, 0, DAY_MS)
        one_of("cancel.when_blind", self.when_blind, ("hold", "deliver"))
