"""The settings of a demo run: sizes, times, the broker's settings, and the plan of every scheme."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from timewheel.core.errors import TimewheelError, says
from timewheel.core.plan import Calendar, Native, Plan, Ring, Scheme, Tiered, Wheel

SchemeName = Literal["native", "tiered-relay", "tiered-broker", "calendar", "wheel", "shadow"]
ALL_SCHEMES: tuple[SchemeName, ...] = get_args(SchemeName)
PLAIN: frozenset[SchemeName] = frozenset({"native", "shadow"})
"""Schemes whose producer and consumer are pulsar-client's own: they are as early and late as the broker's tick, and
handle redelivered messages again."""

DAYS = 30  # delays are uniform from 0 to this many days
SUBSCRIPTION = "billing"  # the business subscription of every scheme
NAMESPACE = "public/default"

PUBLISH_DAYS = 1.5
"""The burst: the whole trace is published within this many days, a pace that two cores can follow, hops included."""
SHADOW_PUBLISH_DAYS = 10
"""Behind a shadow a burst is written twice while it is sent, timer by timer. If the shadow then lags by more than its
plan allows, some seconds here and half a day in reality, plain clients handle both original and copy."""
DEFAULT_TICK_MS = 1_000  # the broker's own default
GUARD_DAYS = 0.2  # beyond it a relay that lags sends some timers through the late lane, which costs a round trip each
SHADOW_GUARD_DAYS = 0.6
"""Behind a shadow `far` is half a day and twice this, 6.8 s: an original must be acknowledged within that time of its
copy, on a busy machine too. Timers that are due sooner stay in the topic, and make gaps."""
STAGGER_DAYS = 2  # days between the begins of two bursts: one burst at a time, beside that of a shadow
TICKS_PER_DAY = 25
"""With the default tick, the guard and lead that it requires would be half of a short day, and distort the table."""
HEADSTARTS_PER_DAY = 8
"""A wheel's slot is swept an eighth of a day ahead: a thirtieth of the trace, at the rate of a relay, and the guard."""
MIN_DAY_MS = 2_000
"""In shorter days the noise of a busy machine, some ten milliseconds, is no longer small beside a tick."""
MAX_DAY_MS = 60_000
MIN_MESSAGES = 300
MAX_MESSAGES = 1_000_000
MESSAGES_PER_RANGE = 40
"""The broker's limit is a fortieth of the trace, so that native's peak (a fourth of it) is ten times over the limit."""
MAX_LIMIT = 1_000
ENTRIES_PER_LIMIT = 5
"""Entries of a ledger for each range of the limit, as in the broker's own defaults (50,000 and 10,000)."""
DEFAULT_LIMIT = 10_000
"""Default of `managedLedgerMaxUnackedRangesToPersist` in Pulsar through 4.x."""


@says("--{option} {value}: {limit}")
class BadSettings(TimewheelError, ValueError):
    """An option of the demo is out of range."""

    option: str
    value: object
    limit: str


def parse_schemes(text: str) -> tuple[SchemeName, ...]:
    """Read names joined by commas; `BadSettings` for an unknown name."""
    return tuple(_known(name.strip()) for name in text.split(","))


def _known(name: str) -> SchemeName:
    for scheme in ALL_SCHEMES:
        if scheme == name:
            return scheme
    raise BadSettings("schemes", name, "one of " + ", ".join(ALL_SCHEMES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a demo run.

    Raises:
        BadSettings: An option is out of range.
    """

    messages: int = 16_000  # timers in the trace; every scheme plays all of them
    day_ms: int = 4_000  # length of a "day", milliseconds
    seed: int = 7  # seed of the trace
    schemes: tuple[SchemeName, ...] = ALL_SCHEMES  # schemes that play, in the order in which they start
    version: str | None = None  # version of Pulsar; None: the default of `LocalPulsar`
    out: Path = Path("demo-out")  # folder for the results

    def __post_init__(self) -> None:
        if not MIN_MESSAGES <= self.messages <= MAX_MESSAGES:
            raise BadSettings("messages", self.messages, f"from {MIN_MESSAGES} to {MAX_MESSAGES}")
        if not MIN_DAY_MS <= self.day_ms <= MAX_DAY_MS:
            raise BadSettings("day", f"{self.day_ms}ms", f"from {MIN_DAY_MS} ms to {MAX_DAY_MS} ms")
        if not self.schemes or len(set(self.schemes)) != len(self.schemes):
            raise BadSettings("schemes", ",".join(self.schemes), "each at most once, at least one")
        for scheme in self.schemes:
            _known(scheme)

    @property
    def limit(self) -> int:
        """Number of ranges that the broker keeps: `managedLedgerMaxUnackedRangesToPersist`."""
        return min(MAX_LIMIT, self.messages // MESSAGES_PER_RANGE)

    @property
    def span_ms(self) -> int:
        """Upper limit of delays."""
        return DAYS * self.day_ms

    def publish_ms(self, scheme: SchemeName) -> int:
        return int((SHADOW_PUBLISH_DAYS if scheme == "shadow" else PUBLISH_DAYS) * self.day_ms)

    @property
    def tick_ms(self) -> int:
        """The broker's `delayedDeliveryTickTimeMillis`, scaled down like the day, if not as far."""
        return min(DEFAULT_TICK_MS, self.day_ms // TICKS_PER_DAY)

    def guard_ms(self, scheme: SchemeName) -> int:
        """Return a plan's guard: the broker's tick, plus the lag of relay and broker on two busy cores."""
        return int((SHADOW_GUARD_DAYS if scheme == "shadow" else GUARD_DAYS) * self.day_ms)

    def start_offset_ms(self, scheme: SchemeName) -> int:
        """Return when a scheme starts to publish: after the burst before it, or at once behind a shadow."""
        in_turn = [one for one in self.schemes if one != "shadow"]
        return in_turn.index(scheme) * STAGGER_DAYS * self.day_ms if scheme in in_turn else 0

    def scheme_ms(self, scheme: SchemeName) -> int:
        """Return the time from a scheme's first send to its last due time."""
        return self.publish_ms(scheme) + self.span_ms

    @property
    def play_ms(self) -> int:
        """Time from the first scheme's first send to the last due time of all."""
        return max(self.start_offset_ms(scheme) + self.scheme_ms(scheme) for scheme in self.schemes)

    @property
    def unload_offset_ms(self) -> int:
        """Time from the first start to the unload of all topics: half of that play, and after all have published."""
        published_ms = max(self.start_offset_ms(scheme) + self.publish_ms(scheme) for scheme in self.schemes)
        return max(self.scheme_ms(self.schemes[0]) // 2, published_ms)

    def broker_config(self) -> Mapping[str, str]:
        config = {
            "managedLedgerMaxUnackedRangesToPersist": str(self.limit),
            "managedLedgerMaxEntriesPerLedger": str(self.limit * ENTRIES_PER_LIMIT),
            "managedLedgerMinLedgerRolloverTimeMinutes": "0",
        }
        if self.tick_ms != DEFAULT_TICK_MS:
            config["delayedDeliveryTickTimeMillis"] = str(self.tick_ms)
        return config

    def plan(self, scheme: SchemeName) -> Plan:
        """Return the plan of a scheme, with its days scaled to the demo's."""
        plan = Plan(
            due_topic=f"persistent://{NAMESPACE}/{scheme}",
            subscriptions=(SUBSCRIPTION,),
            scheme=self._scheme(scheme),
            max_delay_ms=self.span_ms,
            guard_ms=self.guard_ms(scheme),
            tick_ms=self.tick_ms,
        )
        return replace(plan, intake=True, relay="service", readers="any") if scheme == "shadow" else plan

    def _scheme(self, scheme: SchemeName) -> Scheme:
        day_ms = self.day_ms
        match scheme:
            case "native":
                return Native()
            case "tiered-relay":
                return Tiered(window_ms=day_ms, tiers_ms=(day_ms, 5 * day_ms))
            case "tiered-broker":
                return Tiered(window_ms=day_ms, tiers_ms=(day_ms, 5 * day_ms), hold="broker")
            case "shadow":
                # Timers due within window and guards are not moved. Of a burst those are many, so the window is
                # shorter.
                return Tiered(window_ms=day_ms // 2, tiers_ms=(day_ms // 2, day_ms, 5 * day_ms))
            case "calendar":
                return Calendar(interval_ms=day_ms)
            case "wheel":
                return Wheel(rings=(Ring(slot_ms=day_ms, slots=DAYS + 2, headstart_ms=day_ms // HEADSTARTS_PER_DAY),))
