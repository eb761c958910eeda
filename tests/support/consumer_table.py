"""Generates the outline of a timer's stages in a consumer in docs/state-machines.txt from walks through the engine.

As a program it writes the page; `make docs-tables` runs it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tests.consumers.engine_walk import NOT_IN_FLIGHT, Met, walk
from tests.support.checkout import ROOT
from tests.support.drawn import draw, outline
from timewheel.consumers.message import Stage

PAGE = ROOT / "docs" / "state-machines.txt"
TABLES = {"where nothing can be cancelled": False, "where timers can be cancelled": True}
SEEDS = range(3_000)
STEPS = 60

_STAGES = [NOT_IN_FLIGHT, *(stage.value for stage in Stage)]


def walked(name: str) -> set[Met]:
    """Return all transitions of these walks."""
    return {met for seed in SEEDS for met in walk(seed, STEPS, judges=TABLES[name])}


def lines(met: Iterable[Met]) -> list[str]:
    """Return the lines of a timer: at a stage, an event leads to a stage, with a set of commands."""
    found: dict[tuple[str, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for stage, event, then, commands in met:
        found[stage, event][then].add(" and ".join(sorted(commands)) or "-")
    return outline(found, _STAGES)


def begin(name: str) -> str:
    """Return the line of the page before an outline."""
    return f"<!-- a timer in a consumer, {name}, drawn by `make docs-tables` -->\n"


if __name__ == "__main__":
    draw(PAGE, {begin(name): "".join(lines(walked(name))) for name in TABLES})
