"""The promises, and the verdict which of them are broken; and figures with bands, which are no promise. Pure.

The bands tell the distance of a run from the law, which describes a machine that is on time. On a busy machine timers
are handled late. Each timer that is due and not handled yet adds or removes at most one gap, and each is acknowledged
late, so that an unload at that time may redeliver it. So both bands are those of a machine on time, widened by the most
timers that were overdue at one moment (`Measured.overdue`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import Literal

from timewheel.demo.settings import PLAIN, SchemeName
from timewheel.testing.evidence.journal import Reported
from timewheel.testing.evidence.ledger import Totals

LEFT_PART = 0.1
"""Part of its timers that a shadow may leave in the topic once it has caught up, timers that are handled late included.
A shadow that does not work leaves a third."""
LEAST_SENT = 0.5
"""Least part of a scheme's sends that must be confirmed; otherwise the run proves nothing. A failed send breaks no
promise: its sender has the error, and the checker does not expect the timer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """Time from due to handled, milliseconds, over all handlings; negative: early."""

    p50_ms: int
    p99_ms: int
    max_ms: int


def lateness(ascending_ms: Sequence[int]) -> Lateness:
    """Compute quantiles of sorted values; zeros for none."""
    if not ascending_ms:
        return Lateness(p50_ms=0, p99_ms=0, max_ms=0)
    last = len(ascending_ms) - 1
    return Lateness(
        p50_ms=ascending_ms[round(0.50 * last)], p99_ms=ascending_ms[round(0.99 * last)], max_ms=ascending_ms[last]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The row of a scheme."""

    scheme: SchemeName
    due_peak: int  # most gaps in its due topics, summed at one moment
    law_peak: float  # prediction of the law of gaps for that
    hold: Literal["relay", "broker"] | None  # the holder of messages in its holding topics; None: it has none
    holding_peak: int  # most gaps in its holding topics, summed at one moment
    in_flight_window: int  # gaps that a broker-held tier may have: as many as its relay has messages in flight
    index_bytes: int  # peak of the broker's delayed indexes, over all its topics
    entries_written: int  # entries in all its topics, by the broker's count
    hops: float  # mean re-publications of a timer
    redelivered_due: int  # deliveries to business after the acknowledgement had returned, counted at the raw client
    redelivered_holding: int  # the same at the relay
    totals: Totals
    early: int  # timers handled before their due time
    late: Lateness  # lateness of the handlings
    samples_per_day: float  # mean number, from its first send to its last due time
    topics: int
    send_errors: tuple[int, str] = (0, "")  # sends that failed, and the last reason
    # warnings and errors that the SDK emitted to its hooks, by name
    events: Mapping[str, Reported] = field(default_factory=dict)
    cpu_s: float = 0.0  # processor time of its process: producer, consumer and relay together
    copied: int = 0  # handlings beyond each timer's first that no redelivery explains: of both an original and its copy
    # lag of a shadow, milliseconds: at its worst sample, or by its latest handling; 0 without a shadow
    behind_ms: int = 0
    # lag from which a shadow cannot prevent that both are handled: the delay that its plan calls far, halved, since
    # samples are apart
    allowed_ms: int = 0
    never_acked: int = 0  # least number of originals that a shadow had not acknowledged at any time after its burst
    # most timers at one moment that were due and not handled yet; of a shadow also originals, beyond those that the
    # plan leaves, which it had not acknowledged yet
    overdue: int = 0

    @property
    def is_behind(self) -> bool:
        """True if a shadow lagged by more than allowed: the machine is too busy for days of some seconds."""
        return self.scheme == "shadow" and self.behind_ms > self.allowed_ms

    @property
    def written_multiple(self) -> float:
        """Entries written per timer."""
        return self.entries_written / max(1, self.totals.attempted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A sentence for each broken promise of a run."""

    broken: tuple[str, ...]

    @property
    def kept(self) -> bool:
        return not self.broken


def judge(rows: Sequence[Measured], *, limit: int, sabotaged: Totals | None, honest: Totals | None) -> Verdict:
    """Check the measurements against the promises, which a machine of any speed keeps."""
    broken = [f"{row.scheme}: {sentence}" for row in rows for sentence in _broken_by(row, limit)]
    if sabotaged is not None and sabotaged.lost == 0:
        broken.append("checker: it saw no loss under a relay that acknowledges before it publishes")
    if honest is not None and (honest.lost or honest.unexpected):
        broken.append(f"checker: a relay that publishes first lost {honest.lost}, unexpected {honest.unexpected}")
    return Verdict(broken=tuple(broken))


def _broken_by(row: Measured, limit: int) -> list[str]:
    broken = []

    def promise(kept: bool, otherwise: str) -> None:
        if not kept:
            broken.append(otherwise)

    found = row.totals
    promise(
        found.acknowledged >= LEAST_SENT * found.attempted,
        f"only {found.acknowledged:,} of {found.attempted:,} sends were confirmed, so nothing is proven: "
        f"{row.send_errors[1]}",
    )
    if row.scheme == "native":
        promise(row.redelivered_due > 0, "nothing was redelivered: the disease did not show, so nothing is proven")
        return broken
    promise(found.lost == 0, f"{found.lost} timers lost")
    promise(found.unexpected == 0, f"{found.unexpected} timers handled that were never sent")
    if row.scheme in PLAIN:
        # A plain client is early by the broker's tick, and handles redelivered messages again.
        promise(
            row.never_acked <= LEFT_PART * found.attempted,
            f"the shadow never caught up: {row.never_acked:,} timers that are far from due stayed in the topic",
        )
        promise(
            row.copied == 0 or row.is_behind, f"{row.copied} timers handled as original and as copy, or as two copies"
        )
    else:
        promise(found.duplicated == 0, f"{found.duplicated} timers handled twice")
        promise(row.early == 0, f"{row.early} timers handled early")
    promise(
        row.due_peak <= limit or row.is_behind,
        f"{row.due_peak:,} gaps in due topics, of which the broker keeps {limit:,}",
    )
    # A relay that holds acknowledges in the order of the topic.
    most = 0 if row.hold == "relay" else limit
    promise(row.holding_peak <= most, f"{row.holding_peak:,} gaps in {row.hold}-held topics, at most {most:,} may be")
    return broken


PEAK_PART = 0.15
ROOTS = 3  # on time, a peak lies within 15 % and three roots of the law, which is a mean while the peak is an extreme
UNDER_WAY_MS = 600
"""Acknowledgements that an unload overtakes, on time: the client groups them for 100 ms, and then reconnects."""
SAMPLES_PER_DAY = 8  # number of samples that are enough to see a peak
ON_TIME_MS = 100  # 99 % of a relay's timers are handled within this time on a machine that is not busy


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The range of a figure: from ``least`` to ``most``."""

    least: float
    most: float

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most

    def __str__(self) -> str:
        if self.most == inf:
            return f"at least {self.least:,.0f}"
        return f"at most {self.most:,.0f}" if self.least == 0 else f"{self.least:,.0f} to {self.most:,.0f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure of a scheme, and its band on a machine that lagged as much."""

    scheme: SchemeName
    name: str
    value: float
    band: Band

    @property
    def is_near(self) -> bool:
        return self.value in self.band

    def __str__(self) -> str:
        value = f"{self.value:,}" if isinstance(self.value, int) else f"{self.value:,.1f}"
        return f"{value} {self.name} ({self.band})"


def gap_band(law_peak: float, overdue: int, *, is_max: bool = False) -> Band:
    """Compute the band of the peak of gaps, beside which so many timers were overdue at one moment.

    Behind a shadow the law gives an upper limit (``is_max``): copies that are published together are adjacent, while
    the law has originals between them.
    """
    slack = PEAK_PART * law_peak + ROOTS * sqrt(law_peak) + overdue
    return Band(least=0.0 if is_max else max(0.0, law_peak - slack), most=law_peak + slack)


def again_band(due_per_ms: float, overdue: int) -> Band:
    """Compute the band of handled messages that an unload redelivers: their acknowledgements were under way."""
    mean = UNDER_WAY_MS * due_per_ms
    return Band(least=0.0, most=mean + ROOTS * sqrt(mean) + overdue)


def figures(rows: Sequence[Measured], due_per_ms: float) -> list[Figure]:
    return [figure for row in rows for figure in _figures(row, due_per_ms)]


def _figures(row: Measured, due_per_ms: float) -> list[Figure]:
    peak = gap_band(row.law_peak, row.overdue, is_max=row.scheme == "shadow")
    found = [
        Figure(scheme=row.scheme, name="gaps at the peak", value=row.due_peak, band=peak),
        Figure(
            scheme=row.scheme,
            name="samples in a day",
            value=row.samples_per_day,
            band=Band(least=SAMPLES_PER_DAY, most=inf),
        ),
    ]
    if row.scheme != "native":
        again = again_band(due_per_ms, row.overdue)
        found.append(Figure(scheme=row.scheme, name="delivered again", value=row.redelivered_due, band=again))
    if row.hold == "broker":
        held = Band(least=0, most=row.in_flight_window)
        found.append(Figure(scheme=row.scheme, name="gaps in holding topics", value=row.holding_peak, band=held))
    if row.hold and row.scheme not in PLAIN:
        on_time = Band(least=0, most=ON_TIME_MS)
        found.append(Figure(scheme=row.scheme, name="ms late at p99", value=row.late.p99_ms, band=on_time))
    if row.send_errors[0]:
        found.append(
            Figure(scheme=row.scheme, name="failed sends", value=row.send_errors[0], band=Band(least=0, most=0))
        )
    return found


def outside(rows: Sequence[Measured], due_per_ms: float) -> list[str]:
    """Describe each scheme with figures outside their bands, in a sentence with its lag, which is the usual reason."""
    found = []
    for row in rows:
        far = [figure for figure in _figures(row, due_per_ms) if not figure.is_near]
        if far:
            found.append(f"{row.scheme} is outside its band: {', '.join(map(str, far))}: {_lag(row)}")
    return found


def _lag(row: Measured) -> str:
    if row.scheme == "shadow":
        return f"the shadow lagged by up to {row.behind_ms / 1_000:.1f} s"
    if row.scheme == "native":
        return f"up to {row.overdue:,} timers were due and not handled yet"
    return f"this machine lagged by {row.late.p99_ms / 1_000:.1f} s (p99), {row.late.max_ms / 1_000:.1f} s at most"
