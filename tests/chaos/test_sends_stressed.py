"""Eight threads send in runs while the broker is frozen, sends time out, producers close and the process forks.

Nothing hangs, each send has one outcome, what is told as stored is stored, and what is told as failed is not.
"""

from __future__ import annotations

import datetime as dt
import faulthandler
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pulsar
import pytest

from tests.broker.due_topic import TIER_1D, make_plan, timers_by_place
from tests.conftest import Evidence
from tests.support.own_broker import own_broker
from timewheel.core import Plan
from timewheel.core.errors import ClientMisuse, SendFailed, TimewheelError
from timewheel.producers import DelayedProducer, Timer
from timewheel.testing import LocalPulsar, eventually

THREADS = 8
ROUNDS = 6  # of a producer each; then all that they sent is read
BURST = 200  # sends of a thread in a row
CLOSE_S = 5.0
CHILD_S = 10.0
HANGS_AFTER_S = 300  # of a round; a process that hangs in the client with the interpreter's lock is ended by it
DELAYS = (dt.timedelta(minutes=30), dt.timedelta(days=17))  # into a due topic, into a tier


@dataclass
class Told:
    """The outcomes of the sends of one producer, by timer id."""

    outcomes: dict[str, list[TimewheelError | None]] = field(default_factory=dict)
    accepted: int = 0  # sends that returned
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def took(self, count: int) -> None:
        with self._lock:
            self.accepted += count

    def ended(self, error: TimewheelError | None, timer: Timer) -> None:
        self.outcomes.setdefault(timer.id, []).append(error)


def keep_sending(producer: DelayedProducer, told: Told, chance: random.Random) -> None:
    while True:
        for number in range(BURST):
            try:
                producer.send_async(b"x" * chance.choice((10, 2_000)), told.ended, deliver_after=chance.choice(DELAYS))
            except ClientMisuse:  # it is closed
                told.took(number)
                return
            except SendFailed:  # there was no room in time
                told.took(number)
                break
        else:
            told.took(BURST)
        time.sleep(chance.random() / 10)


def fork(done: Counter[str]) -> None:
    """Fork, as a server of many processes does; the child ends at once.

    It may hang in the interpreter, before any code of ours (broker-facts: callbacks-in-c): then it is counted.
    """
    child = os.fork()
    if not child:
        os._exit(0)
    done["forks"] += 1
    try:
        eventually(lambda: os.waitpid(child, os.WNOHANG) != (0, 0), CHILD_S)
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        done["children_stuck"] += 1


def play(client: Any, plan: Plan, broker: LocalPulsar, chance: random.Random, done: Counter[str]) -> Told:
    """Send through one producer for some seconds, and close it while threads send."""
    told = Told()
    timeout_ms = chance.choice((300, 1_000, 30_000))
    producer = DelayedProducer(client, plan, send_timeout_millis=timeout_ms, max_pending=chance.choice((100, 1_000)))
    senders = [
        threading.Thread(target=keep_sending, args=(producer, told, random.Random(chance.random())))
        for _ in range(THREADS)
    ]
    for sender in senders:
        sender.start()
    for _ in range(chance.randrange(1, 4)):
        time.sleep(chance.random())
        match chance.choice(("freeze", "fork", "flush")):
            case "freeze":
                broker.pause()
                time.sleep(chance.uniform(0.2, 2))
                broker.resume()
                done["freezes"] += 1
            case "fork":
                fork(done)
            case "flush":
                threading.Thread(target=producer.flush, daemon=True).start()
                done["flushes"] += 1
    is_frozen = chance.random() < 0.3
    if is_frozen:
        broker.pause()
    began_s = time.monotonic()
    producer.close(CLOSE_S)
    took_s = time.monotonic() - began_s
    if is_frozen:
        broker.resume()
    for sender in senders:
        sender.join(60)
    assert not any(sender.is_alive() for sender in senders)
    assert took_s < CLOSE_S + 30, "a close ends in its time"
    return told


@pytest.mark.timeout(5_400)
@pytest.mark.proof
@pytest.mark.parametrize("length_s", [20, 3_600], ids=["short", "hour"])
def test_nothing_hangs_and_each_outcome_is_true(
    stack: ExitStack, seed: int, evidence: Evidence, say: Callable[[object], None], length_s: int
) -> None:
    chance, done = random.Random(seed), Counter[str]()
    broker = stack.enter_context(own_broker({}))
    until_s, act = time.monotonic() + length_s, 0
    while time.monotonic() < until_s:
        act += 1
        plan = make_plan(broker, f"persistent://public/default/stressed-{act}")
        client = pulsar.Client(broker.service_url)
        outcomes: dict[str, list[TimewheelError | None]] = {}
        for _ in range(ROUNDS):
            faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True, file=2)
            told = play(client, plan, broker, chance, done)
            assert sum(map(len, told.outcomes.values())) == len(told.outcomes) == told.accepted
            outcomes |= told.outcomes
        faulthandler.cancel_dump_traceback_later()
        topics = (plan.due_topic, plan.due_topic + TIER_1D)
        found = {name for topic in topics for name in timers_by_place(client, topic).values()}
        client.close()
        stored = {name for name, (error,) in outcomes.items() if error is None}
        failed = {name for name, (error,) in outcomes.items() if isinstance(error, SendFailed)}
        assert stored <= found, "told as stored, and lost"
        assert not failed & found, "told as failed, and stored"
        done.update(sends=len(outcomes), stored=len(stored), failed=len(failed), producers=ROUNDS)
        done.update(
            lost=len(stored - found),
            denied=len(failed & found),
            unknown=len(outcomes) - len(stored) - len(failed),
            unknown_yet_stored=len(found - stored),
        )
        say(f"{dict(done)}")
    assert done["unknown"], "sends timed out"
    evidence("sends in runs, stressed", dict(done), seed=seed)
