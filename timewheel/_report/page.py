"""One self-contained page: a title, facts, a chart, tables, notes. No script, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Figure", "Page", "Section", "Table", "render_page"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Texts in columns; the first column names the row."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A further chart.

    Args:
        svg: An SVG element, put in as it is.
        caption: Below it.
    """

    svg: str
    caption: str


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
        chart: An SVG element, put in as it is.
        caption: Of the chart.
        tables: After it.
        sections: After them.
        notes: Paragraphs at the end.
        commands: (what for, shell line) pairs.
    """

    title: str
    verdict: str
    good: bool
    facts: Sequence[tuple[str, str]]
    chart: str
    caption: str
    tables: Sequence[Table]
    sections: Sequence[Section] = ()
    notes: Sequence[str] = ()
    commands: Sequence[tuple[str, str]] = ()


_STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1b1f24; --soft: #57606a; --grid: #e3e6ea; --alarm: #b3261e;
  --good: #1a7f37; --line-0: #b3261e; --line-1: #0b62c4; --line-2: #7a3fb0; --line-3: #0a7d55; --line-4: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --ink: #e8eaed; --soft: #a5adb6; --grid: #30363d;
  --alarm: #ff8a80; --good: #57d57a; --line-0: #ff8a80; --line-1: #79b8ff; --line-2: #cfa6ff; --line-3: #5fd7a7;
  --line-4: #e3b341; } }
body { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 86rem; padding: 1.5rem; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; }
.verdict { font-size: 1.15rem; font-weight: 600; } .verdict.good { color: var(--good); }
.verdict.bad { color: var(--alarm); }
dl { display: grid; gap: .15rem 1rem; grid-template-columns: max-content 1fr; } dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
figure { margin: 1.5rem 0; } figcaption { color: var(--soft); margin-top: .5rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1rem 0; }
caption { color: var(--soft); padding: .25rem 0; text-align: left; }
th, td { border-bottom: 1px solid var(--grid); padding: .3rem .7rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
pre { background: var(--grid); border-radius: 6px; overflow-x: auto; padding: .75rem; white-space: pre-wrap; }
h2 { font-size: 1.2rem; margin: 2rem 0 .25rem; } li { max-width: 75ch; }
svg { height: auto; width: 100%; } svg text { fill: var(--ink); font: 13px system-ui, sans-serif; }
svg .tick, svg .axis, svg .peak { fill: var(--soft); font-size: 12px; }
svg .grid { stroke: var(--grid); } svg .tick-mark { stroke: var(--soft); }
svg .limit { stroke: var(--alarm); stroke-dasharray: 10 5; stroke-width: 2; }
svg text { paint-order: stroke; stroke: var(--paper); stroke-width: 4px; }
svg .limit-name { fill: var(--alarm); }
.bar-chart .bar { fill: var(--line-1); }
.choice-chart .candidate { fill: var(--soft); opacity: .35; } .choice-chart .on-front { fill: var(--line-1); }
.choice-chart .front { fill: none; stroke: var(--line-1); stroke-width: 1.5; }
.choice-chart .named { fill: var(--line-0); }
.choice-chart .leader { stroke: var(--line-0); }
.choice-chart .stands-out { fill: var(--good); } .choice-chart .stands-out-name { font-weight: 700; }
.gap-chart .mark { stroke: var(--soft); stroke-dasharray: 3 3; stroke-width: 1.5; }
.gap-chart .line { fill: none; stroke-linejoin: round; stroke-width: 2; }
.gap-chart .line-0 { stroke: var(--line-0); } .gap-chart .line-1 { stroke: var(--line-1); }
.gap-chart .line-2 { stroke: var(--line-2); } .gap-chart .line-3 { stroke: var(--line-3); }
.gap-chart .line-4 { stroke: var(--line-4); }
"""


def render_page(page: Page) -> str:
    """The page as HTML."""
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in page.facts)
    commands = "".join(f"<p>{escape(purpose)}</p><pre>{escape(line)}</pre>" for purpose, line in page.commands)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(page.title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>{escape(page.title)}</h1>
<p class="verdict {"good" if page.good else "bad"}">{escape(page.verdict)}</p>
<dl>{facts}</dl>
<figure>
{page.chart}
<figcaption>{escape(page.caption)}</figcaption>
</figure>
{"".join(map(_table, page.tables))}
{"".join(map(_section, page.sections))}
{"".join(f"<p>{escape(note)}</p>" for note in page.notes)}
{commands}
</main>
</body>
</html>
"""


def _section(section: Section) -> str:
    sentences = "".join(f"<li>{escape(sentence)}</li>" for sentence in section.sentences)
    figure = section.figure
    return (
        f"<section><h2>{escape(section.heading)}</h2>"
        + (f"<ul>{sentences}</ul>" if sentences else "")
        + (f"<figure>{figure.svg}<figcaption>{escape(figure.caption)}</figcaption></figure>" if figure else "")
        + "".join(map(_table, section.tables))
        + "</section>"
    )


def _table(table: Table) -> str:
    header = "".join(f'<th scope="col">{escape(text)}</th>' for text in table.header)
    rows = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(text)}</td>" for text in row[1:]) + "</tr>"
        for row in table.rows
    )
    return (
        f'<div class="scroll"><table><caption>{escape(table.caption)}</caption>'
        f"<thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
