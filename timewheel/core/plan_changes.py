"""From the plans that a process serves to those that it should: what begins, what ends, what goes on untouched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from timewheel.core.plan import Plan

__all__ = ["PlanChanges", "plan_changes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChanges:
    """A decision; whoever carries it out ends what is removed or changed before it begins what takes its place.

    Args:
        added: Of due topics that had no plan.
        removed: Of due topics that have none any more.
        changed: The old and the new plan of one due topic.
        unchanged: Equal before and after.
    """

    added: tuple[Plan, ...] = ()
    removed: tuple[Plan, ...] = ()
    changed: tuple[tuple[Plan, Plan], ...] = ()
    unchanged: tuple[Plan, ...] = ()

    @property
    def ends(self) -> tuple[Plan, ...]:
        """Plans that are served no more as they are."""
        return (*self.removed, *(old for old, _ in self.changed))

    @property
    def begins(self) -> tuple[Plan, ...]:
        """Plans that are to be served."""
        return (*self.added, *(new for _, new in self.changed))


def plan_changes(old: Iterable[Plan], new: Iterable[Plan]) -> PlanChanges:
    """What leads from one to the other. A plan is known by its due topic; several of one are paired in their order.

    Args:
        old: Plans that are served.
        new: Plans that should be.
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
