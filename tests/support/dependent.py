"""Histories whose neighbouring delays depend on each other, as in production."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from examples.history.generate import START_MS
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS

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


def _at(delays_ms: Integers | NDArray[np.float64], rng: np.random.Generator) -> Timers:
    """Sends at random moments, with these delays in turn, within eight days."""
    sent_ms = _by_rng(rng, len(delays_ms))
    return sent_ms, sent_ms + np.clip(delays_ms.astype(np.int64), 0, 8 * DAY_MS)


def runs(rng: np.random.Generator, rows: int, run: int) -> Timers:
    """Each sender puts several timers of one delay in a row, within a second."""
    begin_ms = np.repeat(_by_rng(rng, rows // run), run) + np.tile(np.arange(run) * (SECOND_MS // run), rows // run)
    far = np.repeat(rng.random(rows // run) < 0.5, run)
    delay_ms = np.where(far, np.repeat(rng.integers(2 * DAY_MS, 6 * DAY_MS, rows // run), run), 15 * MINUTE_MS)
    return _in_order(begin_ms, begin_ms + delay_ms)


def herd(rng: np.random.Generator, rows: int, hours: tuple[int, ...], within_ms: int, share: float = 1.0) -> Timers:
    """A share of the timers is due at an hour of the next day, spread over a time."""
    sent_ms = _by_rng(rng, rows)
    at_ms = (sent_ms // DAY_MS + 1) * DAY_MS + rng.choice(hours, rows) * HOUR_MS + rng.integers(0, within_ms, rows)
    return sent_ms, np.where(rng.random(rows) < share, at_ms, sent_ms + rng.integers(MINUTE_MS, 3 * HOUR_MS, rows))


def bursts(rng: np.random.Generator, rows: int, number: int, within_ms: int) -> Timers:
    """Sends come in bursts, due within seconds or after hours to days."""
    sent_ms = START_MS + np.repeat(rng.integers(0, SPAN_MS, number), rows // number)
    sent_ms = np.sort(sent_ms + rng.integers(0, within_ms, len(sent_ms)))
    far_ms = rng.choice([1, 6, 24, 72, 120], len(sent_ms)) * HOUR_MS * rng.uniform(0.9, 1.1, len(sent_ms))
    near = rng.random(len(sent_ms)) < 0.5
    return sent_ms, sent_ms + np.where(near, rng.integers(2_000, 8_000, len(sent_ms)), far_ms).astype(np.int64)


def campaigns(rng: np.random.Generator, rows: int, within_ms: int) -> Timers:
    """A reminder of fifteen minutes, and on each day a campaign that is due two days later within some time."""
    each = rows // 6
    begin_ms = START_MS + np.repeat(np.arange(3) * DAY_MS + 10 * HOUR_MS, each)
    sent_ms = np.concatenate([_by_rng(rng, rows // 2), begin_ms + rng.integers(0, 10 * MINUTE_MS, len(begin_ms))])
    reminder_ms = sent_ms[: rows // 2] + 15 * MINUTE_MS + rng.integers(0, 200, rows // 2)
    due_ms = begin_ms + 2 * DAY_MS + rng.integers(0, within_ms, len(begin_ms))
    return _in_order(sent_ms, np.concatenate([reminder_ms, due_ms]))


def turns(rng: np.random.Generator, rows: int, hours: tuple[int, ...]) -> Timers:
    """Delays in strict turns: as many partitions, or a multiple, get one delay each."""
    return _at(np.array(hours)[np.arange(rows) % len(hours)] * HOUR_MS, rng)


def few(rng: np.random.Generator, rows: int, hours: tuple[int, ...]) -> Timers:
    """Few distinct delays at random."""
    return _at(rng.choice(hours, rows) * HOUR_MS, rng)


def by_due_time(rng: np.random.Generator, rows: int, apart_ms: int) -> Timers:
    """All sends of a day in the order of their due times, but for some time."""
    sent_ms = _by_rng(rng, rows)
    day = sent_ms // DAY_MS
    due_ms = (day + 1) * DAY_MS + rng.integers(0, 4 * DAY_MS, rows)
    due_ms = due_ms[np.lexsort((due_ms + rng.integers(0, apart_ms, rows), day))]
    return sent_ms, due_ms


def lognormal(rng: np.random.Generator, rows: int, sigma: float) -> Timers:
    return _at(rng.lognormal(np.log(2 * HOUR_MS), sigma, rows), rng)


def pareto(rng: np.random.Generator, rows: int, shape: float) -> Timers:
    return _at(MINUTE_MS * (1 + rng.pareto(shape, rows)), rng)


def seasons(rng: np.random.Generator, rows: int, height: float, hours: int) -> Timers:
    """More sends by day than by night, and longer delays by night."""
    drawn_ms = START_MS + rng.integers(0, SPAN_MS, 4 * rows)
    by_day = np.sin(2 * np.pi * (drawn_ms % DAY_MS) / DAY_MS)
    sent_ms = np.sort(drawn_ms[rng.random(4 * rows) < (1 + height * by_day) / (1 + height)][:rows])
    longest_ms = (hours * HOUR_MS * (1.2 - np.sin(2 * np.pi * (sent_ms % DAY_MS) / DAY_MS))).astype(np.int64)
    return sent_ms, sent_ms + (rng.random(len(sent_ms)) * longest_ms).astype(np.int64)


def senders(rng: np.random.Generator, rows: int, number: int, run: int) -> Timers:
    """Senders with a delay each, in runs."""
    delays_ms = rng.integers(1, 6 * 24, number) * HOUR_MS
    return _at(np.repeat(delays_ms[rng.integers(0, number, rows // run + 1)], run)[:rows], rng)


def at_once(rng: np.random.Generator, rows: int, each: int) -> Timers:
    """Several sends of the same millisecond, with delays of their own: their order is that of the input."""
    sent_ms = np.repeat(_by_rng(rng, rows // each), each)
    return sent_ms, sent_ms + rng.integers(0, 3 * DAY_MS, len(sent_ms))


def until_the_hour(rng: np.random.Generator, rows: int, hours: int) -> Timers:
    """Due at full hours, or full days."""
    sent_ms = _by_rng(rng, rows)
    step_ms = hours * HOUR_MS
    return sent_ms, (sent_ms + rng.integers(0, 4 * DAY_MS, rows)) // step_ms * step_ms + step_ms


def beside(rng: np.random.Generator, rows: int, one: History, other: History, share: float) -> Timers:
    """Two histories beside each other."""
    parts = one(rng, int(rows * share)), other(rng, rows - int(rows * share))
    sent_ms, due_ms = (np.concatenate(column) for column in zip(*parts, strict=True))
    return _in_order(sent_ms, due_ms)


History = Callable[[np.random.Generator, int], Timers]
SHAPES: dict[Callable[..., Timers], tuple[dict[str, object], ...]] = {
    runs: ({"run": 2}, {"run": 5}, {"run": 10}, {"run": 50}),
    herd: (
        {"hours": (9,), "within_ms": MINUTE_MS},
        {"hours": (9,), "within_ms": SECOND_MS},
        {"hours": (9, 18), "within_ms": 10 * MINUTE_MS},
        {"hours": (0, 6, 12, 18), "within_ms": MINUTE_MS},
        {"hours": (9,), "within_ms": MINUTE_MS, "share": 0.5},
        {"hours": (9,), "within_ms": HOUR_MS, "share": 0.1},
    ),
    bursts: (
        {"number": 1, "within_ms": SECOND_MS},
        {"number": 20, "within_ms": SECOND_MS},
        {"number": 60, "within_ms": 10 * MINUTE_MS},
    ),
    campaigns: ({"within_ms": SECOND_MS}, {"within_ms": MINUTE_MS}, {"within_ms": 6 * HOUR_MS}),
    turns: ({"hours": (1, 120)}, {"hours": (1, 24, 72)}, {"hours": (2, 4, 8, 16, 32)}, {"hours": (1, 1, 96)}),
    few: ({"hours": (1, 24)}, {"hours": (1, 24, 120)}, {"hours": (1, 2, 3, 5, 8, 13, 21, 34, 55, 89)}),
    by_due_time: ({"apart_ms": 1}, {"apart_ms": HOUR_MS}, {"apart_ms": 12 * HOUR_MS}),
    lognormal: ({"sigma": 0.5}, {"sigma": 1.5}, {"sigma": 3.0}),
    pareto: ({"shape": 0.5}, {"shape": 1.1}, {"shape": 2.0}),
    seasons: ({"height": 0.9, "hours": 12}, {"height": 0.5, "hours": 60}, {"height": 1.0, "hours": 2}),
    senders: ({"number": 5, "run": 100}, {"number": 40, "run": 25}, {"number": 400, "run": 3}),
    at_once: ({"each": 2}, {"each": 10}, {"each": 500}),
    until_the_hour: ({"hours": 1}, {"hours": 24}),
    beside: (
        {"one": partial(turns, hours=(1, 120)), "other": partial(lognormal, sigma=1.5), "share": 0.7},
        {"one": partial(herd, hours=(9,), within_ms=MINUTE_MS), "other": ascending, "share": 0.4},
        {"one": partial(runs, run=10), "other": partial(campaigns, within_ms=MINUTE_MS), "share": 0.5},
        {"one": sticky, "other": partial(bursts, number=3, within_ms=MINUTE_MS), "share": 0.8},
        {"one": begetting, "other": partial(until_the_hour, hours=6), "share": 0.5},
    ),
}
HISTORIES: dict[str, History] = {
    **DEPENDENT,
    **{
        f"{shape.__name__}, {number}": partial(shape, **facts)
        for shape, several in SHAPES.items()
        for number, facts in enumerate(several, start=1)
    },
}
"""60 histories."""
