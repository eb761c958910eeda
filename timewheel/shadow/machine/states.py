"""What a shadow is to do with a topic: a wish that is kept on the broker, beside the journal, as two words."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, unique
from typing import NamedTuple

from timewheel.core.digits import whole_number
from timewheel.core.names import STATE_PROPERTY

__all__ = ["STATE_PROPERTY", "State", "Wish", "caught_up_in", "caught_up_property", "drains", "lifts", "wish_in"]


@unique
class State(Enum):
    """Of one due topic."""

    PROVISIONED = "provisioned"
    """The topics are there, and nothing is moved."""
    SHADOWING = "shadowing"
    """What is far from due is lifted. Until the backlog has been gone through it is called catching up."""
    PAUSED = "paused"
    """Nothing is lifted; what was lifted goes its way."""
    DRAINING = "draining"
    """Nothing is lifted; all that was lifted goes back to the due topic now."""
    NATIVE = "native"
    """As draining, and nothing waits any more: the way out is complete."""


class Wish(NamedTuple):
    """What is wished, and since when.

    Args:
        state: Of the topic.
        since_ms: UTC milliseconds.
    """

    state: State
    since_ms: int

    def text(self) -> str:
        """As it is kept."""
        return f"{self.state.value} {self.since_ms}"


def lifts(state: State) -> bool:
    """Whether lifters lift."""
    return state is State.SHADOWING


def drains(state: State) -> bool:
    """Whether relays send everything back to the due topic."""
    return state in (State.DRAINING, State.NATIVE)


def caught_up_property(partition: int) -> str:
    """Where a partition's lifter notes when it had gone through the backlog, UTC milliseconds."""
    return f"{STATE_PROPERTY}-caught-up-{partition}"


def caught_up_in(properties: Mapping[str, str], partition: int, wish: Wish) -> int | None:
    """When a partition's lifter had gone through the backlog, UTC milliseconds; None: not since the wish."""
    noted_ms = whole_number(properties.get(caught_up_property(partition), ""))
    return None if noted_ms is None or noted_ms < wish.since_ms else noted_ms


def wish_in(properties: Mapping[str, str]) -> Wish:
    """The wish in a topic's properties; what nobody has noted, or is of a later version, is `PROVISIONED`."""
    word, _, since = properties.get(STATE_PROPERTY, "").partition(" ")
    try:
        state = State(word)
    except ValueError:
        state = State.PROVISIONED
    return Wish(state, whole_number(since) or 0)
