"""Money: the monthly cost of a plan, at a user's prices."""

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
    """A user's prices; None: unknown, and left out. Prices do not affect the choice of a plan.

    Args:
        currency: Currency of all prices, as written after an amount.
        million_writes: Price of a million entries written; each entry counts once for any number of copies.
        gb_month: Price of 10^9 bytes on disk for a month, for each copy.
        topic_month: Price of a partition topic for a month.
        relay_month: Price of a running relay for a month, for plans that need a relay.
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
        """True if any price is known."""
        return any(getattr(self, name) is not None for name in AMOUNTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """The monthly cost of a plan, at the mean volume of the history.

    Args:
        currency: Currency of the amounts.
        parts: (item, amount), for every known price.
    """

    currency: str
    parts: tuple[tuple[str, float], ...]

    @property
    def total(self) -> float:
        """Sum of the parts."""
        return math.fsum(amount for _, amount in self.parts)

    def said(self, amount: float) -> str:
        """Format an amount with its currency."""
        return f"{amount:,.2f} {self.currency}"


def monthly(evaluation: Evaluation, prices: Prices | None) -> Bill | None:
    """Compute the monthly cost of a plan; None: no price is known.

    Args:
        evaluation: Evaluation of the plan, at the volume of interest. Its mean volume is taken as that of a month, its
            peak of bytes on disk as that of the whole month.
        prices: The user's prices.
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
