"""A replay by brute force: the router walks every timer, and every cursor is counted range by range.

For a plan with an intake the replay includes a shadow: each message is stored natively, and the shadow's own code
decides whether it is moved. A moved message is acknowledged at once, and its copy walks on from the intake.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from tests.support.cursor import Stored, in_ledgers
from tests.support.stored_entry import native_entry
from timewheel.core.keys import partition_for_key
from timewheel.core.plan import Calendar, Plan
from timewheel.core.routing import Hold, Router
from timewheel.shadow.machine.move_decider import MoveDecider, MoveDecision

__all__ = ["Sent", "brute_replay"]

DueKey = tuple[str, int, int]
"""(topic, calendar interval, partition)."""


class Sent(NamedTuple):
    """A row of a normalised history."""

    publish_ms: int
    due_ms: int
    size_bytes: int
    key: str | None
    topic: str


class _Arrived(NamedTuple):
    arrival_ms: int
    publish_ms: int
    input_order: int
    acknowledged_ms: int


def brute_replay(history: Sequence[Sent], plan: Plan, ledger_entries: int) -> dict[DueKey, list[Stored]]:
    """Return the entries of every due partition, in position order."""
    router = Router(plan)
    turns: defaultdict[str, int] = defaultdict(int)
    arrived: defaultdict[DueKey, list[_Arrived]] = defaultdict(list)
    for order, sent in sorted(enumerate(history), key=lambda item: (item[1].publish_ms, item[0])):
        turn = turns[sent.topic]
        turns[sent.topic] += 1
        partition = partition_for_key(sent.key, plan.partitions) if sent.key else turn % plan.partitions
        at_ms = sent.publish_ms
        interval = sent.due_ms // plan.scheme.interval_ms if isinstance(plan.scheme, Calendar) else 0
        here = arrived[sent.topic, interval, partition]
        if plan.intake:
            decision = MoveDecider(plan).decision(native_entry(sent.publish_ms, sent.due_ms), sent.publish_ms)
            moved = decision is MoveDecision.MOVE
            # A moved message is acknowledged at once, any other message when it is due.
            here.append(_Arrived(at_ms, at_ms, order, at_ms if moved else sent.due_ms))
            if not moved:
                continue
        while isinstance(route := router.route(sent.due_ms, at_ms), Hold):
            at_ms = route.release_at_ms
        here.append(_Arrived(at_ms, sent.publish_ms, order, max(sent.due_ms, at_ms)))
    return {
        key: in_ledgers([entry.acknowledged_ms for entry in sorted(entries)], ledger_entries)
        for key, entries in arrived.items()
    }
