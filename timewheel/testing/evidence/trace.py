"""The trace that every scheme plays, the same for the same seed, and the gaps that the law of gaps predicts for it."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence

from timewheel.core.gap_law import expected_gaps
from timewheel.core.plan import Plan
from timewheel.core.routing import Hold, Router
from timewheel.core.steps import far_ms

_PREFIX = "t"


def delays_ms(*, messages: int, span_ms: int, seed: int) -> tuple[int, ...]:
    """Return delays in order of sending, independent and uniform from 0 to ``span_ms`` (exclusive), milliseconds."""
    random_source = random.Random(seed)
    return tuple(random_source.randrange(span_ms) for _ in range(messages))


def timer_id(index: int) -> str:
    """Return the id of the timer that is sent as number ``index``, from 0."""
    return f"{_PREFIX}{index:07d}"


def timer_index(timer: str) -> int:
    """Return the number of a timer by its id; -1 for an id that is not of the trace's form."""
    number = timer.removeprefix(_PREFIX)
    return int(number) if timer.startswith(_PREFIX) and number.isascii() and number.isdecimal() else -1


def payload(index: int) -> bytes:
    """Return a payload of the size of a small reminder."""
    return f'{{"reminder": {index}, "text": "your subscription renews in three days"}}'.encode()


BINS_PER_DAY = 50  # timers that arrive within a fiftieth of a day count as a single burst


def arrivals_by_topic(plan: Plan, sends: Iterable[tuple[int, int]]) -> dict[str, list[tuple[int, int]]]:
    """Compute the due topics and arrival times of timers, by the plan's own routing.

    Sends are (sent, due), the result (arrival, acknowledged) per due topic, UTC milliseconds. Without failures a timer
    is acknowledged when it is due, or, if a shadow moves it, as soon as it has arrived.
    """
    router = Router(plan)
    arrivals: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for sent_ms, due_ms in sends:
        at_ms = sent_ms
        if plan.intake:
            if due_ms - sent_ms < far_ms(plan):
                arrivals[plan.due_topic].append((sent_ms, due_ms))
                continue
            arrivals[plan.due_topic].append((sent_ms, sent_ms))
        hop = router.route(due_ms, at_ms)
        while isinstance(hop, Hold):
            at_ms = hop.release_at_ms
            hop = router.route(due_ms, at_ms)
        arrivals[hop.topic].append((at_ms, due_ms))
    return dict(arrivals)


def predicted_pending(plan: Plan, sends: Iterable[tuple[int, int]], at_ms: Sequence[int]) -> list[int]:
    """Compute how many timers are pending in due topics at each moment, if no consumer lags."""
    stays = [stay for stays in arrivals_by_topic(plan, sends).values() for stay in stays]
    arrived, acknowledged = sorted(arrival for arrival, _ in stays), sorted(leaves for _, leaves in stays)
    return [bisect_right(arrived, moment) - bisect_right(acknowledged, moment) for moment in at_ms]


def predicted_gaps(plan: Plan, sends: Iterable[tuple[int, int]], at_ms: Sequence[int], day_ms: int) -> list[float]:
    """Compute the law's mean number of gaps at each moment, summed over the scheme's due topics."""
    bin_ms = max(1, day_ms // BINS_PER_DAY)
    total = [0.0] * len(at_ms)
    for arrivals in arrivals_by_topic(plan, sends).values():
        for index, gaps in enumerate(expected_gaps(arrivals, at_ms, bin_ms)):
            total[index] += gaps
    return total
