"""The progress of the demo: a line, rewritten in place on a terminal, and written from time to time elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from timewheel.core.escapes import visible
from timewheel.demo.settings import SchemeName

PLAIN_PERIOD_S = 15.0
"""Interval of progress lines without a terminal."""
REFRESH_PER_S = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of the run: the time to the verdict, the ranges that the broker keeps, the gaps by scheme."""

    phase: str
    left_s: float
    limit: int = 0
    gaps: Mapping[SchemeName, int] = field(default_factory=dict)


def progress_line(state: State) -> str:
    """Format the state as a line that fits a terminal of 80 columns."""
    native = [f"native {gaps:,}" for scheme, gaps in state.gaps.items() if scheme == "native"]
    others = [gaps for scheme, gaps in state.gaps.items() if scheme != "native"]
    parts = [*native, *([f"timewheel at most {max(others):,}"] if others else [])]
    counted = f"  gaps now: {', '.join(parts)}, kept {state.limit:,}" if parts else ""
    return f"[{state.left_s:4.0f} s left] {state.phase}{counted}"


def screen_for(console: Console) -> PlainScreen:
    """Return a screen that rewrites a line on a terminal, and elsewhere writes lines from time to time."""
    return TerminalScreen(console) if console.is_terminal else PlainScreen(console)


class PlainScreen:
    """Plain lines, for logs and pipes: every line, and progress from time to time."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_s = 0.0

    def say(self, line: str) -> None:
        self._console.print(visible(line), highlight=False, markup=False, soft_wrap=True)

    def show(self, state: State) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + PLAIN_PERIOD_S
            self.say(progress_line(state))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class TerminalScreen(PlainScreen):
    """A line that is rewritten in place; other lines scroll above it."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live = Live(console=console, refresh_per_second=REFRESH_PER_S, transient=True)

    def show(self, state: State) -> None:
        self._live.update(Text(visible(progress_line(state)), no_wrap=True, overflow="ellipsis"))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
