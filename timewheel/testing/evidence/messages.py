"""The messages between parent and player, over their pipe."""

from __future__ import annotations

from dataclasses import dataclass

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
    """From the player: its results.

    Args:
        entries: The ledger's rows.
        lateness_ms: Lateness of every handling, repeated handlings too, ascending.
        hops: Re-publications of all handled timers together.
        redelivered_due: Deliveries on the business subscription after their acknowledgement had returned.
        redelivered_holding: The same on holding topics.
        cpu_s: Processor time of this process.
        errors: Sends that failed, and the last reason.
        events: Warnings and errors that the SDK emitted to its hooks, by name.
    """

    entries: list[Entry]
    lateness_ms: list[int]
    hops: int
    redelivered_due: int
    redelivered_holding: int
    cpu_s: float
    errors: tuple[int, str]
    events: dict[str, Reported]
