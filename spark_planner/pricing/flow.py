"""Flow: the places and times at which the timers of the cells arrive in due topics, under a plan.

Cells are cut at the edges of the plan's routing (`cuts`), so that within a piece every timer makes the same hops; then
the middle timer of each piece is sent through the step table. The table of `timewheel.core.steps` is the only source of
routing: the cuts are found by running it as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from timewheel.core.plan import Plan
from timewheel.core.steps import Step, far_ms, steps
from timewheel.spark_planner.pricing.cuts import (
    Pieces,
    concatenated,
    cut_at_delays,
    cut_at_releases,
    cut_at_slots,
    pieces_of,
    repeated,
)
from timewheel.spark_planner.pricing.resolution import CLOSE, Resolution
from timewheel.spark_planner.summary.cells import Cells

__all__ = ["DIRECT", "SENT", "Flow", "Stays", "delay_edges", "flow_of", "held"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

DIRECT = -1
"""Group of timers that no slot released."""
SENT = -1
"""A producer, in place of a step."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stays:
    """Timers that waited in the holding topics of a step, in arrays of the same length.

    Args:
        count: Timers.
        entered_ms: Middle of the time of entry.
        released_ms: Middle of the time of release.
        half_ms: Half of the time over which they enter; they leave a tier over the same time, but a slot all at once.
        came_from: The index of the step that they hopped from; `SENT`: producers sent them.
    """

    count: Floats
    entered_ms: Floats
    released_ms: Floats
    half_ms: Floats
    came_from: Integers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flow:
    """Pieces with their routes through a plan.

    Args:
        pieces: The pieces, see `Pieces`.
        stay_ms: Time from publish to arrival in the due topic; for a slot, which releases all at once, that of the
            middle.
        arrival_ms: The arrival time of pieces that a slot releases, else NaN (they arrive a stay after publish).
        group: Pieces of a group are in one run of positions: the release of a ring's slot, or `DIRECT`.
        topic: The due topic: 0, or the number of the calendar interval since 1970.
        hops: Hops of each piece.
        step_entries: Entries that each step of the table (the due step included) receives in all.
        stays: For each step, the timers that waited in it.
        intake: Timers that passed through the intake, where they do not wait.
        acked_originals: For each piece, True for the originals of moved timers: entries of the due topic, acknowledged
            when they are sent, and no timers of their own.
    """

    pieces: Pieces
    stay_ms: Floats
    arrival_ms: Floats
    group: Integers
    topic: Integers
    hops: Integers
    step_entries: Floats
    stays: tuple[Stays, ...]
    intake: Stays
    acked_originals: NDArray[np.bool_]


def flow_of(plan: Plan, *cells: Cells, resolution: Resolution = CLOSE) -> Flow:
    """Send the cells through a plan.

    Args:
        plan: A plan of any scheme.
        cells: Cells of one topic, each at any level; finer cells cost time, coarser cells precision.
        resolution: Bounds on the number of parts.

    Returns:
        The pieces with places and times of arrival. Delays beyond the plan's ``max_delay`` are routed all the same.
        Under a plan with an intake all timers come natively, and a shadow moves timers that are far from due.
    """
    table = steps(plan)
    pieces = concatenated(*(pieces_of(part) for part in cells))
    return _beside_shadow(plan, table, pieces, resolution) if plan.intake else _routed(table, pieces, resolution)


def _beside_shadow(plan: Plan, table: tuple[Step, ...], pieces: Pieces, resolution: Resolution) -> Flow:
    """Keep near timers where they were sent; far timers leave their originals there, and a copy goes the plan's way."""
    bounds_ms = np.array([far_ms(plan), plan.max_delay_ms + 1], np.float64)
    pieces = cut_at_delays(pieces, bounds_ms, resolution.parts)
    delay_ms = pieces.due_ms - pieces.publish_ms
    far = (delay_ms >= bounds_ms[0]) & (delay_ms < bounds_ms[1])
    moved = pieces.take(np.flatnonzero(far))
    at_once = np.zeros(len(moved))
    originals = replace(moved, fixed=np.ones(len(moved), np.bool_), low_ms=at_once, high_ms=at_once)
    native = _followed(table[-1:], concatenated(pieces.take(np.flatnonzero(~far)), originals))
    copies = _routed(table, moved, resolution)
    whole = copies.pieces
    middle_ms, half_ms = np.floor(whole.publish_ms), (whole.last_ms - whole.first_ms) / 2
    intake = Stays(
        count=whole.count,
        entered_ms=middle_ms,
        released_ms=middle_ms,
        half_ms=half_ms,
        came_from=np.full(len(whole), SENT, np.int64),
    )
    acked_originals = np.arange(len(native.pieces)) >= len(native.pieces) - len(moved)
    due_entries = np.zeros(len(table))
    due_entries[-1] = native.step_entries[-1]
    return Flow(
        pieces=concatenated(native.pieces, whole),
        stay_ms=np.concatenate([native.stay_ms, copies.stay_ms]),
        arrival_ms=np.concatenate([native.arrival_ms, copies.arrival_ms]),
        group=np.concatenate([native.group, copies.group]),
        topic=np.concatenate([native.topic, copies.topic]),
        hops=np.concatenate([native.hops, copies.hops + 1]),  # the hop out of the intake
        step_entries=due_entries + copies.step_entries,
        stays=copies.stays,
        intake=intake,
        acked_originals=np.concatenate([acked_originals, np.zeros(len(whole), np.bool_)]),
    )


def _routed(table: tuple[Step, ...], pieces: Pieces, resolution: Resolution) -> Flow:
    slot_ms = min((step.slot_ms for step in table if step.kind == "slot"), default=table[-1].interval_ms)
    if slot_ms:
        pieces = cut_at_releases(cut_at_slots(pieces, slot_ms, resolution.parts), table)
    delay_high_ms = pieces.high_ms - np.where(pieces.fixed, 0.0, pieces.first_ms)
    edges_ms = delay_edges(table, int(delay_high_ms.max(initial=0.0)) + 1)
    if len(edges_ms):
        pieces = cut_at_delays(pieces, edges_ms, resolution.parts)
    return _followed(table, pieces)


def held(table: tuple[Step, ...], at_ms: Floats, due_ms: Floats) -> tuple[Integers, Floats]:
    """Make one routing decision for each timer.

    Args:
        table: Result of `timewheel.core.steps.steps`.
        at_ms: The send time, or the nominal release time.
        due_ms: The due time.

    Returns:
        The index of the first step that matches, and its nominal release time (for the due step: ``at_ms``).
    """
    index = np.full(len(at_ms), len(table) - 1, np.int64)
    release_ms = at_ms.copy()
    is_open = np.ones(len(at_ms), np.bool_)
    for number, step in enumerate(table[:-1]):
        if step.kind == "tier":
            takes = is_open & (due_ms - at_ms >= step.min_remaining_ms)
            leaves_ms = at_ms + step.stay_ms
        else:
            leaves_ms = np.floor(due_ms / step.slot_ms) * step.slot_ms - step.headstart_ms
            takes = is_open & (leaves_ms > at_ms)
        index[takes] = number
        release_ms[takes] = leaves_ms[takes]
        is_open &= ~takes
    return index, release_ms


def delay_edges(table: tuple[Step, ...], longest_ms: int) -> Floats:
    """Return the delays at which the route through the tiers of a table changes, ascending, without 0.

    Spans of remaining time are run through the table: a span is cut at each threshold within it; a span that a tier
    holds returns shorter by the tier's stay.
    """
    tiers = [step for step in table if step.kind == "tier"]
    if not tiers:
        return np.zeros(0)
    thresholds_ms = np.array(sorted({step.min_remaining_ms for step in tiers}), np.float64)
    low_ms, end_ms, gone_ms = np.zeros(1), np.array([longest_ms + 1.0]), np.zeros(1)
    found: list[Floats] = []
    while len(low_ms):
        before = np.searchsorted(thresholds_ms, low_ms, "right")
        cuts = np.searchsorted(thresholds_ms, end_ms, "left") - before
        owner, turn = repeated(np.maximum(cuts, 0) + 1)
        threshold = np.minimum(before[owner] + turn, len(thresholds_ms)) - 1
        cut_low = np.where(turn == 0, low_ms[owner], thresholds_ms[np.maximum(threshold, 0)])
        is_last = turn == cuts[owner]
        following = np.minimum(threshold + 1, len(thresholds_ms) - 1)
        cut_end = np.where(is_last, end_ms[owner], thresholds_ms[following])
        gone = gone_ms[owner]
        found.append(cut_low + gone)
        step, release_ms = held(table, np.zeros(len(cut_low)), cut_low)
        is_held = step != len(table) - 1
        stay_ms = release_ms[is_held]
        low_ms, end_ms, gone_ms = cut_low[is_held] - stay_ms, cut_end[is_held] - stay_ms, gone[is_held] + stay_ms
    edges_ms = np.unique(np.concatenate(found))
    return edges_ms[edges_ms > 0]


def _followed(table: tuple[Step, ...], pieces: Pieces) -> Flow:
    publish_ms = np.floor(pieces.publish_ms)
    due_ms = np.maximum(np.floor(pieces.due_ms), publish_ms)
    at_ms = publish_ms.copy()
    half_ms = (pieces.last_ms - pieces.first_ms) / 2
    hops = np.zeros(len(pieces), np.int64)
    group = np.full(len(pieces), DIRECT, np.int64)
    arrival_ms = np.full(len(pieces), np.nan)
    step_entries = np.zeros(len(table))
    stays: list[list[Stays]] = [[] for _ in table]
    moving = np.arange(len(pieces))
    came_from = np.full(len(pieces), SENT, np.int64)
    while len(moving):
        index, release_ms = held(table, at_ms[moving], due_ms[moving])
        step_entries += np.bincount(index, pieces.count[moving], len(table))
        is_held = index != len(table) - 1
        moving, index, release_ms = moving[is_held], index[is_held], release_ms[is_held]
        entered_ms = at_ms[moving]
        at_ms[moving] = release_ms
        hops[moving] += 1
        for number, step in enumerate(table[:-1]):
            here = index == number
            mine = moving[here]
            if not len(mine):
                continue
            # Timers released by a slot all at once enter the next topic at once.
            half = np.where(group[mine] == DIRECT, half_ms[mine], 0.0)
            stays[number].append(
                Stays(
                    count=pieces.count[mine],
                    entered_ms=entered_ms[here],
                    released_ms=release_ms[here],
                    half_ms=half,
                    came_from=came_from[mine],
                )
            )
            if step.kind == "slot":
                arrival_ms[mine] = at_ms[mine]
                group[mine] = at_ms[mine].astype(np.int64)
        came_from[moving] = index
    interval_ms = table[-1].interval_ms
    topic = (due_ms // interval_ms).astype(np.int64) if interval_ms else np.zeros(len(pieces), np.int64)
    return Flow(
        pieces=pieces,
        stay_ms=at_ms - publish_ms,
        arrival_ms=arrival_ms,
        group=group,
        topic=topic,
        hops=hops,
        step_entries=step_entries,
        stays=tuple(_joined(found) for found in stays),
        intake=_joined([]),
        acked_originals=np.zeros(len(pieces), np.bool_),
    )


def _joined(found: list[Stays]) -> Stays:
    none = [np.zeros(0)]
    return Stays(
        count=np.concatenate([stays.count for stays in found] or none),
        entered_ms=np.concatenate([stays.entered_ms for stays in found] or none),
        released_ms=np.concatenate([stays.released_ms for stays in found] or none),
        half_ms=np.concatenate([stays.half_ms for stays in found] or none),
        came_from=np.concatenate([stays.came_from for stays in found] or [np.zeros(0, np.int64)]),
    )
