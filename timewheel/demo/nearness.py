"""The distance of a run from the law: figures with bands that follow from how late the run was. No promise. Pure.

The law describes a machine that is on time. On a busy machine timers are handled late. Each timer that is due and not
handled yet adds or removes at most one gap, and each is acknowledged late, so that an unload at that time may redeliver
it. So both bands are those of a machine on time, widened by the most timers that were overdue at one moment
(`Measured.overdue`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt

from timewheel.demo.settings import PLAIN, SchemeName
from timewheel.demo.verdict import Measured

PEAK_PART = 0.15
ROOTS = 3
"""On time, a peak lies within 15 % and three roots of the law, which is a mean while the peak is an extreme."""
UNDER_WAY_MS = 600
"""Acknowledgements that an unload overtakes, on time: the client groups them for 100 ms, and then reconnects."""
SAMPLES_PER_DAY = 8
"""Number of samples that are enough to see a peak."""
ON_TIME_MS = 100
"""99 % of a relay's timers are handled within this time on a machine that is not busy."""


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
        """True if the figure lies in its band."""
        return self.value in self.band

    def __str__(self) -> str:
        value = f"{self.value:,}" if isinstance(self.value, int) else f"{self.value:,.1f}"
        return f"{value} {self.name} ({self.band})"


def gap_band(law_peak: float, overdue: int, *, is_max: bool = False) -> Band:
    """Compute the band of the peak of gaps.

    Args:
        law_peak: Peak according to the law.
        overdue: Most timers that were due and not handled at one moment.
        is_max: The law gives an upper limit, as behind a shadow: copies that are published together are adjacent,
            while the law has originals between them.
    """
    slack = PEAK_PART * law_peak + ROOTS * sqrt(law_peak) + overdue
    return Band(least=0.0 if is_max else max(0.0, law_peak - slack), most=law_peak + slack)


def again_band(due_per_ms: float, overdue: int) -> Band:
    """Compute the band of handled messages that an unload redelivers: their acknowledgements were under way.

    Args:
        due_per_ms: Timers that become due in a millisecond.
        overdue: As for gaps: late timers are handled, and acknowledged, in one go.
    """
    mean = UNDER_WAY_MS * due_per_ms
    return Band(least=0.0, most=mean + ROOTS * sqrt(mean) + overdue)


def figures(rows: Sequence[Measured], due_per_ms: float) -> list[Figure]:
    """Return every figure that has a band.

    Args:
        rows: A row per scheme that played.
        due_per_ms: Timers that become due in a millisecond.
    """
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
    """Describe each scheme with figures outside their bands, in a sentence with its lag, which is the usual reason.

    Args:
        rows: A row per scheme that played.
        due_per_ms: Timers that become due in a millisecond.
    """
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
