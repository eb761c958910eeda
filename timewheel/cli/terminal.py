"""All text output of commands: sentences and tables on a terminal of any width, lines and errors.

No figure is ever cut, and no figure is broken over two lines; in a file or a pipe a row is one line. Names, ids and
reasons come from other sources, so each text passes `visible` here; JSON escapes them itself.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from timewheel.core.escapes import visible, visible_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import Console

    from timewheel._report.page import Table
    from timewheel.inspect.doctor import Finding

LONGEST_FIGURE = 20  # longer texts are words, which may continue in the next line
GAP = 2  # spaces between two columns
INDENT = 4
BETWEEN = " · "
STYLES = {"error": "bold red", "warning": "bold yellow", "info": "bold"}  # style of a finding by its severity


def terminal(*, to_stderr: bool = False) -> Console:
    """Return the console for sentences and tables."""
    from rich.console import Console

    return Console(stderr=to_stderr, highlight=False)


def render(facts: object, show: Callable[[Console], None] | str, *, as_json: bool) -> None:
    """Print the result of a command: the facts as a line of JSON; or for people a sentence, or sentences and tables."""
    if as_json:
        print(json.dumps(facts), flush=True)
    elif isinstance(show, str):
        say(terminal(), show)
    else:
        show(terminal())


def say(console: Console, text: str, *, style: str = "", indent: int = 0) -> None:
    """Print a sentence. On a terminal it wraps between two words; in a file it is one line."""
    from rich.padding import Padding
    from rich.text import Text

    if console.is_terminal:
        console.print(Padding(Text(visible(text), style), (0, 0, 0, indent), expand=False))
    else:
        show_line(console, " " * indent + text, style=style)


def show_line(console: Console, text: str, *, style: str = "") -> None:
    """Print a line without wrapping, whatever the terminal's width, so that a name or a command in it can be copied."""
    console.print(visible(text), style=style, markup=False, highlight=False, soft_wrap=True)


def show_finding(console: Console, finding: Finding, level: str, more: str = "") -> None:
    """Print a finding with its reading, its reason and its cure."""
    say(console, f"{level}: {finding.slug}: {finding.subject}{more}", style=STYLES[finding.severity.word])
    for name, text in (("read", finding.read), ("why", finding.why), ("cure", finding.cure)):
        say(console, f"{name:5} {text}", indent=2)


def print_line(text: str, *, to_stderr: bool = False) -> None:
    """Print a line without any style, and flush."""
    print(visible(text), file=sys.stderr if to_stderr else sys.stdout, flush=True)


def print_error(error: object) -> None:
    """Print an error, or a message about an error, on standard error."""
    print(f"timewheel: {visible_lines(str(error))}", file=sys.stderr, flush=True)


@contextmanager
def progress_bar(text: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on stderr in a terminal, and yield its callback; elsewhere show nothing."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    bars = Progress(
        TextColumn(text),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )
    task: Any = bars.add_task("", total=None)
    with bars:
        yield lambda done, total: bars.update(task, completed=done, total=total)


def show_table(console: Console, table: Table) -> None:
    """Print columns if they fit side by side; else a block for each row, with every figure behind its column's name.

    In a file or a pipe each row is one line, however long.
    """
    header, *rows = [tuple(map(visible, row)) for row in (table.header, *table.rows)]
    console.print()
    say(console, table.caption, style="bold")
    if not console.is_terminal:
        _show_lines(console, [header, *rows])
        return
    widths = _widths(header, rows, console.width)
    if widths is not None:
        _show_columns(console, header, rows, widths)
        return
    for row in rows:
        say(console, row[0])
        for line in _lines(header, row, console.width - INDENT):
            say(console, line, indent=INDENT)


def show_rows(console: Console, caption: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table, see `show_table`."""
    from timewheel._report.page import Table

    show_table(console, Table(caption=caption, header=tuple(header), rows=tuple(map(tuple, rows))))


def _show_lines(console: Console, rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *figures in rows:
        cells = [name.ljust(widths[0]), *(text.rjust(width) for text, width in zip(figures, widths[1:], strict=True))]
        show_line(console, (" " * GAP).join(cells).rstrip())


def _show_columns(
    console: Console, header: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int]
) -> None:
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for number, (name, width) in enumerate(zip(header, widths, strict=True)):
        # Each column has its own width: rich cuts texts when it distributes too little room itself.
        shown.add_column(Text(name), justify="right" if number else "left", overflow="fold", width=width)
    for row in rows:
        shown.add_row(*(Text(text) for text in row))
    console.print(shown)


def _widths(header: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """Return the width of each column: columns of words shrink, the widest first; None: they cannot shrink enough."""
    columns = [[name, *(row[number] for row in rows)] for number, name in enumerate(header)]
    widths = [max(map(len, texts)) for texts in columns]
    least = [_least_width(texts, is_name=not number) for number, texts in enumerate(columns)]
    too_wide = sum(widths) + GAP * (len(widths) - 1) - room
    while too_wide > 0:
        slack, widest = max((width - least[number], number) for number, width in enumerate(widths))
        if slack <= 0:
            return None
        widths[widest] -= 1
        too_wide -= 1
    return widths


def _least_width(texts: Sequence[str], *, is_name: bool) -> int:
    """Return the width of the longest figure, and of the longest word in other texts: headers and row names."""
    words = [
        word if len(word) <= LONGEST_FIGURE else ""
        for number, text in enumerate(texts)
        if is_name or not number or len(text) > LONGEST_FIGURE
        for word in text.split()
    ]
    whole = [] if is_name else [text for text in texts[1:] if len(text) <= LONGEST_FIGURE]
    return max([len(text) for text in (*words, *whole)], default=1) or 1


def _lines(header: Sequence[str], row: Sequence[str], width: int) -> Iterator[str]:
    """Yield a row's figures with their names, as many per line as fit."""
    line = ""
    for name, text in zip(header[1:], row[1:], strict=True):
        pair = f"{name} {text}"
        if not line:
            line = pair
        elif len(line) + len(BETWEEN) + len(pair) <= width:
            line += BETWEEN + pair
        else:
            yield line
            line = pair
        if len(line) > width >= len(text):
            # Break between two words of the name, not of the figure.
            yield line.removesuffix(f" {text}")
            line = text
    if line:
        yield line
