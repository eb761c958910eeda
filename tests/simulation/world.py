"""Plays services, relays and faults on a virtual Pulsar by a seed, and judges what became of every timer.

PYTHONPATH=. python -m tests.simulation.world 17            # the story of seed 17
PYTHONPATH=. python -m tests.simulation.world --seeds 300   # so many; the first that breaks a promise is told
"""

from __future__ import annotations

import argparse
import datetime as dt
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from timewheel.consumers import DelayedConsumer, DelayedMessage
from timewheel.core import Plan, parse_plan
from timewheel.core.names import RELAY_SUBSCRIPTION
from timewheel.producers import DelayedProducer
from timewheel.provision import ensure
from timewheel.relay import Relay
from timewheel.testing.virtual import VirtualProcess, VirtualPulsar

BEGINS = dt.datetime(2027, 1, 1, tzinfo=dt.UTC)
SCHEMES = {
    "native": "[native]",
    "relay-held tiers": '[tiered]\nwindow = "1m"\ntiers = ["1m", "5m", "20m"]',
    "broker-held tiers": '[tiered]\nwindow = "1m"\ntiers = ["1m", "5m", "20m"]\nhold = "broker"',
    "a wheel": '[wheel]\n[[wheel.rings]]\nslot = "1m"\nslots = 64',
    "a calendar": '[calendar]\ninterval = "10m"',
}
PLAN = """
format = 1
due_topic = "persistent://public/default/timers"
subscriptions = ["service"]
max_delay = "1h"
guard = "10s"
partitions = {partitions}
{scheme}
"""
LOAD_S = 1_200
LONGEST_S = 3_000
DRAIN_S = 900
"""After the last due time and the last fault: all that may still come has come."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault at a time: kills and freezes of services last for a while, the rest is a moment."""

    at_s: float
    kind: str
    number: int
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.kind} {self.number}" + (f" for {self.lasts_s:.1f} s" if self.lasts_s else "")


KINDS: dict[str, tuple[str, bool]] = {
    "kill": ("process", True),
    "freeze": ("process", True),
    "unload": ("topic", False),
    "kill broker": ("broker", False),
    "clock back": ("host", False),
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that a seed decides, but for the turns of threads."""

    seed: int
    scheme: str
    partitions: int
    brokers: int
    consumers: int
    relays: int  # besides those inside consumers
    latency_us: int
    timers: tuple[tuple[float, float], ...]  # when each is sent, and its delay, seconds
    faults: tuple[Fault, ...]

    @classmethod
    def drawn(cls, seed: int) -> Scenario:
        rng = random.Random(seed)
        scheme = rng.choice([*SCHEMES])
        consumers, relays = rng.randint(1, 3), rng.randint(0, 1)
        timers = tuple(
            (rng.uniform(0, LOAD_S), rng.choice([rng.uniform(0, 90), rng.uniform(0, LONGEST_S), 600.0]))
            for _ in range(rng.randint(10, 60))
        )
        kinds = rng.sample([*KINDS], rng.randint(0, len(KINDS)))
        faults = [
            Fault(
                max(_moment(rng, timers) + rng.choice([0, rng.gauss(0, 0.05), rng.gauss(0, 5)]), 0.0),
                kind,
                rng.randrange(1_000),
                rng.choice([rng.uniform(0.05, 3), rng.uniform(0.5, 120)]) if KINDS[kind][1] else 0,
            )
            for kind in kinds
            for _ in range(rng.randint(1, 6))
        ]
        return cls(
            seed, scheme, rng.choice([1, 1, 2]), rng.choice([1, 3]), consumers, relays,
            rng.choice([0, 200, 5_000]), tuple(sorted(timers)), tuple(sorted(faults, key=lambda one: one.at_s)),
        )  # fmt: skip

    @property
    def plan(self) -> Plan:
        return parse_plan(PLAN.format(partitions=self.partitions, scheme=SCHEMES[self.scheme]))

    @property
    def ends_s(self) -> float:
        return max([at_s + delay_s for at_s, delay_s in self.timers] + [one.at_s + one.lasts_s for one in self.faults])


def _moment(rng: random.Random, timers: Sequence[tuple[float, float]]) -> float:
    """Return a time at which something happens to a timer: its sending, its due time, or about that of a hop."""
    at_s, delay_s = rng.choice(timers)
    return rng.choice([at_s, at_s + delay_s, at_s + 60, at_s + 300, at_s + max(delay_s - 60, 0)])


@dataclass(slots=True)
class Verdict:
    """What became of the timers; each is a sentence for each promise that was broken."""

    broken: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    sent: int = 0
    handled: int = 0
    repeated: int = 0


class Play:
    """A scenario on a virtual Pulsar."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.plan = scenario.plan
        self.verdict = Verdict()
        self.due: dict[str, dt.datetime] = {}  # of confirmed timers
        self.handled: dict[str, list[tuple[float, str]]] = {}  # when, and by whom
        self.disturbed_s: list[tuple[float, float]] = []  # when a consumer or broker may have forgotten what it did
        self._virtual = VirtualPulsar(
            begins=BEGINS, brokers=scenario.brokers, seed=scenario.seed,
        )  # fmt: skip
        self._processes: dict[str, VirtualProcess] = {}
        self._services: dict[str, Callable[[str], None]] = {}

    def run(self) -> Verdict:
        scenario = self.scenario
        with self._virtual as virtual:
            virtual.cluster.latency_ns = scenario.latency_us * 1_000
            with virtual.admin() as admin:
                ensure(admin, self.plan, now_ms=round(time.time() * 1000))
            for number in range(scenario.consumers):
                self._begin(f"consumer {number}", self._consume)
            if self.plan.needs_relay:
                for number in range(scenario.relays):
                    self._begin(f"relay {number}", self._relay)
            self._virtual.start(self._produce, name="producer")
            for fault in scenario.faults:
                self._advance_to(fault.at_s)
                self._strike(fault)
            self._advance_to(scenario.ends_s + DRAIN_S)
            self._judge()
        return self.verdict

    @property
    def now_s(self) -> float:
        return self._virtual.scheduler.monotonic_ns / 1e9

    def _advance_to(self, at_s: float) -> None:
        self._virtual.advance(seconds=max(at_s - self.now_s, 0))

    def tell(self, sentence: str) -> None:
        self.verdict.story.append(f"{self.now_s:10.3f} s  {sentence}")

    # Services

    def _begin(self, name: str, service: Callable[[str], None]) -> None:
        self._services[name] = service
        self._processes[name] = self._virtual.start(service, name, name=name)

    def _consume(self, name: str) -> None:
        client = self._virtual.client()

        def handle(message: DelayedMessage) -> None:
            timer_id, due = message.timer_id, message.due_at
            assert timer_id is not None
            assert due is not None
            self.handled.setdefault(timer_id, []).append((self.now_s, name))
            self.tell(f"{name} handles {timer_id}, late by {message.lateness}")
            if due > dt.datetime.now(dt.UTC):
                self.verdict.broken.append(f"{timer_id} was early: due at {due}")

        with DelayedConsumer(client, self.plan, "service", rng=self._rng(name)) as consumer:
            consumer.run(handle, workers=2)

    def _relay(self, name: str) -> None:
        relay = Relay(self._virtual.client(), self.plan, rng=self._rng(name), relay_id=name.replace(" ", "-"))
        relay.start()
        threading.Event().wait()

    def _rng(self, name: str) -> random.Random:
        return random.Random(f"{self.scenario.seed} {name}")

    def _produce(self) -> None:
        client = self._virtual.client()
        with DelayedProducer(client, self.plan) as producer:
            for number, (at_s, delay_s) in enumerate(self.scenario.timers):
                time.sleep(max(at_s - self.now_s, 0))
                timer = producer.send(b"", deliver_after=dt.timedelta(seconds=delay_s), timer_id=f"t{number}")
                self.due[timer.id] = timer.due_at
                self.tell(f"{timer.id} is sent, due at {timer.due_at:%H:%M:%S.%f}")
        self.tell("all are sent")

    # Faults

    def _strike(self, fault: Fault) -> None:
        virtual, names = self._virtual, sorted(self._processes)
        name = names[fault.number % len(names)]
        what, _ = KINDS[fault.kind]
        if what == "process":
            self._strike_process(fault, name)
            return
        self.disturbed_s.append((self.now_s, self.now_s))
        if fault.kind == "unload":
            topics = sorted(virtual.cluster.topics)
            topic = topics[fault.number % len(topics)]
            self.tell(f"{topic} is unloaded")
            virtual.unload(topic)
        elif fault.kind == "kill broker":
            broker = fault.number % self.scenario.brokers
            self.tell(f"broker {broker} is killed")
            virtual.kill_broker(broker)
            if self.scenario.brokers > 1:
                virtual.cluster.brokers[broker].is_up = True
        else:
            self.tell("all wall clocks jump back by 2 s")
            virtual.skew(dt.timedelta(seconds=-2))

    def _strike_process(self, fault: Fault, name: str) -> None:
        process = self._processes[name]
        until_s = self.now_s + fault.lasts_s
        self.tell(f"{name}: {fault.kind} for {fault.lasts_s:.1f} s")
        if name.startswith("consumer"):
            self.disturbed_s.append((self.now_s, until_s))
        if fault.kind == "kill":
            process.kill()
        else:
            process.freeze()
        self._virtual.scheduler.at(round(fault.lasts_s * 1e9), lambda: self._mend(fault, name, process))

    def _mend(self, fault: Fault, name: str, process: VirtualProcess) -> None:
        if self._processes[name] is not process:
            return
        self.tell(f"{name} goes on")
        if fault.kind == "freeze":
            process.thaw()
        else:
            self._restart(name)

    def _restart(self, name: str) -> None:
        service = self._services[name]
        self._virtual.scheduler.later(lambda: self._begin(name, service))

    # Promises

    def _judge(self) -> None:
        verdict, broken = self.verdict, self.verdict.broken
        verdict.sent, verdict.handled = len(self.due), len(self.handled)
        verdict.repeated = sum(len(times) - 1 for times in self.handled.values())
        broken += [f"{timer_id} is lost, or stuck" for timer_id in self.due if timer_id not in self.handled]
        broken += [f"{timer_id} was never sent" for timer_id in self.handled if timer_id not in self.due]
        for timer_id, times in self.handled.items():
            for (first_s, first), (then_s, then) in pairwise(times):
                if not any(begin_s <= then_s and first_s - 1 <= end_s for begin_s, end_s in self.disturbed_s):
                    broken.append(f"{timer_id} was handled twice: {first}, {first_s:.3f} s; {then}, {then_s:.3f} s")
        for name, topic in self._virtual.cluster.topics.items():
            relays = topic.subscriptions.get(RELAY_SUBSCRIPTION)
            if relays is not None and (relays.cursor.backlog or relays.cursor.ranges()):
                broken.append(f"{name} holds {relays.cursor.backlog} entries behind {len(relays.cursor.ranges())} gaps")


def play(seed: int, without: Sequence[int] = ()) -> tuple[Scenario, Verdict]:
    """Play a seed, perhaps without some of its faults."""
    scenario = Scenario.drawn(seed)
    if without:
        kept = tuple(fault for number, fault in enumerate(scenario.faults) if number not in without)
        scenario = replace(scenario, faults=kept)
    return scenario, Play(scenario).run()


def shrunk(seed: int) -> tuple[int, ...]:
    """Return faults without which a failing seed still fails; no further fault can be left out."""
    left_out: tuple[int, ...] = ()
    for number in range(len(Scenario.drawn(seed).faults)):
        trial = (*left_out, number)
        try:
            _, verdict = play(seed, trial)
        except Exception:  # noqa: BLE001 - a play that breaks down fails, too
            left_out = trial
        else:
            left_out = trial if verdict.broken else left_out
    return left_out


def story_of(seed: int, without: Sequence[int] = ()) -> str:
    """Return what happened, and what was promised otherwise."""
    scenario, verdict = play(seed, without)
    told = [f"seed {seed}: {scenario.scheme}, {scenario.partitions} partitions, {scenario.brokers} brokers, "
            f"{scenario.consumers} consumers, {scenario.relays} relays, latency {scenario.latency_us} us"]  # fmt: skip
    return "\n".join([*told, *verdict.story, "", *(verdict.broken or ["every promise was kept"])])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.world", description="Play seeds.")
    parser.add_argument("seed", nargs="?", type=int)
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--from", dest="first", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.seed is not None:
        print(story_of(options.seed))
        return 0
    began_s, totals, failed = time.perf_counter(), Counter[str](), []
    for seed in range(options.first, options.first + options.seeds):
        try:
            scenario, verdict = play(seed)
        except Exception as error:  # noqa: BLE001 - told with its seed
            failed.append(f"seed {seed}: {type(error).__name__}: {error}")
            print(failed[-1], flush=True)
            continue
        totals.update(sent=verdict.sent, handled=verdict.handled, repeated=verdict.repeated)
        if verdict.broken:
            failed.append(f"seed {seed} ({scenario.scheme}): {verdict.broken[0]}")
            print(failed[-1], flush=True)
    print(f"{options.seeds} seeds in {time.perf_counter() - began_s:.0f} s: {dict(totals)}, {len(failed)} failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
