"""What a seed decides: the plan, the timers, the services, and the faults."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from timewheel.core import Plan, parse_plan
from timewheel.core.routing import Hold, Router

BEGINS = dt.datetime(2027, 1, 1, tzinfo=dt.UTC)

SCHEMES = {
    "native": "[native]",
    "relay-held tiers": '[tiered]\nwindow = "1m"\ntiers = ["1m", "5m", "20m"]',
    "broker-held tiers": '[tiered]\nwindow = "1m"\ntiers = ["1m", "5m", "20m"]\nhold = "broker"',
    "a wheel": '[wheel]\n[[wheel.rings]]\nslot = "3m"\nslots = 22',
    "two rings": '[wheel]\n[[wheel.rings]]\nslot = "3m"\nslots = 8\n[[wheel.rings]]\nslot = "12m"\nslots = 8',
    "a calendar": '[calendar]\ninterval = "15m"',
}
CHANGED = {
    "relay-held tiers": '[tiered]\nwindow = "2m"\ntiers = ["1m", "5m", "10m", "20m"]',
    "broker-held tiers": '[tiered]\nwindow = "2m"\ntiers = ["1m", "5m", "10m", "20m"]\nhold = "broker"',
}
"""Schemes of the next revision: another window, one more tier."""
PLAN = """
format = 1
revision = {revision}
due_topic = "persistent://public/default/timers"
subscriptions = {subscriptions}
max_delay = "1h"
guard = "10s"
partitions = {partitions}
retry = true
{scheme}
{cancel}
"""
LOAD_S = 1_200
LONGEST_S = 3_000
LONGEST_RETRY_S = 600

Kind = Literal[
    "kill",
    "freeze",
    "cut off",
    "lose host",
    "stop",
    "unload",
    "kill broker",
    "clocks back",
    "clocks forward",
    "deploy",
    "no writes",
    "power cut",
]
PROCESS_KINDS: tuple[Kind, ...] = ("kill", "freeze", "cut off", "lose host", "stop")
KINDS: tuple[Kind, ...] = get_args(Kind)
STEPS = ("", "publish", "publish", "acknowledged", "flow", "connect", "reconnect", "let_go", "last_position")
"""Steps at the broker after which a process is struck; empty: at the time itself."""


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer that is sent."""

    at_s: float
    delay_s: float
    cancel_s: float | None = None  # so long after its send it is cancelled
    failures: int = 0  # attempts that its handler postpones
    gives_up: bool = False  # its sender does not send it again after a send that has failed


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault from a time on: at once, or after some steps of the process that it strikes."""

    at_s: float
    kind: Kind
    number: int  # of what it strikes, whatever there is
    lasts_s: float
    step: str = ""
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that a seed decides, but for the turns of threads."""

    seed: int
    scheme: str
    partitions: int
    subscriptions: tuple[str, ...]
    brokers: int
    consumers: int  # of each subscription
    relays: int  # besides those inside consumers
    latency_us: int
    handling_s: float  # longest time of a handler
    timers: tuple[Timer, ...]
    faults: tuple[Fault, ...]
    change_s: float | None  # time at which the next revision is rolled out
    cancel: str = ""  # the plan's section about cancels
    senders: int = 1  # threads that send

    @classmethod
    def drawn(cls, seed: int) -> Scenario:
        scenario = cls._drawn(seed)
        rng = random.Random(f"more of {seed}")
        timers, faults, change_s = scenario.timers, scenario.faults, scenario.change_s
        about, is_changed_at_hops = timers, change_s is not None and rng.random() < 0.5
        if rng.random() < (0.7 if is_changed_at_hops else 0.25):
            timers += (about := _salvo(rng, 150 if is_changed_at_hops else rng.choice([0, 150])))
        if about is not timers or rng.random() < 0.2:
            hops = scenario.hops_of(rng.choice(about))
            faults += tuple(_fault_at_hops(rng, hops, "power cut", "power cut") for _ in range(rng.randint(1, 3)))
        if about is not timers and rng.random() < 0.5:  # while they are handled
            at_s = about[0].at_s + about[0].delay_s + rng.uniform(0, 5)
            faults += (Fault(at_s, "kill broker", rng.randrange(1_000), 0),)
        if is_changed_at_hops:  # at the last hop, for which the revisions differ most; made again by the next one
            hops = scenario.hops_of(rng.choice(about))[-2:-1] or [LOAD_S]
            last = replace(_fault_at_hops(rng, hops), kind="power cut", step="publish", steps=rng.randint(1, 10))
            scenario = replace(scenario, consumers=1, relays=0)
            faults, change_s = (*faults, last), last.at_s + 1 + rng.uniform(0, last.lasts_s)
        return replace(
            scenario,
            timers=tuple(sorted(timers, key=lambda one: one.at_s)),
            faults=tuple(sorted(faults, key=lambda one: one.at_s)),
            change_s=change_s,
            cancel=_cancel(rng, timers, faults),
            senders=rng.choice([1, 1, 3]),
        )

    @classmethod
    def _drawn(cls, seed: int) -> Scenario:
        rng = random.Random(seed)
        scheme = rng.choice([*SCHEMES])
        timers = _timers(rng)
        kinds = rng.sample(KINDS, rng.choice([0, 1, 1, 2, 3]))
        faults = [_fault(rng, kind, timers) for kind in kinds for _ in range(rng.randint(1, 5))]
        if rng.random() < 0.4:  # in the middle of hops, which are short
            faults += [
                _fault_at_hops(rng, [at_s + 60 * minutes for minutes in (1, 2, 5, 6, 10, 20)])
                for at_s in (rng.choice(timers).at_s for _ in range(rng.randint(2, 6)))
            ]
        return cls(
            seed=seed,
            scheme=scheme,
            partitions=rng.choice([1, 1, 2]),
            subscriptions=rng.choice([("service",), ("service",), ("service", "audit")]),
            brokers=rng.choice([1, 3]),
            consumers=rng.choice([1, 1, 2, 3]),
            relays=rng.randint(0, 1),
            latency_us=rng.choice([0, 200, 5_000]),
            handling_s=rng.choice([0, 0, 0.3, 2]),
            timers=timers,
            faults=tuple(sorted(faults, key=lambda one: one.at_s)),
            change_s=rng.uniform(0, LOAD_S) if scheme in CHANGED and rng.random() < 0.3 else None,
        )

    def plan(self, revision: int = 1) -> Plan:
        scheme = (CHANGED if revision > 1 else SCHEMES)[self.scheme]
        named = "[" + ", ".join(f'"{name}"' for name in self.subscriptions) + "]"
        return parse_plan(
            PLAN.format(
                revision=revision,
                subscriptions=named,
                partitions=self.partitions,
                scheme=scheme,
                cancel=self.cancel,
            )
        )

    def hops_of(self, timer: Timer) -> list[float]:
        """Return when a timer hops, if nothing happens, and when it is due."""
        router = Router(self.plan())
        begins_ms = round(BEGINS.timestamp() * 1_000)
        at_ms = begins_ms + round(timer.at_s * 1_000)
        due_ms = at_ms + round(timer.delay_s * 1_000)
        moments = []
        while isinstance(route := router.route(due_ms, at_ms), Hold):
            at_ms = route.release_at_ms
            moments.append(at_ms)
        return [(moment - begins_ms) / 1_000 for moment in [*moments, due_ms]]

    @property
    def ends_s(self) -> float:
        """When the last timer is due, its attempts are made, and the last fault is over."""
        return max(
            [one.at_s + one.delay_s + one.failures * LONGEST_RETRY_S for one in self.timers]
            + [one.at_s + one.lasts_s for one in self.faults]
        )

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.scheme}, {self.partitions} partitions, subscriptions {self.subscriptions}, "
            f"{self.brokers} brokers, {self.consumers} consumers each, {self.relays} relays, latency "
            f"{self.latency_us} us, handlers up to {self.handling_s} s, {len(self.timers)} timers"
        )


def _timers(rng: random.Random) -> tuple[Timer, ...]:
    herd_s, bursts = rng.uniform(300, LONGEST_S), [rng.uniform(0, LOAD_S) for _ in range(rng.randint(1, 4))]
    has_bursts = rng.random() < 0.6
    has_herd, has_cancels, has_failures = rng.random() < 0.2, rng.random() < 0.5, rng.random() < 0.3
    timers = []
    for _ in range(rng.randint(10, 60)):
        at_s = rng.choice(bursts) if has_bursts else rng.uniform(0, LOAD_S)
        delay_s = rng.choice([rng.uniform(0, 90), rng.uniform(0, LONGEST_S), 600.0])
        if has_herd and rng.random() < 0.7:
            delay_s = max(herd_s - at_s, 0)
        cancel_s = None
        if has_cancels and rng.random() < 0.3:
            cancel_s = rng.choice([rng.uniform(0, delay_s), max(delay_s - rng.uniform(0, 3), 0)])
        failures = rng.randint(1, 2) if has_failures and rng.random() < 0.3 else 0
        timers.append(Timer(at_s, delay_s, cancel_s, failures, rng.random() < 0.5))
    return tuple(sorted(timers, key=lambda one: one.at_s))


def _cancel(rng: random.Random, timers: Sequence[Timer], faults: Sequence[Fault]) -> str:
    if all(one.cancel_s is None for one in timers) and rng.random() < 0.5:
        return ""
    has_one_clock = not any(fault.kind.startswith("clocks") for fault in faults)
    return '[cancel]\nskew = "0s"' if has_one_clock and rng.random() < 0.5 else "[cancel]"


def _salvo(rng: random.Random, spread_s: float) -> tuple[Timer, ...]:
    """Draw timers that are sent at once, with the same delays or nearly so: their hops leave in groups."""
    at_s, delay_s = rng.uniform(0, LOAD_S), rng.uniform(120, LONGEST_S - 150)
    return tuple(
        Timer(at_s + number / 1_000, delay_s + rng.uniform(0, spread_s)) for number in range(rng.randint(20, 80))
    )


def _fault(rng: random.Random, kind: Kind, timers: Sequence[Timer]) -> Fault:
    at_s = max(_moment(rng, timers) + rng.choice([0, rng.gauss(0, 0.05), rng.gauss(0, 5)]), 0.0)
    is_of_process = kind in PROCESS_KINDS
    lasts = is_of_process or kind in ("no writes", "power cut")
    lasts_s = rng.choice([rng.uniform(0.05, 3), rng.uniform(0.5, 120)]) if lasts else 0.0
    step = rng.choice(STEPS) if is_of_process else ""
    return Fault(at_s, kind, rng.randrange(1_000), lasts_s, step, rng.randint(1, 4) if step else 0)


def _fault_at_hops(rng: random.Random, hops_s: Sequence[float], *more: Kind) -> Fault:
    at_s = rng.choice(hops_s)
    kinds: tuple[Kind, ...] = ("kill", "kill", "freeze", "cut off", "stop")
    kind = rng.choice(kinds + more)
    lasts_s = rng.choice([rng.uniform(0.05, 3), rng.uniform(0.5, 120)])
    return Fault(at_s - 1, kind, rng.randrange(1_000), lasts_s, rng.choice(STEPS[1:]), rng.randint(1, 6))


def _moment(rng: random.Random, timers: Sequence[Timer]) -> float:
    """Return a time at which something happens to a timer: its sending, its due time, or about that of a hop."""
    one = rng.choice(timers)
    due_s = one.at_s + one.delay_s
    return rng.choice([one.at_s, due_s, one.at_s + 60, one.at_s + 300, max(due_s - 60, 0)])
