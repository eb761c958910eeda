"""What a benchmark found, so that all can be printed, saved and written into the docs alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One row of a benchmark."""

    question: str  # the benchmark, in a few words
    subject: str  # what was measured
    # names with their units, in the order of the columns
    figures: Mapping[str, float | int | str] = field(default_factory=dict)
    goal: str = ""  # what had to be reached; empty: none
    met: bool | None = None  # whether it was; None: there was no goal


def table(results: Sequence[Result]) -> str:
    """Lay out one benchmark's results as a Markdown table, readable as plain text too."""
    names = list(dict.fromkeys(name for result in results for name in result.figures))
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
    return "" if result.met is None else f"{result.goal}: {'met' if result.met else 'MISSED'}"


def text(value: float | str) -> str:
    """Return a figure as tables have it."""
    if isinstance(value, str):
        return value
    whole = value == int(value) and not isinstance(value, float)
    return f"{value:,.0f}" if whole or abs(value) >= 100 else f"{value:,.2f}"


HEAD = """# Benchmarks

```console
$ make bench                          # all questions
$ make bench ARGS="routing producer"  # some of them
$ make bench ARGS="--write"           # write the answers into this page
```

Ours and its comparison are measured in turn within a run: ratios travel to other machines, figures do not. On
a busy machine nothing is written.
`benchmarks/NAME.py` describes how NAME measures; `--json FILE` writes all figures. A goal is met or MISSED."""

_MARK = "## "
_BEHIND = {"%", "x", "of", "pending", "s", "timers/s"}
_UNITS = {"s", "ms", "us", "MB", "msg/s", "timers/s", "plans"}


def title(module: ModuleType) -> str:
    """A benchmark's question: the first line of what its module says."""
    return (module.__doc__ or "").strip().partition("\n")[0]


def section(module: ModuleType, results: Sequence[Result], *, measured: str) -> str:
    """Describe the findings of one benchmark: question, date, and a line for each goal or question.

    Args:
        module: Its doc string begins with the question. Its ``SHOWN`` names the figures of the page (default: all), its
            ``HIDDEN`` words of rows that the page leaves out. A row that is compared with itself is left out too.
        results: Its rows.
        measured: When, on what and by which command, as Markdown.
    """
    shown: frozenset[str] = getattr(module, "SHOWN", frozenset())
    hidden: tuple[str, ...] = getattr(module, "HIDDEN", ())
    by_goal: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        own = {name: value for name, value in result.figures.items() if not shown or name in shown}
        is_shown = result.met is not None or any(text(value) != "1.00" for value in own.values())
        if is_shown and not any(words in result.subject for words in hidden):
            by_goal.setdefault((result.question, goal_line(result)), []).append(replace(result, figures=own))
    by_question: dict[str, list[str]] = {}
    for (question, goal), found in by_goal.items():
        by_question.setdefault(question, []).append(_line(found, goal))
    told = [line for lines in by_question.values() for line in lines]
    if len(by_question) > 1:  # each has figures of its own
        told = [f"{name[:1].upper()}{name[1:]}. {'. '.join(lines)}" for name, lines in by_question.items()]
    return "\n\n".join([_MARK + title(module), measured, "\n".join(f"- {line}" for line in told)])


def _line(found: Sequence[Result], goal: str) -> str:
    """The figures of rows that have a goal in common; of several rows with one figure, its name once."""
    names = {name for result in found for name in result.figures}
    if len(names) == 1 and len(found) > 1 and all(result.figures for result in found):
        (name,) = names
        rows = [f"**{result.subject}** {text(result.figures[name])}" for result in found]
        told = f"{name}: {'; '.join(rows)}"
    else:
        told = "; ".join(
            f"**{result.subject}** {', '.join(_figure(name, value) for name, value in result.figures.items())}"
            for result in found
        )
    return f"{told.rstrip()} ({goal})" if goal else told


def _figure(name: str, value: float | str) -> str:
    """A figure in words: a unit stands behind it, and so does a name such as "of raw"."""
    before, _, unit = name.rpartition(" ")
    if name.split(maxsplit=1)[0] in _BEHIND:
        return f"{text(value)} {name}"
    return f"{before.removesuffix(',')} {text(value)} {unit}".strip() if unit in _UNITS else f"{name} {text(value)}"


def sections(page: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in ("\n" + page).split("\n" + _MARK)[1:]:
        found[part.partition("\n")[0].strip()] = (_MARK + part).strip()
    return found


# A run may ask one question only, and at another time than the others: so every section says when, on what and by which
# command it was measured, and a run replaces its own sections and leaves the rest as it is.
def merged(page: str, new: Mapping[str, str], order: Sequence[str]) -> str:
    found = {**sections(page), **new}
    titles = [*(name for name in order if name in found), *(name for name in found if name not in order)]
    return "\n\n".join([HEAD, *(found[name] for name in titles)]) + "\n"


def show(results: Sequence[Result]) -> None:
    """Print a table for each question."""
    for question in dict.fromkeys(result.question for result in results):
        print(table([result for result in results if result.question == question]), flush=True)
