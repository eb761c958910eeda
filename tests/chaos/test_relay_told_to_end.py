"""`timewheel relay run` told to end (SIGTERM) in the middle of its work: it drains, so that nothing is done twice."""

from __future__ import annotations

import random
import signal
import time

import pytest

from tests.chaos.conftest import MakeStage
from tests.support.chaos_load import Traffic
from tests.support.chaos_verdict import keeps_every_promise
from timewheel.core.plan import Tiered

ENDS = [pytest.param(2, id="short"), pytest.param(6, id="long")]
LONGEST_LIFE_S = 4.0
READY_TIMEOUT_S = 120.0
DRAIN_TIMEOUT_S = 180.0
LEAST_IN_FLIGHT = 500
TRAFFIC = Traffic(burst=100, every_s=0.5, shortest_ms=8_000, longest_ms=16_000)


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ends", ENDS)
def test_a_relay_service_that_is_told_to_end_drains_and_nothing_is_stored_twice(stage: MakeStage, ends: int) -> None:
    on = stage(Tiered(window_ms=2_000, tiers_ms=(1_000, 3_000)), guard_ms=5_000, partitions=2)
    # The drain has 10 s; in fact it takes as long as the hops under way.
    consumer, service = on.consumer("consumer"), on.service("service", "--drain", "10s")
    consumer.start()
    load = on.load(TRAFFIC)
    conductor = on.conductor(load, steady=[consumer], watched=[service])
    choices = random.Random(on.seed)
    in_flight = []
    for _ in range(ends):
        service.start()
        conductor.calm(lambda: service.is_ready, READY_TIMEOUT_S, "ready")
        until_s = time.monotonic() + choices.uniform(1.0, LONGEST_LIFE_S)
        conductor.calm(lambda until_s=until_s: time.monotonic() >= until_s, 60.0, "a while")  # type: ignore[misc]
        in_flight.append(conductor.in_flight)
        assert service.end() == 0, service.log_tail()
        assert not service.ready.exists()
    service.start()
    on.drain(conductor, load, DRAIN_TIMEOUT_S)
    assert service.end(signal.SIGINT) == 0, service.log_tail()

    on.say(f"ended {ends} times, at least {min(in_flight)} timers in flight")
    verdict = on.shown_verdict(conductor, load)
    keeps_every_promise(verdict)
    # By either lane: no acknowledgement was lost, so nothing was sent again.
    assert verdict.copies.stored == verdict.totals.acknowledged, verdict
    assert min(in_flight) >= LEAST_IN_FLIGHT
    on.evidence("a relay service told to end", {"ends": ends, "stored": verdict.copies.stored, **verdict.figures})
