"""Consumers and relays that treat cut-offs wrongly, for controls: what comes of it a checker must find.

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
    """In place of `Questions.step`: what is known by chance decides, and nobody is asked."""
    engine.asked()
    return engine.answered(now_ms)


def merge_the_last(table: CutTable, cut_off: CutOff) -> None:
    """In place of `CutTable.merge`: not the highest cut counts but the last, so that one can be taken back."""
    inside: Any = table
    names = inside._timers if cut_off.kind == "timer" else inside._groups
    names[cut_off.name] = (cut_off.cut, cut_off.forget_ms)


def break_rules(rules: CutRules) -> None:
    """For this process, for good."""
    if rules == "the last one counts":
        CutTable.merge = merge_the_last  # type: ignore[method-assign,assignment]
