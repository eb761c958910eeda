"""Generates the outline of a relay's states and events in docs/state-machines.txt from walks through its machines.

As a program it writes the page; `make docs-tables` runs it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from tests.relay.machine_walk import Met, walk_broker_held, walk_slot, walk_tier
from tests.support.checkout import ROOT
from tests.support.drawn import draw, outline
from timewheel.relay.machine.interface import State

PAGE = ROOT / "docs" / "state-machines.txt"
TABLES: dict[str, tuple[Callable[[int, int], list[Met]], ...]] = {
    "relay-held": (walk_tier, walk_slot),
    "broker-held": (walk_broker_held,),
}
"""The walks whose transitions an outline contains."""
SEEDS = range(2_000)
STEPS = 250


def walked(name: str) -> set[Met]:
    """Return all transitions of these walks."""
    return {met for seed in SEEDS for walk in TABLES[name] for met in walk(seed, STEPS)}


def lines(met: Iterable[Met]) -> list[str]:
    """Return the lines of a machine: in a state, an event leads to a state, with commands."""
    commands: dict[tuple[str, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for state, event, then, command in met:
        commands[state.value, event][then.value].add(command.__name__)
    return outline(commands, [state.value for state in State])


def begin(name: str) -> str:
    """Return the line of the page before an outline."""
    return f"<!-- {name} machine, drawn by `make docs-tables` -->\n"


if __name__ == "__main__":
    draw(PAGE, {begin(name): "".join(lines(walked(name))) for name in TABLES})
