"""The broker killed with -9 under a living producer, relay and consumer.

It loses acknowledgements by the thousand (broker-facts: lost-acknowledgements) and delivers again what they were for;
relay and consumer each remember what they are done with (broker-facts: received-again).
"""

from __future__ import annotations

import random
import threading
import time

import pytest

from tests.chaos.conftest import MakeStage
from tests.chaos.test_cancelled import LEAST_CERTAIN, figures
from tests.support.chaos_cancels import Cancels
from tests.support.chaos_ledger import Handled, now_ms
from tests.support.chaos_load import Traffic
from tests.support.chaos_stage import QUICK_TAKEOVER
from tests.support.chaos_verdict import keeps_every_promise
from timewheel.core.plan import Cancel, Tiered
from timewheel.testing.plugin import MakeLocalPulsar

PLAYS = [
    pytest.param(2, None, id="short"),
    pytest.param(20, None, id="long"),
    pytest.param(10, Cancel(skew_ms=0), id="long, while timers are cancelled"),
]
LONGEST_PAUSE_S = 2.0
RECOVERY_TIMEOUT_S = 240.0
ON_TIME_MS = 500
RECENT_EVENTS = 1_000
DRAIN_TIMEOUT_S = 180.0
LEAST_IN_FLIGHT = 500
LEAST_ON_TIME = 1_000  # not a claim about lanes: so many timers at least were looked at for extra copies

TIERS = Tiered(window_ms=2_000, tiers_ms=(2_000, 4_000))
GUARD_MS = 22_000  # longer than a broker is away with all that follows, so that most hops stay on time
TRAFFIC = Traffic(burst=50, every_s=0.5, shortest_ms=26_000, longest_ms=36_000)


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kills", "cancel"), PLAYS)
def test_broker_killed_under_living_relays_and_consumer_loses_nothing_and_leaves_no_extra_copy(
    make_local_pulsar: MakeLocalPulsar, stage: MakeStage, kills: int, cancel: Cancel | None
) -> None:
    broker = make_local_pulsar(config=QUICK_TAKEOVER)
    on = stage(TIERS, broker=broker, guard_ms=GUARD_MS, partitions=2, cancel=cancel)
    relays, consumer = [on.relay("relay-0"), on.relay("relay-1")], on.consumer("consumer")
    up = threading.Event()
    up.set()
    in_flight: list[int] = []

    def kill(choices: random.Random) -> None:
        conductor.observe()
        in_flight.append(conductor.in_flight)
        up.clear()
        broker.kill()
        threading.Event().wait(choices.uniform(0.0, 1.0))
        broker.start()
        up.set()
        # The client's back-off grows while nobody answers. The next kill shall meet relays and consumer at work.
        begun_ms = now_ms()

        def at_work() -> bool:
            recent = reversed(conductor.events[-RECENT_EVENTS:])
            hopped = (event for event in recent if isinstance(event, Handled) and event.hops)
            return any(event.at_ms > begun_ms and event.at_ms - event.due_ms < ON_TIME_MS for event in hopped)

        conductor.calm(at_work, RECOVERY_TIMEOUT_S, "a timer on time again, by way of a relay")

    for post in (*relays, consumer):
        post.start()
    # Sends under way at a kill keep their outcome: the client sends them again, and deduplication drops what was there.
    cancels = None if cancel is None else Cancels(on.client, on.plan, on.seed)
    load = on.load(TRAFFIC, before_burst=up.is_set, stored=cancels or (lambda _: None))
    conductor = on.conductor(load, steady=[*relays, consumer])
    conductor.calm(lambda: conductor.in_flight >= 4 * LEAST_IN_FLIGHT, 120.0, "timers in flight")

    choices = random.Random(on.seed)
    for _ in range(kills):
        pause_until = time.monotonic() + choices.uniform(0.0, LONGEST_PAUSE_S)
        conductor.calm(lambda until=pause_until: time.monotonic() >= until, 60.0, "a pause")  # type: ignore[misc]
        kill(choices)
    on.drain(conductor, load, DRAIN_TIMEOUT_S, cancels)
    on.say(f"at least {min(in_flight)} timers in flight at a kill; sends that failed: {len(load.failures)}")
    verdict = on.shown_verdict(conductor, load, cancels)
    keeps_every_promise(verdict, reloads=kills)
    assert min(in_flight) >= LEAST_IN_FLIGHT
    assert verdict.copies.on_time >= LEAST_ON_TIME
    if cancels is None:
        on.evidence("the broker killed", {"kills": kills, **verdict.figures})
        return
    assert len(cancels.certain) >= LEAST_CERTAIN
    assert cancels.certain & conductor.handled == set()
    found = {**figures(verdict, conductor, cancels), "kills": kills}
    on.evidence("the broker killed while timers are cancelled", found)
