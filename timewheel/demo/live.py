"""What the reader sees while the demo runs: a live table in a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

__all__ = ["PlainScreen", "Screen", "State", "TerminalScreen", "screen_for"]

PLAIN_PERIOD_S = 5.0
"""Without a terminal, one line of progress this often."""
REFRESH_PER_S = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One scheme now."""

    label: str
    sent: int
    waiting: int
    handled: int
    gaps: int | None
    peak: int


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All there is to see at one moment.

    Args:
        phase: What is going on, in a few words.
        left_s: Until the verdict.
        limit: Ranges that the broker keeps.
        rows: One per scheme that plays.
    """

    phase: str
    left_s: float
    limit: int
    rows: Sequence[Row] = ()


class Screen(Protocol):
    """Where lines and states go."""

    def say(self, line: str) -> None: ...
    def show(self, state: State) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def screen_for(console: Console) -> Screen:
    """A live table if the console is a terminal, else plain lines."""
    return TerminalScreen(console) if console.is_terminal else PlainScreen(console)


class PlainScreen:
    """Lines, for logs and pipes: every word said, and progress now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_s = 0.0
        self._gaps_shown = False

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def show(self, state: State) -> None:
        counted = any(row.gaps is not None for row in state.rows)
        first_count = counted and not self._gaps_shown
        if time.monotonic() < self._next_s and not first_count:
            return
        self._gaps_shown = self._gaps_shown or counted
        self._next_s = time.monotonic() + PLAIN_PERIOD_S
        gaps = " · ".join(f"{row.label} {_count(row.gaps)}" for row in state.rows)
        self.say(f"[{state.left_s:4.0f} s left] {state.phase}" + (f"   gaps now: {gaps}" if gaps else ""))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class TerminalScreen:
    """A table that is redrawn in place; lines said scroll above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=REFRESH_PER_S, transient=True)

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def show(self, state: State) -> None:
        self._live.update(_drawn(state))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def _drawn(state: State) -> RenderableType:
    head = Text(f"{state.phase} · {state.left_s:.0f} s left", style="bold")
    if not state.rows:
        return head
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("scheme")
    for name in ("sent", "waiting", "handled", "gaps now", "peak", f"of {state.limit:,} kept"):
        table.add_column(name, justify="right")
    for row in state.rows:
        share = row.peak / state.limit
        table.add_row(
            row.label,
            f"{row.sent:,}",
            f"{row.waiting:,}",
            f"{row.handled:,}",
            _count(row.gaps),
            f"{row.peak:,}",
            Text(f"{share:.0%}", style="red" if share > 1 else "green"),
        )
    return Group(head, table)


def _count(gaps: int | None) -> str:
    return "-" if gaps is None else f"{gaps:,}"
