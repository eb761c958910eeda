"""Stores the desired state and the progress of a shadow beside its journal, where each process sees them in seconds."""

from __future__ import annotations

from contextlib import suppress

from timewheel.broker.admin.client import AdminClient
from timewheel.core.errors import AdminDenied
from timewheel.core.names import STATE_PROPERTY, Names
from timewheel.core.plan import Plan
from timewheel.shadow.machine.states import DesiredState, State, caught_up_property, desired_in


def desired_for(admin: AdminClient, plan: Plan, state: State, *, now_ms: int, before: State | None = None) -> State:
    """Store a desired state from now on; a state that is stored already keeps its time.

    Args:
        admin: Its role administers the tenant.
        plan: Its journal must exist.
        state: The desired state.
        now_ms: UTC milliseconds.
        before: The stored state, if it was read just before; None: it is read.

    Returns:
        The state that was stored before.

    Raises:
        AdminMissing: There is no journal.
        AdminError: The broker refused it.
    """
    journal = Names(plan).journal
    before = before or desired_in(admin.topics.properties(journal)).state
    if before is not state:
        admin.topics.update_properties(journal, {STATE_PROPERTY: DesiredState(state, now_ms).text()})
    return before


def note_caught_up(admin: AdminClient, plan: Plan, partition: int, at_ms: int) -> None:
    """Store when a partition's mover had processed the backlog, UTC milliseconds; 0: it no longer has.

    A mover whose role may not store it moves all the same; a status then shows that it is catching up.
    """
    journal, name = Names(plan).journal, caught_up_property(partition)
    with suppress(AdminDenied):
        if admin.topics.properties(journal).get(name, "0") != str(at_ms):
            admin.topics.update_properties(journal, {name: str(at_ms)})
