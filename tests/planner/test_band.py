"""A history that is too short: when the topic is full, and the band that holds what it comes to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from examples.history.generate import START_MS
from tests.conftest import Evidence
from tests.support.exact_play import native_peak, play
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.plan import Calendar, Native, Plan, Ring, Scheme, Tiered, Wheel
from timewheel.spark_planner.choice.candidates import as_shadow
from timewheel.spark_planner.extrapolation import Continued, continued_from, warm_up
from timewheel.spark_planner.summary.cells import Cells

A_DAY = 4_000
LONGEST_MS = 30 * DAY_MS
LIFE_DAYS = 150
FRESH = 44  # histories
BASE = Plan(due_topic="persistent://a/b/c", subscriptions=("s",), max_delay_ms=35 * DAY_MS)
Timers = tuple[np.ndarray, np.ndarray]


def process(seed: int) -> Timers:
    """4,000 timers a day for 150 days, at any time and with any delay up to 30 days."""
    rng = np.random.default_rng(seed)
    number = int(rng.poisson(A_DAY * LIFE_DAYS))
    sent_ms = START_MS + np.sort(rng.integers(0, LIFE_DAYS * DAY_MS, number))
    return sent_ms, sent_ms + rng.integers(0, LONGEST_MS, number)


class Short(NamedTuple):
    """A history that is shorter than its delays, continued."""

    continued: Continued
    own: Timers  # the continuation's timers
    life: Timers  # those of all 150 days

    @classmethod
    def of(cls, life: Timers, until_ms: int) -> Short:
        sent_ms, due_ms = life
        early = [times_ms[sent_ms < until_ms] for times_ms in life]
        found = continued_from(Cells.of_timers(early[0], early[1]).bounded(400_000))
        assert found.continuation is not None
        sent, due = [early[0]], [early[1]]
        for from_ms, stop_ms, shift_ms in found.continuation.stretches:
            again = (sent_ms >= from_ms) & (sent_ms < stop_ms)
            sent.append(sent_ms[again] + shift_ms)
            due.append(due_ms[again] + shift_ms)
        return cls(found, (np.concatenate(sent), np.concatenate(due)), life)

    def peaks(self, plan: Plan) -> tuple[int, int]:
        """(the counted peak of the continuation, that of 150 days), each by playing every timer."""
        told, true = (play(plan, *timers).peak(per="partition") for timers in (self.own, self.life))
        return told, true


@cache
def odd_history(seed: int) -> Short:
    """7 to 20 days of delays up to 30: weekends, days that differ more with each seed, campaigns again and again."""
    rng = np.random.default_rng(seed)
    day = np.arange(LIFE_DAYS)
    noise = 0.05 + 0.25 * (seed % 22) / 21
    weekly = np.where(day % 7 < 5, 1.0, rng.choice([1.0, 0.6, 0.25]))
    volumes = rng.poisson(rng.uniform(1_000, 2_000) * weekly * rng.lognormal(-(noise**2) / 2, noise, LIFE_DAYS))
    sent_day = np.repeat(day, volumes)
    number, begin_ms = len(sent_day), START_MS + sent_day * DAY_MS
    busy_ms = rng.normal(rng.uniform(7, 18), 4, number) * HOUR_MS
    sent_ms = begin_ms + busy_ms.astype(np.int64) % DAY_MS
    kinds = {
        "few long": np.minimum(rng.pareto(1.2, number) * DAY_MS, LONGEST_MS),
        "any": rng.integers(0, LONGEST_MS, number),
        "at full hours": begin_ms
        + rng.integers(1, 30, number) * DAY_MS
        + rng.integers(8, 19, number) * HOUR_MS
        - sent_ms,
        "fixed": rng.choice([1, 3, 7, 14], number) * DAY_MS + rng.integers(0, 2, number) * MINUTE_MS,
    }
    shares = 0.25 * np.array([0, 1, 0, 0]) + 0.75 * rng.dirichlet([0.7] * 4)
    delay_ms = np.choose(rng.choice(4, number, p=shares), list(kinds.values())).astype(np.int64)
    sent, due = [sent_ms], [sent_ms + delay_ms]
    often = rng.choice([0, 0.35, 0.5])
    has_campaign = rng.random(LIFE_DAYS) < often
    has_campaign[[1, 4]] = often > 0  # the shortest history shows that they recur
    for campaign in np.flatnonzero(has_campaign).tolist():
        size = int(rng.lognormal(-0.5, 0.3) * volumes.mean())
        begin = START_MS + campaign * DAY_MS
        sent.append(begin + 10 * HOUR_MS + rng.integers(0, HOUR_MS, size))
        due.append(begin + rng.integers(2, 5) * DAY_MS + 9 * HOUR_MS + rng.integers(0, 2 * HOUR_MS, size))
    every, until = np.concatenate(sent), np.concatenate(due)
    order = np.argsort(every, kind="stable")
    return Short.of((every[order], until[order]), START_MS + int(rng.integers(7, 21)) * DAY_MS)


SCHEMES: dict[str, Scheme] = {
    "native": Native(),
    "calendar of 6 h": Calendar(interval_ms=6 * HOUR_MS),
    "calendar of a day": Calendar(interval_ms=DAY_MS),
    "calendar of 5 days": Calendar(interval_ms=5 * DAY_MS),
    "calendar of 10 days": Calendar(interval_ms=10 * DAY_MS),
    "calendar of 20 days": Calendar(interval_ms=20 * DAY_MS),
    "calendar of 30 days": Calendar(interval_ms=30 * DAY_MS),
    "tier of 12 h": Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS,)),
    "tiers of 1 and 5 days": Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS, 5 * DAY_MS)),
    "rings of an hour and a day": Wheel(rings=(Ring(slot_ms=HOUR_MS, slots=30), Ring(slot_ms=DAY_MS, slots=50))),
    "ring of 2 days": Wheel(rings=(Ring(slot_ms=2 * DAY_MS, slots=30),)),
}


class Held(NamedTuple):
    """Peaks of 150 days, as multiples of what was counted on the continuation, and their bands."""

    times: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def by(cls, plan: Plan, histories: Iterable[Short]) -> Held:
        found = []
        for history in histories:
            told, true = history.peaks(plan)
            band = history.continued.band(plan)
            assert band is not None
            found.append((true / told, band.low, band.high))
        return cls(*np.array(found).T)

    def inside(self, share: float = 1.0) -> int:
        """How many are within this share of their bands, from the count on."""
        low, high = 1 + share * (self.low - 1), 1 + share * (self.high - 1)
        return int(np.count_nonzero((low <= self.times) & (self.times <= high)))

    @property
    def widths(self) -> np.ndarray:
        wide: np.ndarray = self.high - self.low
        return wide


def smooth(days: int, seeds: range) -> Iterator[Short]:
    return (Short.of(process(seed), START_MS + days * DAY_MS) for seed in seeds)


def test_the_band_holds_what_the_topic_comes_to() -> None:
    found = Held.by(BASE, smooth(7, range(10)))
    # Of ten at 95 % eight or more hold in all but one of a hundred tries; these seeds are one try.
    assert found.inside() >= 8
    assert max(found.widths) < 0.1, "a band that holds anything says nothing"


@pytest.mark.proof
@pytest.mark.parametrize("days", [7, 14])
def test_the_band_holds_in_ninety_of_a_hundred(days: int, evidence: Evidence) -> None:
    found = Held.by(BASE, smooth(days, range(100)))
    assert found.inside() >= 90
    lives = map(process, range(100))
    peaks = [
        (native_peak(due_ms[sent_ms < START_MS + days * DAY_MS]), native_peak(due_ms)) for sent_ms, due_ms in lives
    ]
    alone, life = np.mean(peaks, axis=0)
    evidence(
        f"{days} days of a process with delays up to 30",
        {
            "seeds": 100,
            "gaps of these days alone": alone,
            "of 150 days": life,
            "peak of 150 days within the band": found.inside(),
            "mean width of it, percent": round(100 * np.mean(found.widths), 1),
        },
        on_broker=False,
    )


@pytest.mark.parametrize("name", ["calendar of a day", "tiers of 1 and 5 days", "rings of an hour and a day"])
def test_each_scheme_has_a_band_of_its_own(name: str) -> None:
    plan = replace(BASE, scheme=SCHEMES[name])
    found = Held.by(plan, map(odd_history, range(0, 22, 3)))
    assert found.inside() >= 7, "of eight"
    assert np.median(found.widths) < 1
    native = Held.by(BASE, map(odd_history, range(0, 22, 3)))
    assert np.median(found.widths) > np.median(native.widths), "days differ more than months do"


@pytest.mark.proof
def test_bands_hold_on_histories_by_which_nothing_was_chosen(evidence: Evidence) -> None:
    # The constants of the bands were chosen on the seeds below 22.
    found = {
        name: Held.by(replace(BASE, scheme=scheme), map(odd_history, range(1_000, 1_000 + FRESH)))
        for name, scheme in SCHEMES.items()
    }
    for name, held in found.items():
        evidence(
            f"odd histories, {name}",
            {
                "histories": FRESH,
                "peak of 150 days within the band": held.inside(),
                "within a band half as wide": held.inside(share=0.5),
                "median lower end, percent": round(100 * np.median(held.low)),
                "median upper end, percent": round(100 * np.median(held.high)),
            },
            on_broker=False,
        )
    # At 95 % fewer than 38 of 44 hold in one of two hundred tries.
    assert min(held.inside() for held in found.values()) >= 38
    assert all(held.inside(share=0.5) < held.inside() for held in found.values()), "half as wide would not do"


def width(sent_ms: np.ndarray, due_ms: np.ndarray) -> float:
    found = continued_from(Cells.of_timers(sent_ms, due_ms)).confidence
    assert found is not None
    return found.high - found.low


def test_fewer_days_make_it_wider() -> None:
    sent_ms, due_ms = process(1)
    early = [sent_ms < START_MS + days * DAY_MS for days in (3, 7, 20)]
    widths = [width(sent_ms[is_early], due_ms[is_early]) for is_early in early]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 1.5 * widths[2]


def test_days_that_differ_make_it_wider() -> None:
    rng = np.random.default_rng(1)
    widths = []
    for volumes in ([4_000] * 7, [8_000, 1_000] * 3 + [2_000]):
        days_ms = np.repeat(START_MS + DAY_MS * np.arange(7), volumes)
        sent_ms = np.sort(days_ms + rng.integers(0, DAY_MS, len(days_ms)))
        widths.append(width(sent_ms, sent_ms + rng.integers(0, LONGEST_MS, len(sent_ms))))
    assert widths[1] > 2 * widths[0]


@pytest.mark.parametrize("days", [1, 2])
def test_of_fewer_than_three_days_nothing_is_said(days: int) -> None:
    sent_ms, due_ms = process(1)
    is_early = sent_ms < START_MS + days * DAY_MS + 2 * HOUR_MS
    found = continued_from(Cells.of_timers(sent_ms[is_early], due_ms[is_early]))
    assert (found.confidence, found.upper_of(BASE)) == (None, 1)


def test_where_no_gap_is_there_is_no_band() -> None:
    sent_ms = START_MS + np.arange(7 * A_DAY) * (DAY_MS // A_DAY)
    assert continued_from(Cells.of_timers(sent_ms, sent_ms + 30 * DAY_MS)).confidence is None


def test_a_shadow_has_a_band() -> None:
    sent_ms, due_ms = process(1)
    early = sent_ms < START_MS + 7 * DAY_MS
    found = continued_from(Cells.of_timers(sent_ms[early], due_ms[early]))
    plan = replace(as_shadow(BASE), scheme=SCHEMES["tiers of 1 and 5 days"])
    band = found.band(plan)
    assert band is not None
    assert 0.8 < band.low < 1 < band.high == found.upper_of(plan) < 1.3
    assert found.band(replace(plan, partitions=7)) is band, "computed once for each scheme"


def sent_for(days: int, delays_ms: np.ndarray) -> Cells:
    sent_ms = START_MS + np.sort(np.random.default_rng(days).integers(0, days * DAY_MS, days * A_DAY))
    return Cells.of_timers(sent_ms, sent_ms + delays_ms[: len(sent_ms)])


def uniform(days: int, longest_ms: int) -> Cells:
    return sent_for(days, np.random.default_rng(1).integers(0, longest_ms, days * A_DAY))


def counted(due_ms: np.ndarray, at_ms: int, sent_ms: np.ndarray) -> tuple[int, int]:
    """(waiting, native gaps) at a moment, by the definition."""
    here = due_ms[sent_ms <= at_ms]
    return int((here > at_ms).sum()), int(((here[1:] <= at_ms) & (here[:-1] > at_ms)).sum())


@pytest.mark.parametrize("days", [2, 7, 14, 26])
def test_thirty_days_of_delays_in_a_shorter_history(days: int) -> None:
    found = warm_up(uniform(days, 30 * DAY_MS))
    assert found is not None
    # 4,000 a day, uniform over 30 days: 15 days' sends wait, and a sixth of 30 days' are gaps.
    assert found.pending == pytest.approx(60_000, rel=0.02)
    assert found.gaps == pytest.approx(20_000, rel=0.02)


def test_it_is_what_a_long_history_comes_to() -> None:
    rng = np.random.default_rng(3)
    days, kinds = 100, rng.random(100 * A_DAY)
    delays_ms = np.where(kinds < 0.5, rng.exponential(2 * DAY_MS, len(kinds)), rng.integers(0, 20 * DAY_MS, len(kinds)))
    delays_ms = np.where(kinds > 0.8, 10 * DAY_MS, delays_ms).astype(np.int64)
    sent_ms = START_MS + np.sort(rng.integers(0, days * DAY_MS, len(kinds)))
    moments = [START_MS + day * DAY_MS for day in range(40, 100, 3)]
    waiting, gaps = np.mean([counted(sent_ms + delays_ms, at_ms, sent_ms) for at_ms in moments], axis=0)
    is_early = sent_ms < START_MS + 5 * DAY_MS
    found = warm_up(Cells.of_timers(sent_ms[is_early], (sent_ms + delays_ms)[is_early]))
    assert found is not None
    assert found.pending == pytest.approx(waiting, rel=0.03)
    assert found.gaps == pytest.approx(gaps, rel=0.03)


@pytest.mark.parametrize(
    ("days", "longest_ms"), [(60, 30 * DAY_MS), (28, 30 * DAY_MS), (10, 7 * DAY_MS), (1, 23 * HOUR_MS)]
)
def test_a_history_in_which_the_topic_fills_up_needs_nothing(days: int, longest_ms: int) -> None:
    assert warm_up(uniform(days, longest_ms)) is None


def test_a_topic_is_full_when_one_percent_of_what_waits_is_missing() -> None:
    # Uniform over W: what waits longer than T is (W - T) ** 2 / 2 W of W / 2, so T is nine tenths of W.
    found = warm_up(uniform(7, 30 * DAY_MS))
    assert found is not None
    assert found.warm_up_ms == pytest.approx(27 * DAY_MS, rel=0.01)
    # Exponential with a mean of ten days: exp(-T / 10) = 0.01.
    found = warm_up(sent_for(20, np.random.default_rng(1).exponential(10 * DAY_MS, 20 * A_DAY).astype(np.int64)))
    assert found is not None
    assert found.warm_up_ms == pytest.approx(46 * DAY_MS, rel=0.02)


def test_a_few_timers_of_years_do_not_make_a_history_short() -> None:
    delays_ms = np.random.default_rng(1).integers(0, DAY_MS, 10 * A_DAY)
    delays_ms[::40_000] = 100 * DAY_MS
    assert warm_up(sent_for(10, delays_ms)) is None


def test_a_burst_of_a_minute_is_no_rate() -> None:
    sent_ms = START_MS + np.arange(60_000)
    due_ms = sent_ms + np.random.default_rng(1).integers(0, 8 * HOUR_MS, 60_000)
    assert int(sent_ms[-1] - sent_ms[0]) < MINUTE_MS
    found = warm_up(Cells.of_timers(sent_ms, due_ms))
    assert found is not None
    assert not found.has_rate
    assert (found.history_ms, found.pending, found.gaps) == (59_999, 0, 0)
    assert found.warm_up_ms == pytest.approx(8 * HOUR_MS, rel=0.15), "99 % of what will wait does by then"


def test_one_fixed_delay_fills_the_topic_and_leaves_no_gap() -> None:
    found = warm_up(sent_for(3, np.full(3 * A_DAY, 10 * DAY_MS)))
    assert found is not None
    assert found.pending == pytest.approx(10 * A_DAY, rel=0.01)
    assert found.gaps == pytest.approx(0, abs=1)
