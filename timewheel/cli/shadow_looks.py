"""Shared parts of the commands that inspect a shadowed topic: clients, progress and the plan."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from timewheel.cli.exit_status import FAILED
from timewheel.cli.terminal import print_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console


__all__ = [
    "reading_entries",
    "unseen_is_an_exit",
]


@contextmanager
def unseen_is_an_exit() -> Iterator[None]:
    """End the command with `FAILED`, and the broker's reason on stderr, if the topic cannot be seen."""
    from timewheel.broker.protocol.errors import BinaryProtocolError
    from timewheel.core.errors import AdminError

    try:
        yield
    except (AdminError, BinaryProtocolError) as error:
        print_error(error)
        raise typer.Exit(FAILED) from error


@contextmanager
def reading_entries(console: Console, what: str = "reading entries") -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on stderr in a terminal; elsewhere show nothing."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bars = Progress(
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task: Any = bars.add_task("", total=None)
    with bars:
        yield lambda done, total: bars.update(task, completed=done, total=total)
