"""Differences between the plans that a process serves and the plans that it should serve."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from timewheel.core.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChanges:
    """Plans to begin and plans to end. End the removed and changed plans before beginning their replacements.

    Args:
        added: Plans of due topics that had no plan.
        removed: Plans of due topics that have no plan any more.
        changed: Old and new plan of the same due topic.
        unchanged: Plans that are equal before and after.
    """

    added: tuple[Plan, ...] = ()
    removed: tuple[Plan, ...] = ()
    changed: tuple[tuple[Plan, Plan], ...] = ()
    unchanged: tuple[Plan, ...] = ()

    @property
    def ends(self) -> tuple[Plan, ...]:
        """Plans that are no longer served in this form."""
        return (*self.removed, *(old for old, _ in self.changed))

    @property
    def begins(self) -> tuple[Plan, ...]:
        """Plans that are to be served from now on."""
        return (*self.added, *(new for _, new in self.changed))


def plan_changes(old: Iterable[Plan], new: Iterable[Plan]) -> PlanChanges:
    """Compare the served plans with the desired plans. Plans are matched by due topic; several of a topic, in order.

    Args:
        old: Plans that are served.
        new: Plans that should be served.
    """
    ended, unchanged = list(old), []
    begun = []
    for plan in new:
        if plan in ended:
            ended.remove(plan)
            unchanged.append(plan)
        else:
            begun.append(plan)
    added, changed = [], []
    for plan in begun:
        before = next((other for other in ended if other.due_topic == plan.due_topic), None)
        if before is None:
            added.append(plan)
        else:
            ended.remove(before)
            changed.append((before, plan))
    return PlanChanges(added=tuple(added), removed=tuple(ended), changed=tuple(changed), unchanged=tuple(unchanged))
