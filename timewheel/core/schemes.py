"""Schemes: the ways in which a plan may hold timers beyond the window, as values. `Plan` checks their rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from timewheel.core.durations import DAY_MS

Holder = Literal["relay", "broker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Native:
    """All timers go to the due topic with the broker's own delay: the baseline, and the way to start and to leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiered:
    """Tiers of fixed stay; a timer hops down the tiers until its due time is within the window.

    Args:
        window_ms: Remaining time up to which a timer goes to the due topic.
        tiers_ms: Fixed stays, ascending; the smallest is at most the window (else a timer due between them has no
            topic to wait in).
        hold: ``"relay"``: no broker delay, a relay keeps the head and acknowledges cumulatively. ``"broker"``: the
            approach of the source article, each message under the broker's delay of one tier.
    """

    window_ms: int
    tiers_ms: tuple[int, ...]
    hold: Holder = "relay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calendar:
    """A due topic per interval of due times (UTC), without any hop.

    Args:
        interval_ms: Length of an interval; intervals start at multiples of it since 1970.
    """

    interval_ms: int = DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """A ring of slot topics, reused cyclically.

    Args:
        slot_ms: Length of a slot; slots start at multiples of it since 1970.
        slots: Number of topics in the ring. It covers ``slots - 2`` slots ahead, so that a late sweep never meets the
            next turn.
        headstart_ms: Time before its start at which a slot is swept: at least its volume / relay rate + guard, since
            the slot drains in order of arrival (broker-facts: slot-release-time). None: the plan's guard.
    """

    slot_ms: int
    slots: int
    headstart_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """Rings of slots, the finest first."""

    rings: tuple[Ring, ...]


Scheme = Native | Tiered | Calendar | Wheel


def scaled(scheme: Scheme, of: Callable[[int], int]) -> Scheme:
    """Return a scheme with all lengths converted by a function of milliseconds."""
    match scheme:
        case Native():
            return scheme
        case Tiered():
            return replace(scheme, window_ms=of(scheme.window_ms), tiers_ms=tuple(map(of, scheme.tiers_ms)))
        case Calendar():
            return Calendar(interval_ms=of(scheme.interval_ms))
        case Wheel():
            return Wheel(
                rings=tuple(
                    replace(
                        ring,
                        slot_ms=of(ring.slot_ms),
                        headstart_ms=None if ring.headstart_ms is None else of(ring.headstart_ms),
                    )
                    for ring in scheme.rings
                )
            )


def shortest_stay_ms(scheme: Scheme) -> int | None:
    """Return the shortest window, tier, slot or interval; None: the scheme has none."""
    match scheme:
        case Native():
            return None
        case Tiered():
            return min(scheme.window_ms, *scheme.tiers_ms)
        case Calendar():
            return scheme.interval_ms
        case Wheel():
            return min(ring.slot_ms for ring in scheme.rings)
