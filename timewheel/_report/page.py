"""What one page says: a title, facts, charts, tables, notes. Values only; `render` makes the HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Figure", "Page", "Section", "Table"]


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
class Section:
    """A part of a longer page, in this order.

    Args:
        heading: Its own.
        sentences: A list of them.
        figure: One chart.
        tables: After it.
    """

    heading: str
    sentences: Sequence[str] = ()
    figure: Figure | None = None
    tables: Sequence[Table] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What is shown, from top to bottom.

    Args:
        title: The page's.
        verdict: One line, the most important one.
        good: Whether it is good news.
        facts: (name, text) pairs.
        figure: The chart that shows the verdict.
        tables: After it.
        sections: After them.
        notes: Paragraphs at the end.
        commands: (what for, shell line) pairs.
    """

    title: str
    verdict: str
    good: bool
    facts: Sequence[tuple[str, str]]
    figure: Figure
    tables: Sequence[Table] = ()
    sections: Sequence[Section] = ()
    notes: Sequence[str] = ()
    commands: Sequence[tuple[str, str]] = ()
