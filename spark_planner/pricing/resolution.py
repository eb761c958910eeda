"""Resolution: the accuracy with which a plan is priced; a coarser resolution takes less time on any history."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CLOSE", "QUICK", "Resolution"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """Bounds on the work for a plan.

    Args:
        parts: Total parts up to which every cell is cut at all edges of a plan's routing.
        rows_per_stay: Rows of positions within the longest stay in a due topic.
        rows: The most rows of positions, bursts not counted.
        mass_rows: Outside of bursts, each row holds at most all timers divided by this number.
        burst_bins: Bins in the search for positions that are denser than the row around them.
        ramps: The most exact ramps; more are moved to evenly spaced places within their row.
        places: Number of these places.
        moments_per_stay: Moments of the gap curve within the usual stay.
        moments: The most of these moments, evenly over the history.
        mass_moments: Additional moments, which divide all timers into equal parts by due time, so that no short burst
            lies between two moments.
        busy_bins: Bins in the search for these moments.
        peak_rounds: Number of refinements around the highest moments.
        unloads: Moments at which an unload is simulated, evenly over the history.
        peak_unloads: Additional such moments, at the most gaps.
        pending_moments: Moments at which waiting timers are counted.
        relay_bins: Bins of time for the load of a relay.
        hop_places: Bins of time for the rates of hops.
    """

    parts: int
    rows_per_stay: int
    rows: int
    mass_rows: int
    burst_bins: int
    ramps: int
    places: int
    moments_per_stay: int
    moments: int
    mass_moments: int
    busy_bins: int
    peak_rounds: int
    unloads: int
    peak_unloads: int
    pending_moments: int
    relay_bins: int
    hop_places: int


CLOSE = Resolution(
    parts=60_000,
    rows_per_stay=256,
    rows=8_192,
    mass_rows=256,
    burst_bins=262_144,
    ramps=600_000,
    places=384,
    moments_per_stay=32,
    moments=4_096,
    mass_moments=256,
    busy_bins=65_536,
    peak_rounds=2,
    unloads=32,
    peak_unloads=4,
    pending_moments=1_024,
    relay_bins=65_536,
    hop_places=65_536,
)
"""For all reported figures of a plan."""

QUICK = Resolution(
    parts=8_000,
    rows_per_stay=64,
    rows=1_024,
    mass_rows=64,
    burst_bins=16_384,
    ramps=20_000,
    places=96,
    moments_per_stay=8,
    moments=512,
    mass_moments=64,
    busy_bins=8_192,
    peak_rounds=1,
    unloads=2,
    peak_unloads=1,
    pending_moments=256,
    relay_bins=4_096,
    hop_places=4_096,
)
"""For the selection of candidates to count: from the same cells its gaps are within some percent of those of `CLOSE`,
in a quarter of the time.
"""
