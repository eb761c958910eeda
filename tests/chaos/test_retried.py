"""Consumers whose handlers fail are killed while they try again and park: nothing is lost, and chains do not fork."""

from __future__ import annotations

import random
import signal
import subprocess
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pulsar
import pytest

from tests.support.checkout import ROOT
from tests.support.retry_worker import MAX_ATTEMPTS, POINTS, Job, is_poison, succeeds_at
from timewheel.broker.admin import AdminClient
from timewheel.core.names import PARKED_SUBSCRIPTION, Names
from timewheel.core.plan import Plan, Tiered
from timewheel.core.planfile import save_plan
from timewheel.producers import DelayedProducer
from timewheel.provision import ensure
from timewheel.testing import eventually

if TYPE_CHECKING:
    from tests.conftest import Evidence
    from timewheel.testing import LocalPulsar

KILLS = {"short": 8, "long": 50}
FAILING, OTHER = "failing", "other"
PROCESSES = 3
BURST = 8
KILL_TIMEOUT_S = 900.0
DRAIN_TIMEOUT_S = 240.0
MAX_PASSES = {"in_handler": 60, "before_ack": 60, "after_ack": 60}
FREEZE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of all timers.

    Args:
        lost: Not handled to an end: neither successful, nor parked if they are poison.
        wrongly_parked: Parked, though they are no poison.
        twice: Calls of the handler beyond one for each attempt.
        forked: Timers of which two chains of attempts ran side by side to their ends.
        parked_twice: Further copies of parked timers.
        disturbed: What the other subscription saw beyond each timer once, or did not see.
    """

    timers: int
    poison: int
    lost: int
    wrongly_parked: int
    twice: int
    forked: int
    parked_twice: int
    disturbed: int


def judged(timers: int, calls: list[tuple[int, int]], parked: Counter[int], other: Counter[int]) -> Verdict:
    """By what was written down.

    Args:
        timers: They are numbered from 0.
        calls: Of the failing handler: the timer's number, and the attempt.
        parked: Copies of each timer in the parked topic.
        other: How often the other subscription handled each.
    """
    made: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for number, attempt in calls:
        made[number][attempt] += 1
    poison = {number for number in range(timers) if is_poison(number)}
    good = set(range(timers)) - poison
    return Verdict(
        timers=timers,
        poison=len(poison),
        lost=len(poison - parked.keys()) + sum(made[number][succeeds_at(number)] == 0 for number in good),
        wrongly_parked=len(parked.keys() - poison),
        twice=sum(calls - 1 for attempts in made.values() for calls in attempts.values()),
        forked=sum(_is_forked(made[number]) for number in poison),
        parked_twice=sum(parked.values()) - len(parked),
        disturbed=sum(other[number] != 1 for number in range(timers)),
    )


def _is_forked(attempts: Counter[int]) -> bool:
    """Whether from some attempt on each was made twice, to the end, and that is three in a row at least."""
    return all(attempts[number] > 1 for number in range(MAX_ATTEMPTS - 3, MAX_ATTEMPTS))


@pytest.mark.parametrize(
    ("calls", "parked", "expected"),
    [
        ([(0, n) for n in range(6)] + [(1, 0)], {0: 1}, {}),
        ([(0, n) for n in range(6)] + [(1, 0)], {}, {"lost": 1}),
        ([(0, n) for n in range(6)], {0: 1}, {"lost": 1}),
        ([(0, n) for n in range(6)] + [(1, 0)], {0: 1, 1: 1}, {"wrongly_parked": 1}),
        ([(0, n) for n in range(6)] + [(0, 2), (0, 4), (1, 0)], {0: 1}, {"twice": 2}),
        ([(0, n) for n in range(6)] + [(0, n) for n in range(2, 6)] + [(1, 0)], {0: 2},
         {"twice": 4, "forked": 1, "parked_twice": 1}),
    ],
)  # fmt: skip
def test_the_verdict(calls: list[tuple[int, int]], parked: dict[int, int], expected: dict[str, int]) -> None:
    sound = Verdict(timers=2, poison=1, lost=0, wrongly_parked=0, twice=0, forked=0, parked_twice=0, disturbed=0)
    found = judged(2, calls, Counter(parked), Counter({0: 1, 1: 1}))
    assert found == replace(sound, **expected)
    assert judged(2, calls, Counter(parked), Counter({0: 2})).disturbed == 2


class Crew:
    """The processes of one play."""

    def __init__(self, job: Job, rng: random.Random, kills: int, points: tuple[str, ...]) -> None:
        self._job = job
        self._rng = rng
        self._left = kills
        self._points = points
        self.kills: Counter[str] = Counter()
        self._running: dict[subprocess.Popen[bytes], Job] = {}

    def fill(self) -> None:
        """Start what is missing; as long as there are kills left, each has a fuse."""
        while len(self._running) < PROCESSES:
            job = self._job
            if self._left:
                point = self._rng.choice(self._points)
                job = replace(job, point=point, passes=self._rng.randint(1, MAX_PASSES[point]))
            self._running[subprocess.Popen(job.arguments(), cwd=ROOT)] = job

    def inspect(self) -> bool:
        """Count who has died, and replace it; whether all kills are over."""
        for process, job in list(self._running.items()):
            code = process.poll()
            if code is None:
                continue
            assert code == -signal.SIGKILL, f"a consumer ended by itself: {code}"
            del self._running[process]
            self.kills[job.point] += 1
            self._left = max(self._left - 1, 0)
        self.fill()
        return not self._left

    def defuse(self) -> None:
        """Kill those that still have a fuse, so that what follows dies no more."""
        for process, job in list(self._running.items()):
            if job.point:
                process.kill()
                process.wait()
                del self._running[process]
                self.kills["any time"] += 1
        self.fill()

    def freeze(self) -> None:
        """One of them stands still for a while (SIGSTOP)."""
        process = self._rng.choice(list(self._running))
        process.send_signal(signal.SIGSTOP)
        time.sleep(FREEZE_S)
        process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()


@contextmanager
def crew(job: Job, rng: random.Random, kills: int, points: tuple[str, ...]) -> Iterator[Crew]:
    made = Crew(job, rng, kills, points)
    try:
        made.fill()
        yield made
    finally:
        made.end()


def play(
    broker: LocalPulsar, folder: Path, seed: int, kills: int, *, has_inbox: bool, points: tuple[str, ...] = POINTS
) -> tuple[Verdict, Crew]:
    """Send, fail, kill and unload until all kills are over; then let all of it come to its end."""
    rng = random.Random(seed)
    plan = Plan(
        due_topic=f"persistent://public/default/retried-{uuid.uuid4().hex[:8]}",
        subscriptions=(FAILING, OTHER),
        scheme=Tiered(window_ms=1_000, tiers_ms=(1_000,)),
        partitions=2,
        guard_ms=100,
        max_delay_ms=60_000,
        retry=True,
    )
    save_plan(plan, folder / "plan.toml")
    calls, others = folder / "calls", folder / "others"
    job = Job(
        service_url=broker.service_url,
        plan=str(folder / "plan.toml"),
        subscription=FAILING,
        failing=True,
        calls=str(calls),
        inbox=str(folder / "inbox.sqlite3") if has_inbox else "",
    )
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    with AdminClient(broker.admin_url) as admin:
        ensure(admin, plan, now_ms=time.time_ns() // 1_000_000)
        retry_topic = Names(plan).retry(FAILING)
        beside = replace(job, subscription=OTHER, failing=False, calls=str(others), inbox="")
        with crew(job, rng, kills, points) as made, DelayedProducer(client, plan) as producer:
            other = subprocess.Popen(beside.arguments(), cwd=ROOT)
            try:
                timers = _send_and_kill(made, producer, admin, retry_topic, kills)
                made.defuse()
                _drain(admin, plan, made)
            finally:
                other.terminate()
                other.wait(30)
        parked = _parked(client, plan)
    client.close()
    return judged(timers, _lines(calls), parked, Counter(number for number, _ in _lines(others))), made


def _send_and_kill(made: Crew, producer: DelayedProducer, admin: AdminClient, retry_topic: str, kills: int) -> int:
    deadline, timers, unloads = time.monotonic() + KILL_TIMEOUT_S, 0, 0
    while not made.inspect():
        assert time.monotonic() < deadline, f"{made.kills} after {KILL_TIMEOUT_S} s"
        for _ in range(BURST):
            producer.send(b"x", timer_id=str(timers), partition_key=str(timers))
            timers += 1
        if made.kills.total() > unloads * 5:
            unloads += 1
            admin.topics.unload(retry_topic)
            made.freeze()
        time.sleep(0.4)
    assert made.kills.total() >= kills
    return timers


def _drain(admin: AdminClient, plan: Plan, made: Crew) -> None:
    names = (plan.due_topic, Names(plan).retry(FAILING), Names(plan).retry(OTHER))

    def nothing_is_left() -> bool:
        made.inspect()
        stats = [admin.topics.partitioned_stats(name, precise_backlog=True).total for name in names]
        return not any(one.backlog for stat in stats for one in stat.subscriptions.values())

    eventually(nothing_is_left, DRAIN_TIMEOUT_S)


def _parked(client: pulsar.Client, plan: Plan) -> Counter[int]:
    consumer = client.subscribe(Names(plan).parked(FAILING), PARKED_SUBSCRIPTION)
    found: Counter[int] = Counter()
    try:
        while True:
            found[int(consumer.receive(timeout_millis=3_000).properties()["tw-id"])] += 1
    except pulsar.Timeout:
        return found
    finally:
        consumer.close()


def _lines(path: Path) -> list[tuple[int, int]]:
    pairs = (line.split() for line in path.read_text().splitlines())
    return [(int(number), int(attempt)) for number, attempt in pairs]


@pytest.mark.timeout(1_500)
@pytest.mark.proof
@pytest.mark.parametrize("kills", KILLS.values(), ids=KILLS)
def test_consumers_killed_while_they_try_again_lose_nothing_and_fork_no_chain(
    chaos_broker: LocalPulsar, tmp_path: Path, kills: int, seed: int, say: Callable[[object], None], evidence: Evidence
) -> None:
    verdict, made = play(chaos_broker, tmp_path, seed, kills, has_inbox=True)
    say(dict(made.kills))
    say(verdict)
    assert (verdict.lost, verdict.wrongly_parked, verdict.forked, verdict.disturbed) == (0, 0, 0, 0)
    # A kill repeats at most what one process had in its hands.
    assert verdict.twice + verdict.parked_twice <= made.kills.total() * 10
    figures = {
        "kills": made.kills.total(),
        "timers": verdict.timers,
        "parked": verdict.poison,
        "lost": verdict.lost,
        "forked chains": verdict.forked,
        "calls beyond one for each attempt": verdict.twice,
        "parked twice": verdict.parked_twice,
    }
    evidence("consumers killed while they try again, with an inbox", figures, seed=seed)


@pytest.mark.timeout(1_500)
@pytest.mark.proof
def test_control_without_an_inbox_chains_fork(
    chaos_broker: LocalPulsar, tmp_path: Path, seed: int, say: Callable[[object], None]
) -> None:
    """And even then nothing is lost."""
    # Killed when the successor is stored, and what it succeeds is not acknowledged.
    verdict, made = play(chaos_broker, tmp_path, seed, KILLS["long"], has_inbox=False, points=("before_ack",))
    say(dict(made.kills))
    say(verdict)
    assert verdict.lost == verdict.wrongly_parked == 0
    assert verdict.forked > 0
