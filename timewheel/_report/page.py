"""What one page says: a title, facts, charts, tables, notes. Values only; `render` makes the HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Figure", "Fold", "Headline", "Page", "Section", "Slider", "Sliders", "Table"]


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
        name: Lower-case letters; of one page's figures each has its own.
        spec: Of Vega-Lite, as JSON values.
        words: What is to be seen, for those who do not see it.
        caption: Below it.
        hint: What a pointer can do with it.
    """

    name: str
    spec: Mapping[str, Any]
    words: str
    caption: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """A figure that a reader takes away.

    Args:
        name: Of what.
        value: The figure.
        unit: What it counts.
        known: How it is known: "counted" or "estimated".
        lines: What it is to be held against, and how sure it is.
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
    """One number that a reader may change.

    Args:
        name: By which the script knows it.
        label: As readers know it.
        stops: The numbers that it can have, in order.
        texts: How each is written.
        start: Where it stands at first, an index.
    """

    name: str
    label: str
    stops: Sequence[float]
    texts: Sequence[str]
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sliders:
    """Numbers to change, and what follows from them; what_if.js computes it.

    Args:
        sliders: At most a handful.
        statistic: All that the script knows, as JSON values.
        rows: (name of a number of the script's, as readers know it), of what follows.
        columns: What it follows for: the best, and what it is compared with.
    """

    sliders: Sequence[Slider]
    statistic: Mapping[str, Any]
    rows: Sequence[tuple[str, str]]
    columns: tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a longer page, in this order.

    Args:
        heading: Its own.
        sentences: Some; where they are ranked, the first is the most important one, and looks like it.
        ranked: Whether they are.
        facts: (name, text) pairs.
        sliders: At most one section of a page has them. It is not shown without scripts, nor on paper.
        figure: One chart.
        links: (name, file beside the page) pairs.
        tables: After it.
        folds: After them.
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
    """What is shown, from top to bottom.

    Args:
        title: The page's.
        verdict: One line, the most important one.
        good: Whether it is good news.
        facts: (name, text) pairs.
        headlines: At most three.
        notices: Sentences that nobody may miss.
        figure: The chart that shows the verdict; None: none does.
        tables: After it.
        sections: After them.
        notes: Paragraphs at the end.
        commands: (what for, shell line) pairs.
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
