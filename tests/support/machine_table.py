"""Generates the table of a relay's states and events in docs/internals.md from walks through its machines.

As a program it writes the page; `make docs-tables` runs it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from tests.consumers.relay.machine_walk import Met, walk_broker_held, walk_slot, walk_tier
from tests.support.checkout import ROOT
from tests.support.drawn import drawn
from timewheel.consumers.relay.machine.states import State

__all__ = ["PAGE", "TABLES", "begin", "lines", "redrawn", "walked"]

PAGE = ROOT / "docs" / "internals.md"
TABLES: dict[str, tuple[Callable[[int, int], list[Met]], ...]] = {
    "relay-held": (walk_tier, walk_slot),
    "broker-held": (walk_broker_held,),
}
"""The walks whose transitions a table contains."""
SEEDS = range(2_000)
STEPS = 250

_STATES = list(State)


def walked(name: str) -> set[Met]:
    """Return all transitions of these walks."""
    return {met for seed in SEEDS for walk in TABLES[name] for met in walk(seed, STEPS)}


def lines(met: Iterable[Met]) -> list[str]:
    """Return the rows of a table: in a state, an event leads to a state, with commands."""
    commands: dict[tuple[State, str], dict[State, set[str]]] = defaultdict(lambda: defaultdict(set))
    for state, event, then, command in met:
        commands[state, event][then].add(command.__name__)
    return [
        f"| {state.value} | {event} | {_outcomes(commands[state, event])} |\n"
        for state, event in sorted(commands, key=lambda key: (_STATES.index(key[0]), key[1]))
    ]


def _outcomes(by_state: dict[State, set[str]]) -> str:
    return "; ".join(
        f"**{state.value}**: {', '.join(sorted(by_state[state]))}" for state in sorted(by_state, key=_STATES.index)
    )


def begin(name: str) -> str:
    """Return the line of the page before a table."""
    return f"<!-- {name} machine, drawn by `make docs-tables` -->\n"


def redrawn(page: str) -> str:
    """Return the page with its tables updated."""
    head = "| state | event | then: command |\n|---|---|---|\n"
    for name in TABLES:
        page = drawn(page, begin(name), head + "".join(lines(walked(name))))
    return page


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
