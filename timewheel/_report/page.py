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
    """A chart."""

    name: str  # lower-case letters; unique among the figures of a page
    spec: Mapping[str, Any]  # Vega-Lite specification, as JSON values
    words: str  # for readers who cannot see it
    caption: str
    hint: str  # how to use a pointer on it


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """A key figure of the page."""

    name: str
    value: str
    unit: str
    known: str  # its origin: "counted" or "estimated"
    lines: Sequence[str] = ()  # values for comparison, and its uncertainty
    good: bool | None = None  # whether it is good news; None: neither


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """A table that a reader may open."""

    name: str
    table: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Slider:
    """A number that a reader may change."""

    name: str  # for the script
    label: str  # for readers
    stops: Sequence[float]  # the possible numbers, in order
    texts: Sequence[str]  # of each number
    start: int  # index of the initial number


@dataclass(frozen=True, slots=True, kw_only=True)
class Sliders:
    """Numbers to change, and results that what_if.js computes from them."""

    sliders: Sequence[Slider]
    statistic: Mapping[str, Any]  # all data for the script, as JSON values
    rows: Sequence[tuple[str, str]]  # (name in the script, name for readers) of each result
    columns: tuple[str, str]  # the two plans with results: the best, and the plan that it is compared with


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a longer page, in this order."""

    heading: str
    sentences: Sequence[str] = ()
    ranked: bool = False  # whether the first sentence is the most important, and is shown as such
    facts: Sequence[tuple[str, str]] = ()  # (name, text) pairs
    # At most one section of a page has sliders. They are not shown without scripts, nor on paper.
    sliders: Sliders | None = None
    figure: Figure | None = None
    links: Sequence[tuple[str, str]] = ()  # (name, file beside the page) pairs
    tables: Sequence[Table] = ()
    folds: Sequence[Fold] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The content of a page, from top to bottom."""

    title: str
    verdict: str  # the most important line
    good: bool  # whether it is good news
    answer: Sequence[str] = ()  # sentences that follow the verdict, the first one the most important
    steps: Sequence[tuple[str, str]] = ()  # what to do next: (purpose, shell line) pairs
    figure: Figure | None = None  # the chart that shows the verdict
    facts: Sequence[tuple[str, str]] = ()
    headlines: Sequence[Headline] = ()  # at most three
    notices: Sequence[str] = ()  # sentences that no reader may miss
    tables: Sequence[Table] = ()
    sections: Sequence[Section] = ()
    notes: Sequence[str] = ()
    commands: Sequence[tuple[str, str]] = ()  # (purpose, shell line) pairs
