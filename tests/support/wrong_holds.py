"""Consumers that keep what the broker gives away, for controls: a checker must find timers that are handled twice."""

from __future__ import annotations

from typing import Literal

from timewheel.consumers.source import Partition

HoldRules = Literal["right", "held timers are not let go"]


def never_lost(_: Partition) -> bool:
    """Replace `Partition.is_lost`: what is held waits on when its connection is lost."""
    return False


def break_holds(rules: HoldRules) -> None:
    """Break the rules for this process, permanently."""
    if rules != "right":
        assert hasattr(Partition, "is_lost")
        setattr(Partition, "is_lost", never_lost)  # noqa: B010 - a method of a class with slots
