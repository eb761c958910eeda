"""Plan: the rules by which the timers of **one due topic** travel.

Plans are frozen values; an existing plan is always valid. Plans are usually read from a file (`planfile`), but can be
built in code as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Literal

from timewheel.core.durations import (
    DAY_MS,
    MAX_DURATION_MS,
    MINUTE_MS,
    SECOND_MS,
    format_duration,
    parse_duration,
    rounded_up,
    spelled,
)
from timewheel.core.errors import PlanError, SendRefused, did_you_mean
from timewheel.core.escapes import timewheel_command

_SUBSCRIPTION = re.compile(r"(?!\.{1,2}$).+")
_NO_DURATION_MS = 10**18  # numbers from here on are shown as given in an error


def within(name: str, value: object, low: int, high: int, what: str = "") -> None:
    """Require a whole number between two limits, both included."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise PlanError(name, value, f"{what or 'a whole number'} from {low} to {high}")


def within_ms(name: str, value_ms: object, low_ms: int, high_ms: int) -> None:
    """Require a duration between two limits, both included."""
    if isinstance(value_ms, bool) or not isinstance(value_ms, int) or not low_ms <= value_ms <= high_ms:
        shown: object = value_ms
        if isinstance(value_ms, int) and 0 <= value_ms < _NO_DURATION_MS:
            shown = format_duration(value_ms)
        raise PlanError(name, shown, f"a duration from {format_duration(low_ms)} to {format_duration(high_ms)}")


def is_name(value: object, form: re.Pattern[str]) -> bool:
    """Return whether a value is printable text that matches a pattern."""
    # Unprintable characters (controls, halves of a surrogate pair) survive neither a file nor a URL.
    return isinstance(value, str) and value.isprintable() and form.fullmatch(value) is not None


def a_subscription(name: object) -> None:
    """Require a name that the admin API and plan files can carry; there is no other rule for subscriptions."""
    if not is_name(name, _SUBSCRIPTION):
        raise PlanError("subscriptions", name, 'a subscription\'s name is printable text, not empty, "." or ".."')


def a_tuple(name: str, value: object) -> None:
    # A list would make the plan mutable and unhashable; a text would count as its letters.
    if not isinstance(value, tuple):
        raise PlanError(name, value, "must be a tuple")


def a_truth(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise PlanError(name, value, "true or false")


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise PlanError(name, value, f"one of {', '.join(allowed)}{did_you_mean(value, allowed)}")


def texts(durations_ms: tuple[int, ...]) -> list[str]:
    """Format durations as in a plan file."""
    return [format_duration(duration_ms) for duration_ms in durations_ms]


WhenBlind = Literal["hold", "deliver"]

MAX_KEEP_MS = 400 * DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Settings of a plan whose timers may be cancelled, rescheduled and replaced.

    Args:
        keep_ms: Time after a timer's due time for which its cancellation is remembered. A timer that reaches a consumer
            later is parked, since it may have been cancelled. Raise the value with care: cancellations that are already
            stored keep the old value.
        skew_ms: Largest difference between the clocks of producers and consumers: a cancel is certain if it is
            confirmed more than this before the due time (broker-facts: cancellation-log).
        on_log_unavailable: Action of a consumer for a due timer while the log of cancellations does not answer:
            ``"hold"`` the timer, or ``"deliver"`` it after a while, cancelled or not.

    Raises:
        PlanError: A value is out of its range.
    """

    keep_ms: int = DAY_MS
    skew_ms: int = SECOND_MS
    on_log_unavailable: WhenBlind = "hold"

    def __post_init__(self) -> None:
        within_ms("cancel.keep", self.keep_ms, MINUTE_MS, MAX_KEEP_MS)
        within_ms("cancel.skew", self.skew_ms, 0, DAY_MS)
        one_of("cancel.on_log_unavailable", self.on_log_unavailable, ("hold", "deliver"))


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


Readers = Literal["timewheel", "any"]
RelayPlace = Literal["embedded", "service"]

MAX_PARTITIONS = 1_024
MAX_SUBSCRIPTIONS = 64
MAX_TIERS = 16  # limit on tiers: beyond it, the topics cost more than the hops that they save
MAX_RINGS = 6
MAX_SLOTS = 1_000  # limit on slots of a ring; each is a topic with a subscription
MAX_HOPS = 10_000
"""Limit on hops: beyond it a plan re-publishes absurdly often, since its smallest tier is too small for max_delay."""
MAX_CALENDAR_TOPICS = 1_000
"""Limit on intervals within max_delay; each is a topic that must exist before its first timer."""

MAX_INTERVAL_MS = 366 * DAY_MS  # longest interval of a calendar
MAX_FORMER = 16
"""Limit for each kind: consumers read all former intervals, and a look at the topics lists all former namespaces."""

MIN_STAY_MS = SECOND_MS
"""Shortest tier, slot, window or interval: below the broker's default tick, a stay could not be kept apart from now."""

OWN_INFIX = ".tw."  # part of the name of every topic that timewheel creates

_TOPIC = re.compile(r"persistent://([\w.=:-]+)/([\w.=:-]+)/([^/\s?#]+)", re.ASCII)
_NAMESPACE = re.compile(r"[\w.=:-]+/[\w.=:-]+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Scheme, limits and names of one due topic. The constructor checks every rule.

    Args:
        due_topic: Full name, ``persistent://tenant/namespace/topic``, without a partition suffix.
        subscriptions: The business subscriptions that must exist before the first publish.
        scheme: Scheme by which timers beyond the window are held.
        revision: Counts up with every change of the file; every envelope carries it.
        partitions: Partitions of the due topic and of every topic of timewheel's own. 0: the due topic is
            unpartitioned, and cannot become partitioned (broker-facts: unpartitioned-topics); timewheel's own topics
            have one partition then, since their Failover subscriptions need one (broker-facts: failover-and-takeover).
        holding_namespace: ``tenant/namespace`` of holding topics; None: the due topic's.
        max_delay_ms: Longest delay; a send with a longer delay is refused.
        relay: Place of the relay: inside the consumer's process or as a service.
        readers: ``"timewheel"``: all readers of the due topic are our consumers, so the broker is asked for a lead
            and the consumer holds to the millisecond; ``"any"``: no lead (broker-facts: a-tick-early-or-late).
        guard_ms: Slack for clock skew, send time-out and takeover; a timer enters a tier only if its stay and the guard
            fit into the remaining time (broker-facts: guard-and-skew).
        tick_ms: The broker's ``delayedDeliveryTickTimeMillis``.
        jitter_ms: Spread of future due times: up to this long after the requested time. The timer id decides, so that
            a timer that is sent again gets the same due time, as long as the jitter is not changed. 0: none.
        former_intervals_ms: Lengths of the intervals of earlier plans' calendars. Consumers read their topics as well
            until they are empty; consumers cannot list topics, so only the plan can name these intervals
            (broker-facts: topics-outside-the-plan).
        former_namespaces: Namespaces of earlier plans' holding topics, if they differ from the namespaces above.
        cancel: Settings for cancelling and replacing timers; None: timers cannot be cancelled, and the log of
            cancellations does not exist.
        retry: True if a subscription's handlers may have timers tried again later, or parked, through topics of their
            own.
        intake: True if clients of any language may also send timers, through a topic of their own (`Names.intake`), and
            a shadow may move messages that are far from due out of the due topic.

    Raises:
        PlanError: A rule is broken; the error names field, value and limit.
    """

    due_topic: str
    subscriptions: tuple[str, ...]
    scheme: Scheme = field(default_factory=Native)
    revision: int = 1
    partitions: int = 1
    holding_namespace: str | None = None
    max_delay_ms: int = 30 * DAY_MS
    relay: RelayPlace = "embedded"
    readers: Readers = "timewheel"
    guard_ms: int = 5 * MINUTE_MS
    tick_ms: int = SECOND_MS
    jitter_ms: int = 0
    former_intervals_ms: tuple[int, ...] = ()
    former_namespaces: tuple[str, ...] = ()
    cancel: Cancel | None = None
    retry: bool = False
    intake: bool = False

    def __post_init__(self) -> None:
        _check_names(self)
        _check_former(self)
        within("revision", self.revision, 1, 2**31 - 1)
        within("partitions", self.partitions, 0, MAX_PARTITIONS)
        within_ms("max_delay", self.max_delay_ms, MIN_STAY_MS, MAX_DURATION_MS)
        within_ms("guard", self.guard_ms, 0, DAY_MS)
        within_ms("tick", self.tick_ms, 1, MINUTE_MS)
        within_ms("jitter", self.jitter_ms, 0, MAX_DURATION_MS)
        a_truth("retry", self.retry)
        a_truth("intake", self.intake)
        one_of("relay", self.relay, ("embedded", "service"))
        one_of("readers", self.readers, ("timewheel", "any"))
        if self.cancel is not None and self.readers != "timewheel":
            raise PlanError(
                "readers",
                self.readers,
                '"timewheel" in a plan with [cancel], since other readers do not check for cancellations; leave out '
                "one of the two",
            )
        match self.scheme:
            case Native():
                pass
            case Tiered():
                _check_tiered(self, self.scheme)
            case Calendar():
                _check_calendar(self, self.scheme)
            case Wheel():
                _check_wheel(self, self.scheme)
            case _:
                raise PlanError("scheme", self.scheme, "must be Native, Tiered, Calendar or Wheel")
        if self.intake:
            _check_intake(self)

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan file; see `timewheel.core.planfile.load_plan`."""
        # Imported here: pydantic belongs to the file's edge, and a plan can be built without it.
        from timewheel.core.planfile import load_plan  # noqa: PLC0415 - see above

        return load_plan(path)

    @property
    def is_partitioned(self) -> bool:
        """True if the due topic has partitions, even a single one."""
        return self.partitions > 0

    @property
    def own_partitions(self) -> int:
        """Partitions of every topic of timewheel's own, over which timers are spread; at least 1."""
        return max(self.partitions, 1)

    @property
    def max_partitions(self) -> int:
        """Largest number of partitions of the due topic; an unpartitioned due topic cannot get any."""
        return MAX_PARTITIONS if self.is_partitioned else 1

    def with_partitions(self, partitions: int) -> Plan:
        """Return this plan with another number of partitions. A plan with an unpartitioned due topic stays unchanged.

        Args:
            partitions: Number of partitions, from 1 to `max_partitions`.
        """
        within("partitions", partitions, 1, self.max_partitions, "the number of partitions")
        return replace(self, partitions=partitions) if self.is_partitioned else self

    def scaled(self, factor: float | Fraction) -> Plan:
        """Return this plan with all durations of a timer's way scaled: a month in a minute, for a test.

        ``tick`` stays, since it is the broker's, and ``[cancel]`` stays, since it is about handled timers.

        Args:
            factor: Factor of each duration; results are rounded to the nearest millisecond.

        Raises:
            PlanError: A window, tier, slot, interval or ``max_delay`` would be below a second. The error names the
                least factor.
        """

        def of(duration_ms: int) -> int:
            return round(duration_ms * factor)

        stays_ms = (shortest_stay_ms(self.scheme) or self.max_delay_ms, self.max_delay_ms, *self.former_intervals_ms)
        if of(min(stays_ms)) < MIN_STAY_MS:
            least = f"at least {MIN_STAY_MS} / {min(stays_ms)}: {format_duration(min(stays_ms))} would be below "
            raise PlanError("factor of scaled", factor, least + format_duration(MIN_STAY_MS))
        return replace(
            self,
            scheme=scaled(self.scheme, of),
            max_delay_ms=of(self.max_delay_ms),
            guard_ms=of(self.guard_ms),
            jitter_ms=of(self.jitter_ms),
            former_intervals_ms=tuple(map(of, self.former_intervals_ms)),
        )

    @property
    def lead_ms(self) -> int:
        """Time before the due time at which the broker is asked to deliver: 1.5 ticks, or 0 for foreign readers.

        The broker is late by up to a tick as well as early (broker-facts: a-tick-early-or-late).
        """
        return self.tick_ms * 3 // 2 if self.readers == "timewheel" else 0

    @property
    def skew_ms(self) -> int:
        """Part of the guard for clocks that differ between hosts: a fifth, a minute by default."""
        return self.guard_ms // 5

    @property
    def send_margin_ms(self) -> int:
        """Time before the sweep of a slot in which producers pass over it: for the publish, and for the clocks."""
        return 2 * self.skew_ms

    @property
    def holds_in_relay(self) -> bool:
        """True if a relay reads the holding topics in order, without any broker delay."""
        return isinstance(self.scheme, Wheel) or (isinstance(self.scheme, Tiered) and self.scheme.hold == "relay")

    @property
    def needs_relay(self) -> bool:
        """True if the plan has holding topics."""
        return isinstance(self.scheme, Tiered | Wheel)

    @property
    def keeps_back(self) -> bool:
        """True if each subscription has a topic for timers that it tries again, and a topic for parked timers.

        This includes plans with cancellation: a timer that comes too late to be judged is parked, and an operator can
        have it handled all the same by trying it again, for that subscription alone.
        """
        return self.retry or self.cancel is not None

    def headstart_ms(self, ring: Ring) -> int:
        """Return the time before its start at which a slot of this ring is swept."""
        return self.guard_ms if ring.headstart_ms is None else ring.headstart_ms


def tier_entry_ms(scheme: Tiered, guard_ms: int, tier_ms: int) -> int:
    """Return the least remaining time with which a timer enters a tier: stay and guard fit, beyond the window."""
    return max(tier_ms + guard_ms, scheme.window_ms + 1)


def tier_hops(scheme: Tiered, guard_ms: int, remaining_ms: int) -> int:
    """Return the largest number of hops of a timer with at most this much remaining time."""
    hops = 0
    for tier_ms in reversed(scheme.tiers_ms):
        entry_ms = tier_entry_ms(scheme, guard_ms, tier_ms)
        if remaining_ms >= entry_ms:
            # Each hop subtracts a whole stay; after this many hops less time remains than the tier requires.
            hops += (remaining_ms - entry_ms) // tier_ms + 1
            # A shorter delay may leave more time below than a longer delay: continue with the longest possible rest.
            remaining_ms = entry_ms - 1
    return hops


def _check_names(plan: Plan) -> None:
    if not is_name(plan.due_topic, _TOPIC):
        raise PlanError("due_topic", plan.due_topic, "must be persistent://tenant/namespace/topic")
    if "-partition-" in plan.due_topic:
        # Anywhere in the name, like the broker's check: the names of timewheel's own topics begin with this name.
        raise PlanError(
            "due_topic", plan.due_topic, "must name the topic, not one of its partitions: no -partition- in it"
        )
    if OWN_INFIX in plan.due_topic.rsplit("/", 1)[1]:
        raise PlanError("due_topic", plan.due_topic, f"names with {OWN_INFIX} belong to timewheel's own topics")
    namespace = plan.holding_namespace
    if namespace is not None and not is_name(namespace, _NAMESPACE):
        raise PlanError("holding_namespace", namespace, "must be tenant/namespace")
    a_tuple("subscriptions", plan.subscriptions)
    within("subscriptions", len(plan.subscriptions), 1, MAX_SUBSCRIPTIONS, "the number of subscriptions")
    for name in plan.subscriptions:
        a_subscription(name)
    if len(set(plan.subscriptions)) != len(plan.subscriptions):
        raise PlanError("subscriptions", plan.subscriptions, "every subscription once")


def _check_former(plan: Plan) -> None:
    a_tuple("former_intervals", plan.former_intervals_ms)
    within("former_intervals", len(plan.former_intervals_ms), 0, MAX_FORMER, "the number of former intervals")
    for interval_ms in plan.former_intervals_ms:
        within_ms("former_intervals", interval_ms, MIN_STAY_MS, MAX_INTERVAL_MS)
    a_tuple("former_namespaces", plan.former_namespaces)
    within("former_namespaces", len(plan.former_namespaces), 0, MAX_FORMER, "the number of former namespaces")
    for namespace in plan.former_namespaces:
        if not is_name(namespace, _NAMESPACE):
            raise PlanError("former_namespaces", namespace, "must be tenant/namespace")


def _check_intake(plan: Plan) -> None:
    if not plan.holds_in_relay:
        raise PlanError(
            "intake", True, "tiers that a relay holds, or a wheel: timers of the intake must have a topic to wait in"
        )
    if plan.relay != "service":
        raise PlanError("intake", True, 'relay = "service": timewheel shadow run relays for the whole plan')


def _check_tiered(plan: Plan, scheme: Tiered) -> None:
    one_of("tiered.hold", scheme.hold, ("relay", "broker"))
    within_ms("tiered.window", scheme.window_ms, MIN_STAY_MS, MAX_DURATION_MS)
    a_tuple("tiered.tiers", scheme.tiers_ms)
    within("tiered.tiers", len(scheme.tiers_ms), 1, MAX_TIERS, "the number of tiers")
    for tier_ms in scheme.tiers_ms:
        within_ms("tiered.tiers", tier_ms, MIN_STAY_MS, MAX_DURATION_MS)
    if any(left >= right for left, right in pairwise(scheme.tiers_ms)):
        raise PlanError("tiered.tiers", texts(scheme.tiers_ms), "tiers ascend, each once")
    if scheme.tiers_ms[0] > scheme.window_ms:
        raise PlanError(
            "tiered.tiers",
            texts(scheme.tiers_ms),
            f"the smallest tier is at most the window ({format_duration(scheme.window_ms)}), "
            "else a timer due between them has no topic to wait in",
        )
    hops = tier_hops(scheme, plan.guard_ms, plan.max_delay_ms)
    within("tiered.tiers", hops, 0, MAX_HOPS, f"hops for a delay of {format_duration(plan.max_delay_ms)}")


def _check_calendar(plan: Plan, scheme: Calendar) -> None:
    if not plan.is_partitioned:
        raise PlanError(
            "partitions",
            plan.partitions,
            "1 or more in a calendar: all its topics are timewheel's own, and nothing is sent to the due topic itself",
        )
    within_ms("calendar.interval", scheme.interval_ms, MIN_STAY_MS, MAX_INTERVAL_MS)
    topics = plan.max_delay_ms // scheme.interval_ms + 2
    within("calendar.interval", topics, 1, MAX_CALENDAR_TOPICS, "topics within max_delay")


def _check_wheel(plan: Plan, scheme: Wheel) -> None:
    a_tuple("wheel.rings", scheme.rings)
    within("wheel.rings", len(scheme.rings), 1, MAX_RINGS, "the number of rings")
    for ring in scheme.rings:
        within_ms("wheel.rings.slot", ring.slot_ms, MIN_STAY_MS, MAX_DURATION_MS)
        within("wheel.rings.slots", ring.slots, 4, MAX_SLOTS)
        within_ms("wheel.rings.headstart", plan.headstart_ms(ring), 0, ring.slot_ms)
    for fine, coarse in pairwise(scheme.rings):
        if fine.slot_ms >= coarse.slot_ms:
            raise PlanError("wheel.rings", texts((fine.slot_ms, coarse.slot_ms)), "slots ascend from ring to ring")
        if coarse.slot_ms % fine.slot_ms:
            raise PlanError(
                "wheel.rings.slot",
                format_duration(coarse.slot_ms),
                f"must be a multiple of the finer ring's slot ({format_duration(fine.slot_ms)})",
            )
        if plan.headstart_ms(coarse) < plan.headstart_ms(fine):
            raise PlanError(
                "wheel.rings.headstart",
                format_duration(plan.headstart_ms(coarse)),
                "at least the finer ring's, else a hop could go back to a coarser ring",
            )
        # The finer ring covers a slot of the coarser ring, its head start, and two slots of its own
        # (broker-facts: slot-release-time).
        needed_ms = coarse.slot_ms + plan.headstart_ms(coarse) + 2 * fine.slot_ms
        if fine.slots * fine.slot_ms < needed_ms:
            raise PlanError(
                "wheel.rings.slots",
                fine.slots,
                f"slots of {format_duration(fine.slot_ms)} must cover one coarser slot, its head start and 2 slots: "
                f"at least {-(-needed_ms // fine.slot_ms)}",
            )
    last = scheme.rings[-1]
    horizon_ms = (last.slots - 2) * last.slot_ms
    if horizon_ms < plan.max_delay_ms:
        raise PlanError(
            "max_delay",
            format_duration(plan.max_delay_ms),
            f"at most the coarsest ring's horizon, (slots - 2) x slot = {format_duration(horizon_ms)}",
        )


class DelayTooLong(SendRefused):
    """The due time is beyond the plan's ``max_delay``."""

    def __init__(self, delay_ms: int, plan: Plan) -> None:
        self.delay_ms = delay_ms
        self.max_delay_ms = plan.max_delay_ms
        super().__init__(f"a delay of {spelled(delay_ms)} is {beyond(delay_ms, plan)}")


def beyond(delay_ms: int, plan: Plan) -> str:
    """Describe how a delay exceeds the limits, with the remedy; the end of a sentence."""
    fact = f"beyond the plan's max_delay of {format_duration(plan.max_delay_ms)}"
    enough_ms = parse_duration(rounded_up(delay_ms)) if delay_ms <= MAX_DURATION_MS else delay_ms
    try:
        replace(plan, max_delay_ms=enough_ms)
    except PlanError as error:
        return (
            f"{fact}, and a longer one breaks another limit ({error.field}: {error.limit}): keep it in a store of your "
            "own, and send it later"
        )
    ensures = timewheel_command("topics", "ensure", "PLAN")
    return f'{fact}: send it later, or write max_delay = "{format_duration(enough_ms)}" into the plan and run {ensures}'
