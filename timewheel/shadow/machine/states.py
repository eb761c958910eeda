"""The desired state of a shadow: stored on the broker, beside the journal, as two words."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, unique
from typing import NamedTuple

from timewheel.core.durations import whole_number
from timewheel.core.names import STATE_PROPERTY


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
    """A desired state with its time.

    Args:
        state: State of the topic.
        since_ms: UTC milliseconds.
    """

    state: State
    since_ms: int

    def text(self) -> str:
        """Format the desired state as it is stored."""
        return f"{self.state.value} {self.since_ms}"


def moves(state: State) -> bool:
    """Return whether movers move in this state."""
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
