"""What was promised, what was measured, and which promises are broken. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Literal

from timewheel.demo.settings import PLAIN, SchemeName
from timewheel.testing.evidence.checker import Totals
from timewheel.testing.evidence.messages import Told

__all__ = ["Lateness", "Measured", "Verdict", "judge", "lateness"]

MAX_REDELIVERED = 100
PART_OF_NATIVE = 100
"""To business, per scheme, for one unload of every topic: acknowledgements that were on their way at that moment. A
hundred, or a hundredth of what native delays bring again: on a busy machine more are on their way.

A relay skips what is delivered to it again; that is shown beside it and promises nothing.
"""
PEAK_TOLERANCE = 0.15
PEAK_TOLERANCE_ROOTS = 3
"""A due topic's peak lies within 15 % and three roots of the law's G, which is a mean where the peak is an extreme."""
MIN_SAMPLES_PER_DAY = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """Handled after due, milliseconds, over all handlings; negative: before."""

    p50_ms: int
    p99_ms: int
    max_ms: int


def lateness(ascending_ms: Sequence[int]) -> Lateness:
    """Quantiles of sorted values; zeros for none."""
    if not ascending_ms:
        return Lateness(p50_ms=0, p99_ms=0, max_ms=0)
    last = len(ascending_ms) - 1
    return Lateness(
        p50_ms=ascending_ms[round(0.50 * last)],
        p99_ms=ascending_ms[round(0.99 * last)],
        max_ms=ascending_ms[last],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One scheme's row.

    Args:
        scheme: Its name.
        due_peak: Most gaps in its due topics, summed at one moment.
        law_peak: What the law of gaps predicts for that.
        hold: Who holds in its holding topics; None: it has none.
        holding_peak: Most gaps in its holding topics, summed at one moment.
        in_flight_window: What a broker-held tier may have in gaps: as many as its relay has in flight.
        index_bytes: Peak of the broker's delayed indexes, over all its topics.
        entries_written: In all its topics, by the broker's count.
        hops: Mean re-publications of a timer.
        redelivered_due: Deliveries to business after the acknowledgement had returned, counted at the raw client.
        redelivered_holding: The same at the relay.
        totals: The checker's.
        early: Timers handled before their due time.
        copied: Handlings beyond each timer's first that no redelivery explains: of both an original and its copy.
        behind_ms: By so much a shadow lagged at its worst sample, milliseconds; 0 where there is none.
        allowed_ms: From so much on it cannot keep its word that nobody handles both: what its plan calls far from due,
            halved, since samples are apart.
        late: Handled after due.
        samples_per_day: In the mean, from its first send to its last due time.
        topics: How many it needs.
        send_errors: Sends that failed, and the last reason.
        events: Warnings and errors that the SDK told its hooks, by name.
        cpu_s: Processor time of its process: producer, consumer and relay together.
    """

    scheme: SchemeName
    due_peak: int
    law_peak: float
    hold: Literal["relay", "broker"] | None
    holding_peak: int
    in_flight_window: int
    index_bytes: int
    entries_written: int
    hops: float
    redelivered_due: int
    redelivered_holding: int
    totals: Totals
    early: int
    late: Lateness
    samples_per_day: float
    topics: int
    send_errors: tuple[int, str] = (0, "")
    events: Mapping[str, Told] = field(default_factory=dict)
    cpu_s: float = 0.0
    copied: int = 0
    behind_ms: int = 0
    allowed_ms: int = 0

    @property
    def is_behind(self) -> bool:
        """Whether a shadow lagged by more than it may: a machine that is too busy, for days of some seconds."""
        return self.scheme == "shadow" and self.behind_ms > self.allowed_ms

    @property
    def written_multiple(self) -> float:
        """Entries written per timer."""
        return self.entries_written / max(1, self.totals.attempted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Args: broken: One sentence per broken promise; empty: all are kept."""

    broken: tuple[str, ...]

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        return not self.broken


def judge(rows: Sequence[Measured], *, sabotaged: Totals | None, honest: Totals | None) -> Verdict:
    """Hold the measurements against the promises.

    Args:
        rows: One per scheme that played.
        sabotaged: What the checker found under a relay that acknowledges before it publishes; None: not played.
        honest: What it found under its twin that publishes first.
    """
    native = sum(row.redelivered_due for row in rows if row.scheme == "native")
    allowed = max(MAX_REDELIVERED, native // PART_OF_NATIVE)
    broken = [f"{row.scheme}: {sentence}" for row in rows for sentence in _broken_by(row, allowed)]
    if sabotaged is not None and sabotaged.lost == 0:
        broken.append("checker: it saw no loss under a relay that acknowledges before it publishes")
    if honest is not None and (honest.lost or honest.unexpected):
        broken.append(f"checker: a relay that publishes first lost {honest.lost}, unexpected {honest.unexpected}")
    return Verdict(broken=tuple(broken))


def _broken_by(row: Measured, most_redelivered: int) -> list[str]:
    broken = []

    def promise(kept: bool, otherwise: str) -> None:
        if not kept:
            broken.append(otherwise)

    slack = PEAK_TOLERANCE * row.law_peak + PEAK_TOLERANCE_ROOTS * sqrt(row.law_peak)
    too_many = row.due_peak - row.law_peak
    # Copies that a shadow brings back together stand side by side; the law has originals between them, so more gaps.
    promise(
        (too_many if row.scheme == "shadow" else abs(too_many)) <= slack or row.is_behind,
        f"peak of {row.due_peak:,} gaps is not within {slack:,.0f} of the law's {row.law_peak:,.0f}",
    )
    promise(
        row.samples_per_day >= MIN_SAMPLES_PER_DAY,
        f"only {row.samples_per_day:.1f} samples a day, {MIN_SAMPLES_PER_DAY} are needed to see a peak",
    )
    promise(row.send_errors[0] == 0, f"{row.send_errors[0]} sends failed: {row.send_errors[1]}")
    if row.scheme == "native":
        promise(row.redelivered_due > 0, "nothing was redelivered: the disease did not show, so nothing is proven")
        return broken
    found = row.totals
    promise(found.lost == 0, f"{found.lost} timers lost")
    promise(found.unexpected == 0, f"{found.unexpected} timers handled that nobody sent")
    if row.scheme in PLAIN:
        # A plain client is early by the broker's tick, and handles again what comes again.
        promise(row.copied == 0 or row.is_behind, f"{row.copied} timers handled as original and as copy")
    else:
        promise(found.duplicated == 0, f"{found.duplicated} timers handled twice")
        promise(row.early == 0, f"{row.early} timers handled early")
    promise(
        row.redelivered_due <= most_redelivered,
        f"{row.redelivered_due} redelivered, at most {most_redelivered} are allowed",
    )
    if row.hold == "relay":
        promise(row.holding_peak == 0, f"{row.holding_peak} gaps in relay-held topics")
    if row.hold == "broker":
        promise(
            row.holding_peak <= row.in_flight_window,
            f"{row.holding_peak} gaps in broker-held topics, at most the {row.in_flight_window} in flight are allowed",
        )
    return broken
