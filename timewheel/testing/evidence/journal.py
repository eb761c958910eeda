"""What happened to the timers of one scheme, as it happens."""

from __future__ import annotations

import time

from timewheel.hooks import Event
from timewheel.testing.evidence.messages import Progress, Told

__all__ = ["Journal", "now_ms"]

MAX_FIELDS_CHARS = 300
"""Of an event's fields, kept for the reader."""


def now_ms() -> int:
    """The system's clock, UTC milliseconds."""
    return time.time_ns() // 1_000_000


class Journal:
    """What happened to the timers of one scheme; written from several threads, each field by one of them."""

    def __init__(self, messages: int) -> None:
        self.due_ms = [0] * messages
        self.attempted_ms = [0] * messages
        self.confirmed_ms = [0] * messages
        self.handlings: list[tuple[str, int, int]] = []
        """(timer id, handled at, hops) of every handling."""
        self.attempted = 0
        self.last_due_ms = 0
        self.confirmed = 0
        self.handled: set[str] = set()
        self.failed = 0
        self.last_error = ""
        self.events: dict[str, Told] = {}
        """What the SDK told its hooks, warnings and errors only, by name."""
        self.fatal: BaseException | None = None
        """What ended the consumer; the publishing thread raises it."""

    def attempt(self, index: int, at_ms: int, due_ms: int) -> None:
        self.attempted_ms[index], self.due_ms[index] = at_ms, due_ms
        self.attempted += 1
        self.last_due_ms = max(self.last_due_ms, due_ms)

    def confirm(self, index: int) -> None:
        self.confirmed_ms[index] = now_ms()
        self.confirmed += 1

    def fail(self, error: object) -> None:
        self.failed += 1
        self.last_error = str(error)

    def handle(self, timer: str, hops: int) -> None:
        self.handlings.append((timer, now_ms(), hops))
        self.handled.add(timer)

    def note(self, event: Event) -> None:
        """A hook of the SDK."""
        if event.level != "info":
            before = self.events.get(event.name)
            fields = " ".join(f"{name}={value}" for name, value in event.fields.items())
            self.events[event.name] = Told(times=1 + (before.times if before else 0), last=fields[:MAX_FIELDS_CHARS])

    def progress(self) -> Progress:
        return Progress(
            attempted=self.attempted,
            confirmed=self.confirmed,
            handled=len(self.handled),
            last_due_ms=self.last_due_ms,
        )
