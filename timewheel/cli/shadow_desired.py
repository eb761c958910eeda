"""Shared parts of the shadow's commands: the plan, the desired state beside its journal, topics that cannot be seen."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from timewheel.cli.options import FAILED
from timewheel.cli.terminal import print_error
from timewheel.core.clock import SystemClock
from timewheel.core.errors import AdminError, AdminMissing, PlanError, TopologyError
from timewheel.core.escapes import timewheel_command
from timewheel.core.names import Names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from timewheel.broker.admin.client import AdminClient
    from timewheel.core.plan import Plan
    from timewheel.shadow.machine.states import State


def plan_with_intake(file: Path) -> Plan:
    """Load the plan of a file.

    Raises:
        PlanError: The file is no plan, or the plan has no intake.
    """
    from timewheel.core.planfile import load_plan

    plan = load_plan(file)
    if not plan.intake:
        limit = "a shadow needs the topics that come with intake = true"
        raise PlanError("intake", plan.intake, limit).in_file(file)
    return plan


def need_shadow(admin: AdminClient, plan: Plan, plan_file: Path) -> State:
    """Return the desired state of a topic; refuse a plan for whose topic no shadow was started.

    Raises:
        TopologyError: There is no due topic, or no journal beside it.
        AdminError: The broker refused the request.
    """
    from timewheel.shadow.machine.states import desired_in

    journal = Names(plan).journal
    try:
        return desired_in(admin.topics.properties(journal)).state
    except AdminMissing as error:
        if admin.topics.partitions(plan.due_topic) is None:
            remedy = f"correct due_topic in {plan_file}, or its namespace, or the brokers that the command asks"
            raise TopologyError(plan.due_topic, "does not exist", remedy) from error
        start = timewheel_command("shadow", "start", str(plan_file))
        fact = f"has no shadow: there is no {journal}"
        raise TopologyError(plan.due_topic, fact, f"to start one: {start}; or correct {plan_file}") from error


def refuse_pause(plan: Plan, plan_file: Path, state: State) -> None:
    """Refuse to pause a topic of which nothing is moved or held, for a pause would only hide that.

    Raises:
        TopologyError: The shadow was never started, or its abort is complete.
    """
    from timewheel.shadow.machine.states import State

    if state in (State.PROVISIONED, State.NATIVE):
        start = timewheel_command("shadow", "start", str(plan_file))
        fact = f"is {state.value}: nothing is moved, so there is nothing to pause"
        raise TopologyError(plan.due_topic, fact, f"to begin: {start}")


def note(admin: AdminClient, plan: Plan, state: State, before: State | None = None) -> str:
    """Store the desired state, from now on, for every process that shadows the plan's topic.

    Args:
        admin: Its role administers the tenant.
        plan: Its journal must exist.
        state: The desired state.
        before: The stored state, if it was read just before; None: it is read.

    Returns:
        The result as a sentence.

    Raises:
        AdminError: The broker refused the request; `AdminMissing`: there is no journal.
    """
    from timewheel.shadow.desired_state import desired_for

    before = desired_for(admin, plan, state, now_ms=SystemClock().now_ms(), before=before)
    if before is state:
        return f"{plan.due_topic} was {state.value} already"
    return f"{plan.due_topic}: {before.value} -> {state.value}"


@contextmanager
def unseen_is_an_exit() -> Iterator[None]:
    """End the command with `FAILED`, and the broker's reason on stderr, if the topic cannot be seen."""
    from timewheel.broker.protocol.errors import BinaryProtocolError

    try:
        yield
    except (AdminError, BinaryProtocolError) as error:
        print_error(error)
        raise typer.Exit(FAILED) from error
