"""Histories generated from a seed: for the shipped example, benchmarks and tests.

A row is a pure function of the seed and its number, by column expressions only: the same seed gives the same rows on
any session, with any partitioning. Rows are in order of publish time, like a log of sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's world calls it

from timewheel.core import DAY_MS, HOUR_MS, MINUTE_MS

START_MS = 1_767_571_200_000  # 2026-01-05 00:00 UTC, a Monday: the start of generated histories
_UNIT_BITS = 53  # random bits of a number in [0, 1): the precision of a double


# ----------------------------------------------------------------------------------------------------------- send times
@dataclass(frozen=True, slots=True, kw_only=True)
class Seasons:
    """A send rate that may change from hour to hour, the same every day.

    Args:
        weights: A weight for each hour of the UTC day, at least one above 0; the default is a steady rate.
    """

    weights: tuple[float, ...] = (1.0,) * 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursts:
    """All timers of each period are sent at its beginning, as by a job or a campaign.

    Args:
        every_ms: Length of a period.
        within_ms: Duration of sending, at most a period.
    """

    every_ms: int
    within_ms: int


Publishing = Seasons | Bursts


# --------------------------------------------------------------------------------------------------------------- delays
@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """A constant delay."""

    delay_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential:
    """Exponentially distributed delays: many short and few long."""

    mean_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """Uniformly distributed delays from ``least_ms`` up to (not including) ``max_ms``."""

    least_ms: int
    max_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OnTheClock:
    """Due at a time of the UTC day, some days after the day of sending: "09:00 tomorrow".

    Args:
        time_of_day_ms: Milliseconds since midnight.
        least_days: Fewest days later, at least 1.
        max_days: Most days later; each number of days is equally likely.
    """

    time_of_day_ms: int
    least_days: int = 1
    max_days: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FullHours:
    """Due at a full hour: the first that is not before a uniform delay."""

    least_ms: int
    max_ms: int


Delay = Fixed | Exponential | Uniform | OnTheClock | FullHours


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A kind of delay, with its weight relative to the weights of the other shares."""

    weight: float
    delay: Delay


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A kind of history, without its number of timers.

    Args:
        span_ms: Time from the first send to the last.
        shares: The mixture of delays; each timer draws its own.
        publishing: Distribution of send times.
        keys: Number of partition keys; 0: timers have no key.
        topics: The due topics, equally likely; an empty name: the history has no topics.
        least_bytes: Smallest payload.
        max_bytes: Largest payload; sizes are uniform.
        drawn_together: Number of rows in a stretch within which publish times are random, as with many independent
            senders. 1: each row has its own stretch, as with a paced sender; if tiers bring such rows together again,
            the rows alternate, and make more gaps than random rows.
    """

    span_ms: int
    shares: tuple[Share, ...]
    publishing: Publishing = Seasons()
    keys: int = 0
    topics: tuple[str, ...] = ("",)
    least_bytes: int = 200
    max_bytes: int = 1_800
    drawn_together: int = 64

    def __post_init__(self) -> None:
        if not self.shares or min(share.weight for share in self.shares) <= 0:
            raise ValueError("a workload needs shares, each with a weight above 0")
        if isinstance(self.publishing, Seasons) and (len(self.publishing.weights) != 24 or self.span_ms % DAY_MS):
            raise ValueError("seasons have 24 weights, and a span of whole days")
        if isinstance(self.publishing, Bursts) and self.publishing.within_ms > self.publishing.every_ms:
            raise ValueError("a burst ends before the next one begins")
        if self.drawn_together < 1:
            raise ValueError(f"drawn_together = {self.drawn_together}: at least 1")


def _equally(*delays: Delay) -> tuple[Share, ...]:
    return tuple(Share(weight=1, delay=delay) for delay in delays)


_REMINDERS = (
    Share(weight=0.9, delay=Exponential(mean_ms=10 * MINUTE_MS)),
    Share(weight=0.1, delay=Uniform(least_ms=HOUR_MS, max_ms=7 * DAY_MS)),
)
_NINE = OnTheClock(time_of_day_ms=9 * HOUR_MS)

DAY_AND_NIGHT = Seasons(weights=(*(1.0,) * 6, 2.0, 4.0, *(8.0,) * 10, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0))
"""Eight times the night's rate in office hours."""

WORKLOADS: dict[str, Workload] = {
    "mixture": Workload(span_ms=10 * DAY_MS, shares=_REMINDERS),
    "fixed-hour": Workload(span_ms=10 * DAY_MS, shares=_equally(Fixed(delay_ms=HOUR_MS))),
    "fixed-three": Workload(
        span_ms=10 * DAY_MS, shares=_equally(*(Fixed(delay_ms=delay_ms) for delay_ms in (HOUR_MS, DAY_MS, 5 * DAY_MS)))
    ),
    "nine-next-day": Workload(span_ms=10 * DAY_MS, shares=_equally(_NINE)),
    "half-nine": Workload(span_ms=10 * DAY_MS, shares=_equally(_NINE, Exponential(mean_ms=10 * MINUTE_MS))),
    "campaign": Workload(
        span_ms=MINUTE_MS,
        shares=_equally(Uniform(least_ms=0, max_ms=8 * HOUR_MS)),
        publishing=Bursts(every_ms=MINUTE_MS, within_ms=MINUTE_MS),
    ),
    "seasons": Workload(span_ms=10 * DAY_MS, shares=_REMINDERS, publishing=DAY_AND_NIGHT),
    "full-hours": Workload(span_ms=10 * DAY_MS, shares=_equally(FullHours(least_ms=0, max_ms=3 * DAY_MS))),
    "uniform-day": Workload(span_ms=10 * DAY_MS, shares=_equally(Uniform(least_ms=0, max_ms=DAY_MS))),
    "hourly-bursts": Workload(
        span_ms=10 * DAY_MS,
        shares=_equally(Uniform(least_ms=HOUR_MS, max_ms=2 * DAY_MS)),
        publishing=Bursts(every_ms=HOUR_MS, within_ms=2 * MINUTE_MS),
    ),
    "long-mixture": Workload(span_ms=14 * DAY_MS, shares=_REMINDERS),
}
"""Kinds of histories with different difficulties: spread delays, constant delays, dues on the clock, bursts, seasons.
"""


def generate(
    spark: SparkSession,
    workload: Workload,
    *,
    rows: int,
    seed: int = 1,
    start_ms: int = START_MS,
    partitions: int | None = None,
) -> DataFrame:
    """Generate a normalised history of ``rows`` timers, in order of publish time.

    Args:
        spark: Any session.
        workload: The kind of history, your own or from `WORKLOADS`.
        rows: Number of timers.
        seed: Another seed gives another history of the same kind.
        start_ms: Earliest send time, UTC milliseconds; seasons and clock times need a midnight.
        partitions: Partitions of the DataFrame; None: the session's default. The rows do not depend on it.
    """
    number, stretch, together = F.col("id"), F.col("stretch"), workload.drawn_together

    def unit(stream: int, of: Column = number) -> Column:
        """Return a uniform random number in [0, 1), independent between streams."""
        bits = F.shiftrightunsigned(F.xxhash64(of, F.lit(seed), F.lit(stream)), 64 - _UNIT_BITS)
        return bits.cast("double") / F.lit(float(2**_UNIT_BITS))

    # The place in the span: sorted random points of the row's own stretch, so that places ascend.
    begin = stretch * together
    size = F.least(F.lit(together).cast("bigint"), F.lit(rows) - begin)
    points = F.transform(F.sequence(begin, begin + size - 1), lambda row: unit(0, row))
    place = (begin.cast("double") + F.col("point") * size) / F.lit(float(rows))
    publish_ms = F.lit(start_ms) + F.floor(_offset_ms(workload, place))
    key = F.concat(F.lit("key-"), F.floor(unit(3) * workload.keys).cast("string"))
    sizes = workload.max_bytes - workload.least_bytes + 1
    topics = F.array(*map(F.lit, workload.topics))
    due_ms = F.col("publish_ms") + _delay_ms(workload.shares, unit(1), unit(2))
    size_bytes = F.lit(workload.least_bytes) + F.floor(unit(4) * sizes)
    topic = F.get(topics, F.floor(unit(5) * len(workload.topics)).cast("int"))
    frame = (
        spark.range(0, -(-rows // together), 1, partitions)
        .withColumnRenamed("id", "stretch")
        .select("stretch", F.posexplode(F.array_sort(points)).alias("turn", "point"))
        .select((begin + F.col("turn")).alias("id"), publish_ms.alias("publish_ms"))
    )
    # Only the key can be null; coalesce makes the columns non-nullable for Spark, as the schema requires.
    zero, none = F.lit(0).cast("bigint"), F.lit("")
    return frame.select(
        F.coalesce("publish_ms", zero).alias("publish_ms"),
        F.coalesce(due_ms, zero).alias("due_ms"),
        F.coalesce(size_bytes, zero).alias("size_bytes"),
        (key if workload.keys else F.lit(None)).cast("string").alias("key"),
        F.coalesce(topic, none).alias("topic"),
    )


def _offset_ms(workload: Workload, place: Column) -> Column:
    """Return the milliseconds from the start, for a place in [0, 1) among all timers."""
    if isinstance(workload.publishing, Bursts):
        bursts = max(1, workload.span_ms // workload.publishing.every_ms)
        burst = F.floor(place * bursts)
        return burst * workload.publishing.every_ms + (place * bursts - burst) * workload.publishing.within_ms
    days = workload.span_ms // DAY_MS
    day = F.floor(place * days)
    return day * F.lit(DAY_MS) + _time_of_day_ms(place * days - day, workload.publishing.weights)


def _time_of_day_ms(share: Column, weights: Sequence[float]) -> Column:
    """Return the time of day before which this share of the day's timers is sent."""
    whole, before = sum(weights), 0.0
    pieces: list[Column] = []
    for hour, weight in enumerate(weights):
        if weight > 0:
            begin, width = before / whole, weight / whole
            inside = F.lit(float(hour * HOUR_MS)) + (share - begin) / width * HOUR_MS
            pieces.append(F.when(share < begin + width, inside))
            before += weight
    # Rounding may leave a share of almost 1 above the last piece's end.
    return F.least(F.coalesce(*pieces, F.lit(float(DAY_MS - 1))), F.lit(float(DAY_MS - 1)))


def _delay_ms(shares: Sequence[Share], pick: Column, draw: Column) -> Column:
    whole, before = sum(share.weight for share in shares), 0.0
    chosen: list[Column] = []
    for share in shares[:-1]:
        before += share.weight
        chosen.append(F.when(pick < before / whole, _drawn_ms(share.delay, draw)))
    return F.coalesce(*chosen, _drawn_ms(shares[-1].delay, draw)).cast("bigint")


def _drawn_ms(delay: Delay, draw: Column) -> Column:
    publish_ms = F.col("publish_ms")
    match delay:
        case Fixed(delay_ms=delay_ms):
            return F.lit(delay_ms).cast("bigint")
        case Exponential(mean_ms=mean_ms):
            return F.floor(-F.log(F.lit(1.0) - draw) * mean_ms)
        case Uniform(least_ms=least_ms, max_ms=max_ms):
            return F.lit(least_ms) + F.floor(draw * (max_ms - least_ms))
        case OnTheClock(time_of_day_ms=time_of_day_ms, least_days=least_days, max_days=max_days):
            days = F.lit(least_days) + F.floor(draw * (max_days - least_days + 1))
            return days * F.lit(DAY_MS) + F.lit(time_of_day_ms) - F.pmod(publish_ms, F.lit(DAY_MS))
        case FullHours(least_ms=least_ms, max_ms=max_ms):
            due_ms = publish_ms + least_ms + F.floor(draw * (max_ms - least_ms))
            return F.ceil(due_ms / F.lit(float(HOUR_MS))) * HOUR_MS - publish_ms
