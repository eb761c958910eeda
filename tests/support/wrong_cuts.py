"""Consumers and relays that handle cut-offs wrongly, for controls: a checker must find the results.

The product has no switch for any of this (broker-facts: cut-off-log).
"""

from __future__ import annotations

from typing import Any, Literal

from timewheel.consumers.commands import Command
from timewheel.consumers.engine import Engine
from timewheel.consumers.receiving.questions import Questions
from timewheel.core.cut_offs import CutOff
from timewheel.core.cut_table import CutTable

__all__ = ["CutRules", "break_rules", "merge_the_last", "step_unasked"]

CutRules = Literal["right", "the last one counts"]


def step_unasked(_: Questions, engine: Engine, now_ms: int) -> list[Command]:
    """Replace `Questions.step`: decide by the cut-offs that happen to be known, without asking the log."""
    engine.asked()
    return engine.answered(now_ms)


def merge_the_last(table: CutTable, cut_off: CutOff) -> None:
    """Replace `CutTable.merge`: the last cut counts, not the highest, so that a cut-off can be revoked."""
    inside: Any = table
    names = inside._timers if cut_off.kind == "timer" else inside._groups
    names[cut_off.name] = (cut_off.cut, cut_off.forget_ms)


def break_rules(rules: CutRules) -> None:
    """Break the rules for this process, permanently."""
    if rules == "the last one counts":
        CutTable.merge = merge_the_last  # type: ignore[method-assign,assignment]
