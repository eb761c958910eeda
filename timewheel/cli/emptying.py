"""Waits until a relay has sent all waiting timers back to the due topic, and shows the progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timewheel.cli.terminal import show_line
from timewheel.core.escapes import visible
from timewheel.core.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

__all__ = ["await_empty"]

LOOK_MS = 500
EMPTY_LOOKS = 2
"""A timer that moves from one topic to another is in neither for a moment."""
REPORT_MS = 15_000
"""Interval between two progress lines if the output is no terminal."""
STALLED_MS = 15_000
"""The reason is shown after this time without progress."""


def await_empty(
    console: Console,
    waiting: Callable[[], int],
    *,
    settle_ms: int = 0,
    why_stalled: Callable[[], str] = lambda: "",
) -> None:
    """Poll until no entry waits outside the due topic.

    Args:
        console: Shows the progress.
        waiting: Counts entries outside the due topic.
        settle_ms: Shortest time to poll.
        why_stalled: Returns the reason for no progress, as a clause; empty: the reason is unknown.
    """
    from rich.text import Text

    from timewheel.core.clock import SystemClock, pause
    from timewheel.core.durations import span

    clock = SystemClock()
    began_ms = moved_ms = reported_ms = clock.monotonic_ms()
    first = least = waiting()
    entries, empty_looks, reason = first, 0, ""
    with console.status("looking") as shown:
        while True:
            now_ms = clock.monotonic_ms()
            if entries < least:
                least, moved_ms, reason = entries, now_ms, ""
            empty_looks = 0 if entries else empty_looks + 1
            if empty_looks >= EMPTY_LOOKS and now_ms >= began_ms + settle_ms:
                return
            if entries and now_ms - moved_ms >= STALLED_MS:
                reason, moved_ms = why_stalled(), now_ms
            done, took_ms = first - entries, now_ms - began_ms
            left = f", about {span(entries * took_ms / done)} left" if done > 0 and entries and took_ms else ""
            waits = counted(entries, "entry waits", "entries wait")
            line = f"{waits} outside the topic{left}" + (f": {reason}" if reason else "")
            shown.update(Text(visible(line)))
            if not console.is_terminal and now_ms - reported_ms >= REPORT_MS:
                reported_ms = now_ms
                show_line(console, line)
            pause(clock, LOOK_MS)
            entries = waiting()
