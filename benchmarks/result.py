"""What a benchmark found, so that all can be printed, saved and written into the docs alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

__all__ = ["Result", "goal_line", "table", "text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One row of a benchmark.

    Args:
        question: The benchmark, in a few words.
        subject: What was measured.
        figures: Names with their units, in the order of the columns.
        goal: What had to be reached; empty: none.
        met: Whether it was; None: there was no goal.
    """

    question: str
    subject: str
    figures: Mapping[str, float | int | str] = field(default_factory=dict)
    goal: str = ""
    met: bool | None = None


def table(results: Sequence[Result], *, shown: AbstractSet[str] = frozenset()) -> str:
    """Lay out one benchmark's results as a Markdown table, readable as plain text too.

    Args:
        results: The rows.
        shown: Names of the figures to show; empty: all.
    """
    names = list(dict.fromkeys(name for result in results for name in result.figures if not shown or name in shown))
    rows = [["", *names, "goal"]]
    rows += [
        [result.subject, *(text(result.figures.get(name, "")) for name in names), goal_line(result)]
        for result in results
    ]
    if all(result.met is None for result in results):
        rows = [row[:-1] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def goal_line(result: Result) -> str:
    """The goal and whether it was met."""
    return "" if result.met is None else f"{result.goal}: {'met' if result.met else 'MISSED'}"


def text(value: float | str) -> str:
    """Return a figure as tables have it."""
    if isinstance(value, str):
        return value
    whole = value == int(value) and not isinstance(value, float)
    return f"{value:,.0f}" if whole or abs(value) >= 100 else f"{value:,.2f}"
