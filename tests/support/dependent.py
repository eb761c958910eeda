"""Histories whose neighbouring delays depend on each other, as in production."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.spark_planner.history.generate import START_MS

Integers = NDArray[np.int64]
Timers = tuple[Integers, Integers]

DAYS = 3
SPAN_MS = DAYS * DAY_MS


def _even(rows: int) -> Integers:
    return START_MS + np.arange(rows) * (SPAN_MS // rows)


def _by_rng(rng: np.random.Generator, rows: int) -> Integers:
    return START_MS + np.sort(rng.integers(0, SPAN_MS, rows))


def _in_order(sent_ms: Integers, due_ms: Integers) -> Timers:
    order = np.argsort(sent_ms, kind="stable")
    return sent_ms[order], due_ms[order]


def _batches(rng: np.random.Generator, rows: int, arrange: Callable[[Integers], Integers]) -> Timers:
    """Every three hours a batch that is sent within five minutes, due over the next day."""
    number = SPAN_MS // (3 * HOUR_MS)
    each = rows // number
    sent_ms, due_ms = [], []
    for batch in range(number):
        begin_ms = START_MS + batch * 3 * HOUR_MS
        sent_ms.append(begin_ms + np.sort(rng.integers(0, 5 * MINUTE_MS, each)))
        due_ms.append(begin_ms + 10 * MINUTE_MS + arrange(np.sort(rng.integers(0, DAY_MS, each))))
    return np.concatenate(sent_ms), np.concatenate(due_ms)


def ascending(rng: np.random.Generator, rows: int) -> Timers:
    """A campaign goes through a list that is sorted by due time."""
    return _batches(rng, rows, lambda due_ms: due_ms)


def descending(rng: np.random.Generator, rows: int) -> Timers:
    """A campaign goes through a list in descending order of due times."""
    return _batches(rng, rows, lambda due_ms: due_ms[::-1])


def nearly_ascending(rng: np.random.Generator, rows: int) -> Timers:
    """Several senders share a sorted list: neighbours are out of order by minutes."""
    return _batches(rng, rows, lambda due_ms: due_ms + rng.integers(-20 * MINUTE_MS, 0, len(due_ms)) + 20 * MINUTE_MS)


def several_an_event(rng: np.random.Generator, rows: int) -> Timers:
    """For each event up to a week ahead, three timers: a day before, an hour before, and at the event."""
    sent_ms = np.repeat(_by_rng(rng, rows // 3), 3)
    event_ms = sent_ms + np.repeat(rng.integers(2 * DAY_MS, 5 * DAY_MS, rows // 3), 3)
    return sent_ms, event_ms - np.tile([DAY_MS, HOUR_MS, 0], rows // 3)


def alike_an_event(rng: np.random.Generator, rows: int) -> Timers:
    """For each event four timers, due within seconds of each other."""
    sent_ms = np.repeat(_by_rng(rng, rows // 4), 4)
    event_ms = sent_ms + np.repeat(rng.integers(HOUR_MS, 2 * DAY_MS, rows // 4), 4)
    return sent_ms, event_ms + rng.integers(0, 5_000, len(event_ms))


def cycle(rng: np.random.Generator, rows: int) -> Timers:
    """1 h, 1 d and 2 d, never the same delay twice in a row; in random turns, else three partitions would get one delay
    each.
    """
    turn = np.cumsum(rng.integers(1, 3, rows)) % 3
    return _even(rows), _even(rows) + np.array([HOUR_MS, DAY_MS, 2 * DAY_MS])[turn]


def alternating(rng: np.random.Generator, rows: int) -> Timers:
    """1 h and 2 h, mostly in turns."""
    turn = np.cumsum(rng.random(rows) < 0.8) % 2
    return _even(rows), _even(rows) + np.array([HOUR_MS, 2 * HOUR_MS])[turn]


def drifting(rng: np.random.Generator, rows: int) -> Timers:
    """A delay that drifts slowly, and changes little from one timer to the next."""
    steps = np.empty(rows)
    level = 0.0
    for row, noise in enumerate(rng.normal(0, 1, rows).tolist()):
        level = 0.999 * level + noise * 0.0447
        steps[row] = level
    return _even(rows), _even(rows) + np.minimum(6 * HOUR_MS * np.exp(steps), 8 * DAY_MS).astype(np.int64)


def sticky(rng: np.random.Generator, rows: int) -> Timers:
    """Forty senders, each with its own delay, each sending forty timers in a row."""
    delays_ms = rng.integers(MINUTE_MS, DAY_MS, 40)
    sender = np.repeat(rng.integers(0, 40, rows // 40 + 1), 40)[:rows]
    return _even(rows), _even(rows) + delays_ms[sender] + rng.integers(0, 2_000, rows)


def on_and_off(rng: np.random.Generator, rows: int) -> Timers:
    """A service with short delays by day, and a service with long delays by night."""
    sent_ms = _by_rng(rng, rows)
    by_day = (sent_ms // (12 * HOUR_MS)) % 2 == 0
    short, long = rng.integers(MINUTE_MS, HOUR_MS, rows), rng.integers(12 * HOUR_MS, 2 * DAY_MS, rows)
    return sent_ms, sent_ms + np.where(by_day, short, long)


def begetting(rng: np.random.Generator, rows: int) -> Timers:
    """Each timer that comes due sends the next one, with twice its delay."""
    chains = rows // 6
    sent_ms = [START_MS + rng.integers(0, DAY_MS, chains)]
    delay_ms = rng.integers(10 * MINUTE_MS, HOUR_MS, chains)
    due_ms = [sent_ms[0] + delay_ms]
    for _ in range(5):
        delay_ms = delay_ms * 2
        sent_ms.append(due_ms[-1])
        due_ms.append(sent_ms[-1] + delay_ms)
    return _in_order(np.concatenate(sent_ms), np.concatenate(due_ms))


def mixed(rng: np.random.Generator, rows: int) -> Timers:
    """Half of the timers in sorted batches, half of them independent."""
    sent_ms, due_ms = ascending(rng, rows // 2)
    alone_ms = _by_rng(rng, rows - len(sent_ms))
    return _in_order(
        np.concatenate([sent_ms, alone_ms]),
        np.concatenate([due_ms, alone_ms + rng.exponential(6 * HOUR_MS, len(alone_ms)).astype(np.int64)]),
    )


DEPENDENT: dict[str, Callable[[np.random.Generator, int], Timers]] = {
    "ascending campaigns": ascending,
    "descending campaigns": descending,
    "campaigns nearly in order": nearly_ascending,
    "three timers of an event, days apart": several_an_event,
    "four timers of an event, seconds apart": alike_an_event,
    "1 h, 1 d, 2 d, never twice in a row": cycle,
    "1 h and 2 h, mostly in turns": alternating,
    "a delay that drifts": drifting,
    "sticky senders": sticky,
    "short by day, long by night": on_and_off,
    "timers that beget timers": begetting,
    "half sorted batches, half independent": mixed,
}
