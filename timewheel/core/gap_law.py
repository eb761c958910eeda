"""The law of gaps: how many ranges of acknowledged entries a cursor holds behind its mark-delete position.

For entries in position order with acknowledgement times ``a_i``, the ranges at time t are the adjacent pairs with
``a_i <= t < a_(i-1)``: a range begins where an acknowledged entry follows an unacknowledged entry. With independent
delays of distribution function F and an arrival rate L, the mean is ``L * integral F(s) (1 - F(s)) ds``; for n entries
that arrive at once it is ``n F (1 - F)``. Every adjacent pair is in that state with probability F(1 - F).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence

from timewheel.core.durations import DAY_MS, HOUR_MS, rounded_up

WATCH_SHARE = 0.8
"""Fraction of the broker's limit from which gaps are a warning, and below which a plan stays unless asked for more. The
makers of TDMQ, a Pulsar service, advise alarms between 8,000 and 10,000 of 10,000.
"""


def expected_gaps(arrivals: Iterable[tuple[int, int]], at_ms: Sequence[int], bin_ms: int) -> list[float]:
    """Predict the mean gap ranges of one due partition by the law, at each of some ascending moments, from (arrival,
    acknowledgement) of each entry, all UTC milliseconds. Entries that arrive within the same bin count as one burst in
    random order. With F the acknowledged share of a burst at that moment: the sum over bursts of ``n F (1 - F)``, and
    of ``F_next (1 - F)`` for the pair of entries at which two bursts meet.
    """
    bursts: defaultdict[int, list[int]] = defaultdict(list)
    for arrived_ms, acknowledged_at_ms in arrivals:
        bursts[arrived_ms // bin_ms].append(acknowledged_at_ms)
    totals = [0.0] * len(at_ms)
    previous: list[int] = []
    for _, acknowledged in sorted(bursts.items()):
        acknowledged.sort()
        n = len(acknowledged)
        # A burst has no ranges before its first acknowledgement, and none after the last acknowledgement of both.
        first = bisect_right(at_ms, acknowledged[0] - 1)
        end_ms = max(acknowledged[-1], previous[-1] if previous else 0)
        for index in range(first, len(at_ms)):
            moment_ms = at_ms[index]
            if moment_ms >= end_ms:
                break
            done = bisect_right(acknowledged, moment_ms)
            totals[index] += done * (n - done) / n
            if previous:
                totals[index] += done / n * (1 - bisect_right(previous, moment_ms) / len(previous))
        previous = acknowledged
    return totals


def shows_day(span_ms: float) -> bool:
    """Return whether a history has a day at least: the first and the last send of a day lie some time within it.

    A shorter history may be a burst: its rate could not go on, and the sends of other hours are not in it.
    """
    return span_ms >= DAY_MS - HOUR_MS


def shows_full(span_ms: float, warm_up_ms: float) -> bool:
    """Return whether a history is longer than its delays: after ``warm_up_ms``, nearly the longest delay, a topic holds
    99 % of its lasting number of timers.
    """
    return span_ms > 0 and span_ms >= warm_up_ms


def describe_span(span_ms: int, warm_up_ms: int) -> str:
    """Render the respect in which a history is too short, as a sentence; empty: the history is long enough."""
    span, settles = rounded_up(span_ms), rounded_up(warm_up_ms)
    is_full = shows_full(span_ms, warm_up_ms)
    if is_full:
        return "" if shows_day(span_ms) else f"This history spans {span}, less than a day: other hours are not in it."
    if not shows_day(span_ms):
        return (
            f"This history spans {span}, less than a day, and with its delays a topic takes {settles} to fill up: it "
            "shows a burst, not the steady state of the topic."
        )
    return (
        f"This history spans {span}, but with its delays a topic takes {settles} to fill up: it shows the topic while "
        "it fills, not its steady state."
    )
