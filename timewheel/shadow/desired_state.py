"""The desired state and the progress of a shadow, stored beside its journal: each process sees them in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, unique
from typing import NamedTuple

from timewheel.broker.admin.client import AdminClient
from timewheel.core.durations import whole_number
from timewheel.core.names import STATE_PROPERTY, Names
from timewheel.core.plan import Plan


@unique
class State(Enum):
    """States of a due topic."""

    PROVISIONED = "provisioned"
    """The topics exist, and no timer is moved."""
    SHADOWING = "shadowing"
    """Timers far from due are moved. Until the backlog has been processed, the shadow is catching up."""
    PAUSED = "paused"
    """No timer is moved; moved timers continue on their routes."""
    DRAINING = "draining"
    """No timer is moved; all moved timers go back to the due topic now."""
    NATIVE = "native"
    """Like draining, but no moved timer is left: the way out is complete."""


class DesiredState(NamedTuple):
    """A desired state, and since when, UTC milliseconds; stored on the broker, beside the journal, as two words."""

    state: State
    since_ms: int


def moves(state: State) -> bool:
    return state is State.SHADOWING


def drains(state: State) -> bool:
    """Return whether relays send all timers back to the due topic in this state."""
    return state in (State.DRAINING, State.NATIVE)


def caught_up_property(partition: int) -> str:
    """Return the property in which a partition's mover stores when it had processed the backlog, UTC milliseconds."""
    return f"{STATE_PROPERTY}-caught-up-{partition}"


def caught_up_in(properties: Mapping[str, str], partition: int, desired: DesiredState) -> int | None:
    """Return when a partition's mover had processed the backlog, UTC milliseconds; None: not in this state."""
    noted_ms = whole_number(properties.get(caught_up_property(partition), ""))
    return None if noted_ms is None or noted_ms < desired.since_ms else noted_ms


def desired_in(properties: Mapping[str, str]) -> DesiredState:
    """Read the desired state in a topic's properties; missing, or of a later version, it is `PROVISIONED`."""
    word, _, since = properties.get(STATE_PROPERTY, "").partition(" ")
    try:
        state = State(word)
    except ValueError:
        state = State.PROVISIONED
    return DesiredState(state, whole_number(since) or 0)


def desired_for(admin: AdminClient, plan: Plan, state: State, *, now_ms: int, before: State | None = None) -> State:
    """Store a desired state from ``now_ms`` on, UTC milliseconds; a state that is stored already keeps its time.

    Return the state that was stored before; ``before`` is that state, if it was read just now. The role of ``admin``
    administers the tenant.

    Raises:
        AdminMissing: There is no journal.
        AdminError: The broker refused it.
    """
    journal = Names(plan).journal
    before = before or desired_in(admin.topics.properties(journal)).state
    if before is not state:
        admin.topics.update_properties(journal, {STATE_PROPERTY: f"{state.value} {now_ms}"})
    return before
