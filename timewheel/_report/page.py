"""The content of a page: a title, facts, charts, tables, notes. Values only; `render` makes the HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Texts in columns; the first column names the row."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart.

    Args:
        name: Lower-case letters; unique among the figures of a page.
        spec: Vega-Lite specification, as JSON values.
        words: Description for readers who cannot see it.
        caption: Below it.
        hint: How to use a pointer on it.
    """

    name: str
    spec: Mapping[str, Any]
    words: str
    caption: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """A key figure of the page.

    Args:
        name: Name of the figure.
        value: The figure.
        unit: Its unit.
        known: Its origin: "counted" or "estimated".
        lines: Values for comparison, and its uncertainty.
        good: Whether it is good news; None: neither.
    """

    name: str
    value: str
    unit: str
    known: str
    lines: Sequence[str] = ()
    good: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """A table that a reader may open."""

    name: str
    table: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Slider:
    """A number that a reader may change.

    Args:
        name: Name for the script.
        label: Name for readers.
        stops: The possible numbers, in order.
        texts: Text of each number.
        start: Index of the initial number.
    """

    name: str
    label: str
    stops: Sequence[float]
    texts: Sequence[str]
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sliders:
    """Numbers to change, and results that what_if.js computes from them.

    Args:
        sliders: At most a handful.
        statistic: All data for the script, as JSON values.
        rows: (name in the script, name for readers) of each result.
        columns: The two plans with results: the best, and the plan that it is compared with.
    """

    sliders: Sequence[Slider]
    statistic: Mapping[str, Any]
    rows: Sequence[tuple[str, str]]
    columns: tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a longer page, in this order.

    Args:
        heading: Its heading.
        sentences: Sentences of text. If they are ranked, the first is the most important, and is shown as such.
        ranked: Whether they are ranked.
        facts: (name, text) pairs.
        sliders: At most one section of a page has sliders. They are not shown without scripts, nor on paper.
        figure: A chart.
        links: (name, file beside the page) pairs.
        tables: After the figure.
        folds: After the tables.
    """

    heading: str
    sentences: Sequence[str] = ()
    ranked: bool = False
    facts: Sequence[tuple[str, str]] = ()
    sliders: Sliders | None = None
    figure: Figure | None = None
    links: Sequence[tuple[str, str]] = ()
    tables: Sequence[Table] = ()
    folds: Sequence[Fold] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The content of a page, from top to bottom.

    Args:
        title: Title of the page.
        verdict: The most important line.
        good: Whether it is good news.
        facts: (name, text) pairs.
        headlines: At most three.
        notices: Sentences that no reader may miss.
        figure: The chart that shows the verdict; None: no chart does.
        tables: After the figure.
        sections: After the tables.
        notes: Paragraphs at the end.
        commands: (purpose, shell line) pairs.
    """

    title: str
    verdict: str
    good: bool
    figure: Figure | None = None
    facts: Sequence[tuple[str, str]] = ()
    headlines: Sequence[Headline] = ()
    notices: Sequence[str] = ()
    tables: Sequence[Table] = ()
    sections: Sequence[Section] = ()
    notes: Sequence[str] = ()
    commands: Sequence[tuple[str, str]] = ()
