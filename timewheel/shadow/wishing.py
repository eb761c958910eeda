"""Notes beside a journal what its shadow is to do: every process that shadows the topic sees it within seconds."""

from __future__ import annotations

from timewheel.admin.client import AdminClient
from timewheel.core.names import Names
from timewheel.core.plan import Plan
from timewheel.shadow.machine.states import STATE_PROPERTY, State, Wish, wish_in

__all__ = ["wish_for"]


def wish_for(admin: AdminClient, plan: Plan, state: State, *, now_ms: int) -> State:
    """Note a state from now on; one that is noted already keeps its time.

    Args:
        admin: Its role administers the tenant.
        plan: Its journal is there.
        state: What is wished.
        now_ms: UTC milliseconds.

    Returns:
        What was noted before.

    Raises:
        AdminMissing: There is no journal.
        AdminError: The broker refused it.
    """
    journal = Names(plan).journal
    before = wish_in(admin.topics.properties(journal)).state
    if before is not state:
        admin.topics.update_properties(journal, {STATE_PROPERTY: Wish(state, now_ms).text()})
    return before
