"""Resolution: how finely a plan is priced; what is coarser costs less time, whatever the history."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CLOSE", "QUICK", "Resolution"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """Bounds on the work for one plan.

    Args:
        parts: Up to so many parts altogether every cell is cut at all edges of a plan's routing.
        rows_per_stay: Rows of positions within the longest stay in a due topic.
        rows: The most rows of positions, bursts apart.
        mass_rows: Outside of bursts no row holds more than this part of all timers.
        burst_bins: So finely it is looked where positions are closer together than in the row around them.
        ramps: More than these are moved to places evenly apart within their row.
        places: So many places.
        moments_per_stay: Moments within the usual stay at which gaps are told.
        moments: The most of them, evenly over the history.
        mass_moments: And one wherever this part of all timers has come due, so that no short burst lies between two.
        busy_bins: So finely it is looked for those.
        peak_rounds: How often the neighbourhood of the highest moments is looked at more closely.
        unloads: Moments at which an unload is tried, evenly over the history.
        peak_unloads: And moments of most gaps.
        pending_moments: At which it is looked how many timers wait.
        relay_bins: Stretches of time by which a relay's work is told.
        hop_places: And the rates of hops.
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
"""For what is told of a plan."""

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
"""For which of many plans are worth counting: from the same cells gaps come out within some percent of `CLOSE`, in a
quarter of its time."""
