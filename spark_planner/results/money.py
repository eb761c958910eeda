"""Money: what a plan costs a month, at the prices that a user pays."""

from __future__ import annotations

import math
from dataclasses import dataclass

from timewheel.spark_planner.pricing.evaluation import Evaluation

__all__ = ["MONTH_DAYS", "Bill", "Prices", "monthly"]

MONTH_DAYS = 365.25 / 12
BYTES_PER_GB = 1e9
AMOUNTS = ("million_writes", "gb_month", "topic_month", "relay_month")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a user pays; None: not known, and left out. They do not change which plan is chosen.

    Args:
        currency: Of all of them, as it is written after an amount.
        million_writes: For a million entries written, each counted once, however many copies are made.
        gb_month: For 10^9 bytes on disk for a month, of each copy.
        topic_month: For a partition topic for a month.
        relay_month: For a running relay for a month, where a plan needs one.
    """

    currency: str = "EUR"
    million_writes: float | None = None
    gb_month: float | None = None
    topic_month: float | None = None
    relay_month: float | None = None

    def __post_init__(self) -> None:
        for name in AMOUNTS:
            price = getattr(self, name)
            if price is not None and not 0 <= price < math.inf:
                raise ValueError(f"{name} = {price}: 0 or more, or None where it is not known")

    @property
    def is_given(self) -> bool:
        """Whether any of them is known."""
        return any(getattr(self, name) is not None for name in AMOUNTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What a plan costs a month, if every month is as the history is on average.

    Args:
        currency: Of the amounts.
        parts: (for what, amount), of every price that is known.
    """

    currency: str
    parts: tuple[tuple[str, float], ...]

    @property
    def total(self) -> float:
        """All of it."""
        return math.fsum(amount for _, amount in self.parts)

    def said(self, amount: float) -> str:
        """An amount with its currency."""
        return f"{amount:,.2f} {self.currency}"


def monthly(evaluation: Evaluation, prices: Prices | None) -> Bill | None:
    """What a plan costs a month; None: no price is known.

    Args:
        evaluation: Of the plan, at the volume that is asked about. Its mean volume is taken for that of a month, its
            most bytes on disk for those of the whole month.
        prices: The user's.
    """
    if prices is None or not prices.is_given:
        return None
    entries = evaluation.timers_per_day * evaluation.writes_per_timer * MONTH_DAYS
    amounts: tuple[tuple[str, float | None, float], ...] = (
        ("entries written", prices.million_writes, entries / 1e6),
        ("bytes on disk", prices.gb_month, evaluation.storage_bytes / BYTES_PER_GB),
        ("partition topics", prices.topic_month, evaluation.partition_topics),
        ("relay", prices.relay_month, float(evaluation.needs_relay)),
    )
    parts = tuple((name, price * number) for name, price, number in amounts if price is not None)
    return Bill(currency=prices.currency, parts=parts)
