"""Stores the desired state of a shadow beside its plan's journal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from timewheel.admin.client import AdminClient
    from timewheel.core.plan import Plan
    from timewheel.shadow.machine.states import State

__all__ = ["note", "plan_with_intake"]


def plan_with_intake(file: Path) -> Plan:
    """Load the plan of a file.

    Raises:
        PlanError: The file is no plan, or the plan has no intake.
    """
    from timewheel.core.errors import PlanError
    from timewheel.core.planfile import load_plan

    plan = load_plan(file)
    if not plan.intake:
        limit = "a shadow needs the topics that come with intake = true"
        raise PlanError("intake", plan.intake, limit).in_file(file)
    return plan


def note(admin: AdminClient, plan: Plan, state: State) -> str:
    """Store the desired state, from now on, for every process that shadows the plan's topic.

    Returns:
        The result as a sentence.

    Raises:
        TopologyError: There is no journal.
        AdminError: The broker refused the request.
    """
    from timewheel.core.clock import SystemClock
    from timewheel.core.errors import AdminMissing, TopologyError
    from timewheel.core.names import Names
    from timewheel.shadow.desired_state import desired_for

    try:
        before = desired_for(admin, plan, state, now_ms=SystemClock().now_ms())
    except AdminMissing as error:
        raise TopologyError(Names(plan).journal, "is missing", "run: timewheel shadow start PLAN") from error
    if before is state:
        return f"{plan.due_topic} was {state.value} already"
    return f"{plan.due_topic}: {before.value} -> {state.value}"
