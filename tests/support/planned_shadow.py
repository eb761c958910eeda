"""A topic with a shadow, timer by timer: plays every timer of a small history through move and hops.

Written from the definition, independently of the planner: a loop over moments. A message is stored natively. The shadow
reads it at once, and its own code decides its decision. A moved message is acknowledged at once; its copy stands in the
intake, leaves it, is held where the router says, and at last comes back to the due topic.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from tests.support.stored_entry import native_entry
from timewheel.core.plan import Plan
from timewheel.core.routing import Hold, Router
from timewheel.shadow.machine.move_decider import MoveDecider, MoveDecision


class Written(NamedTuple):
    """An entry of the due topic: when it was stored, and when it is acknowledged."""

    stored_ms: int
    acknowledged_ms: int


@dataclass(slots=True)
class ShadowPlay:
    """The result of a play."""

    due: list[list[Written]]  # entries of the due topic in position order, a list for each partition
    moves: int = 0
    hops: int = 0  # publishes by relays: out of the intake, and from topic to topic
    max_hops: int = 0
    reads: int = 0
    # (from, until) of each original that is acknowledged and not due
    stale_entries: list[tuple[int, int]] = field(default_factory=list)

    def peak_gaps(self) -> int:
        """Return the most gaps of all partitions together at any moment."""
        changes: list[tuple[int, int]] = []
        for entries in self.due:
            for before, entry in pairwise(entries):
                if entry.acknowledged_ms < before.acknowledged_ms:
                    # No entry can be acknowledged before it is stored.
                    changes += [(max(entry.acknowledged_ms, entry.stored_ms), 1), (before.acknowledged_ms, -1)]
        return _most(changes)

    def peak_pending(self) -> int:
        """Return the most entries that wait in the due topic at any moment."""
        return _most([
            change
            for entries in self.due
            for entry in entries
            for change in ((entry.stored_ms, 1), (entry.acknowledged_ms, -1))
        ])  # fmt: skip

    def peak_stale_entries(self) -> int:
        """Return the most stale index entries at any moment."""
        return _most([change for since, until in self.stale_entries for change in ((since, 1), (until, -1))])


def shadow_play(plan: Plan, timers: Sequence[tuple[int, int]]) -> ShadowPlay:
    """Play timers (publish, due) through a plan with an intake, moment by moment; partitions in turn."""
    router, move_decider = Router(plan), MoveDecider(plan)
    play = ShadowPlay([[] for _ in range(plan.own_partitions)])
    # (when, order, due, partition, hops so far; -1: a plain producer sends it now)
    todo = [(sent_ms, n, due_ms, n % plan.own_partitions, -1) for n, (sent_ms, due_ms) in enumerate(timers)]
    heapq.heapify(todo)
    while todo:
        at_ms, number, due_ms, partition, hops = heapq.heappop(todo)
        entries = play.due[partition]
        if hops < 0:
            play.reads += 1
            if move_decider.decision(native_entry(at_ms, due_ms), at_ms) is not MoveDecision.MOVE:
                entries.append(Written(at_ms, max(due_ms, at_ms)))
                continue
            entries.append(Written(at_ms, at_ms))
            play.moves += 1
            play.stale_entries.append((at_ms, due_ms))
            hops = 0
        play.reads += 1  # in the intake, or where it was held
        play.hops += 1
        play.max_hops = max(play.max_hops, hops + 1)
        route = router.route(due_ms, at_ms)
        if isinstance(route, Hold):
            heapq.heappush(todo, (route.release_at_ms, number, due_ms, partition, hops + 1))
        else:
            entries.append(Written(at_ms, max(due_ms, at_ms)))
    return play


def _most(changes: list[tuple[int, int]]) -> int:
    # At equal times ends come before begins.
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most
