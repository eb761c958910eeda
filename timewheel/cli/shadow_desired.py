"""Stores the desired state of a shadow beside its plan's journal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from timewheel.broker.admin.client import AdminClient
    from timewheel.core.plan import Plan
    from timewheel.shadow.machine.states import State

__all__ = ["need_shadow", "note", "plan_with_intake"]


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


def need_shadow(admin: AdminClient, plan: Plan, plan_file: Path) -> None:
    """Refuse a plan for whose topic no shadow was started.

    Raises:
        TopologyError: There is no due topic, or no journal beside it.
        AdminError: The broker refused the request.
    """
    from timewheel.core.errors import AdminMissing, TopologyError
    from timewheel.core.escapes import timewheel_command
    from timewheel.core.names import Names

    journal = Names(plan).journal
    try:
        admin.topics.properties(journal)
    except AdminMissing as error:
        if admin.topics.partitions(plan.due_topic) is None:
            remedy = f"correct due_topic in {plan_file}, or its namespace, or the brokers that the command asks"
            raise TopologyError(plan.due_topic, "does not exist", remedy) from error
        start = timewheel_command("shadow", "start", str(plan_file))
        fact = f"has no shadow: there is no {journal}"
        raise TopologyError(plan.due_topic, fact, f"to start one: {start}; or correct {plan_file}") from error


def note(admin: AdminClient, plan: Plan, state: State) -> str:
    """Store the desired state, from now on, for every process that shadows the plan's topic.

    Returns:
        The result as a sentence.

    Raises:
        AdminError: The broker refused the request; `AdminMissing`: there is no journal.
    """
    from timewheel.core.clock import SystemClock
    from timewheel.shadow.desired_state import desired_for

    before = desired_for(admin, plan, state, now_ms=SystemClock().now_ms())
    if before is state:
        return f"{plan.due_topic} was {state.value} already"
    return f"{plan.due_topic}: {before.value} -> {state.value}"
