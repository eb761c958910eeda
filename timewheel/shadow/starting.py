"""Notes beside the intake that its due topic is to be shadowed."""

from __future__ import annotations

from timewheel.admin.client import AdminClient
from timewheel.core.names import Names
from timewheel.core.plan import Plan
from timewheel.shadow.machine.states import STATE_PROPERTY, State, Wish, wish_in

__all__ = ["wish_for_shadow"]


def wish_for_shadow(admin: AdminClient, plan: Plan, now_ms: int) -> Wish:
    """Note it; where it is noted already, since when stays as it is.

    Args:
        admin: Of any broker.
        plan: Its topics are there.
        now_ms: UTC milliseconds.

    Raises:
        AdminError: The topic is not there, or the role may not.
    """
    intake = Names(plan).intake
    known = wish_in(admin.topics.properties(intake))
    if known.state is State.SHADOWING:
        return known
    wish = Wish(State.SHADOWING, now_ms)
    admin.topics.update_properties(intake, {STATE_PROPERTY: wish.text()})
    return wish
