"""The events of a scheme's timers, recorded as they happen, and the messages between parent and player."""

from __future__ import annotations

import time
from dataclasses import dataclass

from timewheel.hooks import Event
from timewheel.testing.evidence.ledger import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """To the player: the topics exist."""

    service_url: str
    admin_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """From the player: it is connected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """To the player: send the trace from ``start_ms`` on."""

    start_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """To the player: close, and send the results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """From the player: different timers attempted, confirmed, handled so far, and the latest due time among them."""

    attempted: int
    confirmed: int
    handled: int
    last_due_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """From the player: it cannot continue; its traceback."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """An event of the SDK: its count, and the fields of the last occurrence."""

    times: int
    last: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """From the player: its results."""

    entries: list[Entry]  # the ledger's rows
    lateness_ms: list[int]  # lateness of every handling, repeated handlings too, ascending
    hops: int  # re-publications of all handled timers together
    redelivered_due: int  # deliveries on the business subscription after their acknowledgement had returned
    redelivered_holding: int  # the same on holding topics
    cpu_s: float  # processor time of this process
    errors: tuple[int, str]  # sends that failed, and the last reason
    events: dict[str, Reported]  # warnings and errors that the SDK emitted to its hooks, by name


MAX_FIELDS_CHARS = 300  # limit of the recorded text of an event's fields


def now_ms() -> int:
    """Return the system's time, UTC milliseconds."""
    return time.time_ns() // 1_000_000


class Journal:
    """The events of a scheme's timers; written from several threads, each field by a single thread."""

    def __init__(self, messages: int) -> None:
        self.due_ms = [0] * messages
        self.attempted_ms = [0] * messages
        self.confirmed_ms = [0] * messages
        self.handlings: list[tuple[str, int, int]] = []  # (timer id, handled at, hops) of every handling
        self.attempted = 0
        self.last_due_ms = 0
        self.confirmed = 0
        self.handled: set[str] = set()
        self.failed = 0
        self.last_error = ""
        self.events: dict[str, Reported] = {}  # warnings and errors that the SDK emitted to its hooks, by name
        self.fatal: BaseException | None = None  # the error that ended the consumer; the publishing thread raises it

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
        """Record a warning or an error, as a hook of the SDK."""
        if event.level != "info":
            before = self.events.get(event.name)
            fields = " ".join(f"{name}={value}" for name, value in event.fields.items())
            self.events[event.name] = Reported(
                times=1 + (before.times if before else 0), last=fields[:MAX_FIELDS_CHARS]
            )

    def progress(self) -> Progress:
        return Progress(
            attempted=self.attempted, confirmed=self.confirmed, handled=len(self.handled), last_due_ms=self.last_due_ms
        )
