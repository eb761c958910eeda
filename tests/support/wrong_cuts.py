"""Consumers and relays that handle cancellations wrongly, for controls: a checker must find the results.

The product has no switch for any of this (broker-facts: cancellation-log).
"""

from __future__ import annotations

from typing import Any, Literal

from timewheel.consumers.engine import Command, Engine
from timewheel.consumers.receiver import Questions
from timewheel.core.cancellations import Cancellation, CancellationTable

__all__ = ["CutRules", "break_rules", "merge_the_last", "step_unasked"]

CutRules = Literal["right", "the last one counts"]


def step_unasked(_: Questions, engine: Engine, now_ms: int) -> list[Command]:
    """Replace `Questions.step`: decide by the cancellations that happen to be known, without asking the log."""
    engine.asked()
    return engine.answered(now_ms)


def merge_the_last(table: CancellationTable, cancellation: Cancellation) -> None:
    """Replace `CancellationTable.merge`: the last one counts, not the highest, so that a cancellation is revoked."""
    inside: Any = table
    names = inside._timers if cancellation.kind == "timer" else inside._groups
    names[cancellation.name] = (cancellation.cut, cancellation.forget_ms)


def break_rules(rules: CutRules) -> None:
    """Break the rules for this process, permanently."""
    if rules == "the last one counts":
        CancellationTable.merge = merge_the_last  # type: ignore[method-assign,assignment]
