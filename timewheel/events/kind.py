"""Registration of an event in the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

from timewheel.hooks import Event, Level

E = TypeVar("E", bound=Event)
kinds: list[type[Event]] = []
"""All registered events, in the order in which they are imported."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def event(name: str, level: Level, *, means: str, do: str) -> Callable[[type[E]], type[E]]:
    """Make a class of fields an entry of the catalogue.

    Args:
        name: Name in snake case, for logs.
        level: Level of its log line.
        means: Meaning of the event, for the operator on call.
        do: Remedy.
    """

    def entered(kind: type[E]) -> type[E]:
        made = dataclass(frozen=True, slots=True, kw_only=True)(kind)
        made.name, made.level, made.means, made.do = name, level, means, do
        kinds.append(made)
        return made

    return entered
