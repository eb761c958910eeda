"""Counters of a consumer, and its histogram of lateness."""

from __future__ import annotations

import threading
from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

from .message import Mark


@dataclass(slots=True)
class ConsumerCounts:
    """Counters of a consumer since it was created; all but ``held`` only grow.

    Args:
        received: Messages taken from the client.
        handed: Timers handed out, or about to be; a timer that was handed out twice counts twice. A timer that was
            overdue or cancelled when its handler would have begun is also counted there.
        early: Messages received before their due time.
        far_too_early: Messages received earlier than anything that was requested (broker-facts: bounded-local-hold); an
            operator should investigate.
        republished: Early messages that were published again under their due time.
        already_handled: Timers redelivered after they were handled; dropped.
        redelivered: Messages redelivered from the same position while in flight; dropped.
        extra_copies: Copies delivered from another position while the timer is in flight; dropped.
        let_go: Timers dropped while they waited here, because the connection of their partition was lost; the broker
            delivers them again.
        timed_out: Timers handed out again after the ack timeout.
        foreign: Messages without an envelope, also those that are identified by their position, beside a shadow; handed
            out at once.
        envelope_errors: Messages with an unreadable envelope; handed out at once.
        too_new: Messages written by a later version of timewheel; given back to the broker, or parked.
        nudges: A shadow's own messages, sent for the broker's sake; dropped.
        done: Timers handled.
        failed: Timers negatively acknowledged.
        postponed: Timers put off by their handler or an `Middleware`; handed out again.
        skipped: Timers acknowledged without being handled, because their handler or an `Middleware` raised `SkipTimer`.
        cancelled: Timers dropped when they were due or their handler would have begun, because they were cancelled or
            replaced.
        overdue: Timers dropped when they arrived, because they were too late to be useful.
        unevaluated: Timers handed out though the log of cancellations did not answer (``on_log_unavailable``).
        retried: Timers published to be handled again later, because their handler or its policy decided so.
        parked: Timers published to wait for an operator: their handler or its policy decided so, they were overdue,
            they arrived so late that their cancellation was no longer known, or this consumer could neither read nor
            republish them.
        replaced: Consumers of the client that stayed away while a broker served their topic, and were replaced.
        held: Messages in flight and waiting now.
    """

    received: int = 0
    handed: int = 0
    early: int = 0
    far_too_early: int = 0
    republished: int = 0
    already_handled: int = 0
    redelivered: int = 0
    extra_copies: int = 0
    let_go: int = 0
    timed_out: int = 0
    foreign: int = 0
    envelope_errors: int = 0
    too_new: int = 0
    nudges: int = 0
    done: int = 0
    failed: int = 0
    postponed: int = 0
    skipped: int = 0
    cancelled: int = 0
    overdue: int = 0
    unevaluated: int = 0
    retried: int = 0
    parked: int = 0
    replaced: int = 0
    held: int = 0

    def came(self, mark_or_error: Mark | str | None) -> None:
        """Count a message that is no timer of an SDK that can be read here.

        Args:
            mark_or_error: The mark of the message; or the reason why its envelope is unreadable, None if it has no
                envelope.
        """
        match mark_or_error:
            case Mark.TOO_NEW:
                self.too_new += 1
            case Mark.NUDGE:
                self.nudges += 1
            case Mark.NATIVE | None:
                self.foreign += 1
            case str():
                self.envelope_errors += 1


BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 3_600_000)
"""Upper bounds, inclusive. Fine where timers usually are, a few milliseconds late; coarse for outages."""


class LatenessCounts(NamedTuple):
    """The counts of a histogram.

    Args:
        counts: Timers by bound, not cumulative; the last count is that of timers beyond all bounds.
        sum_ms: Sum of all lateness, in milliseconds.
    """

    counts: tuple[int, ...]
    sum_ms: int


class Lateness:
    """Counts how long after its due time each timer was handed over. Safe from several threads."""

    __slots__ = ("_counts", "_lock", "_sum_ms")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_MS) + 1)
        self._sum_ms = 0
        self._lock = threading.Lock()

    def add(self, late_ms: int) -> None:
        """Count a timer; a negative lateness counts as 0."""
        late_ms = max(late_ms, 0)
        number = bisect_left(BOUNDS_MS, late_ms)
        with self._lock:
            self._counts[number] += 1
            self._sum_ms += late_ms

    def counted(self) -> LatenessCounts:
        """Return all counts so far."""
        with self._lock:
            return LatenessCounts(tuple(self._counts), self._sum_ms)
