"""`timewheel relay run` told to end (SIGTERM) in the middle of its work: it drains, so that nothing is done twice."""

from __future__ import annotations

import random
import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.chaos_load import Traffic
from tests.support.chaos_verdict import keeps_every_promise
from tests.support.checkout import ROOT
from timewheel.core.plan import Tiered
from timewheel.testing import eventually
from timewheel.testing.process import OwnedProcess

if TYPE_CHECKING:
    from pathlib import Path

    from tests.chaos.conftest import MakeStage
    from tests.conftest import Evidence
    from timewheel.testing import LocalPulsar

ENDS = [pytest.param(2, id="short"), pytest.param(6, id="long")]
LONGEST_LIFE_S = 4.0
READY_TIMEOUT_S = 120.0
END_TIMEOUT_S = 60.0
"""The drain has 10 s; in fact it takes as long as the hops under way."""
DRAIN_TIMEOUT_S = 180.0
LEAST_IN_FLIGHT = 500
TRAFFIC = Traffic(burst=100, every_s=0.5, shortest_ms=8_000, longest_ms=16_000)


class Service:
    """The command in a process of its own, which never outlives the test."""

    def __init__(self, plan_file: Path, service_url: str, folder: Path) -> None:
        self._process = OwnedProcess(log=folder / "service.log")
        self._ready = folder / "ready"
        self._command = [
            sys.executable, "-m", "timewheel", "relay", "run", str(plan_file), "--service-url", service_url,
            "--relay-id", "service", "--drain", "10s", "--ready-file", str(self._ready),
        ]  # fmt: skip

    def start(self) -> None:
        self._process.start(self._command, cwd=ROOT)
        eventually(self._ready.exists, READY_TIMEOUT_S, message=f"ready\n{self._process.log_tail()}")

    def end(self, number: signal.Signals) -> int:
        self._process.send_signal(number)
        return self._process.wait(END_TIMEOUT_S)

    @property
    def is_ready(self) -> bool:
        return self._ready.exists()

    def close(self) -> None:
        self._process.close()


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ends", ENDS)
def test_a_relay_service_that_is_told_to_end_drains_and_nothing_is_stored_twice(
    chaos_broker: LocalPulsar,
    stage: MakeStage,
    ends: int,
    evidence: Evidence,
    tmp_path: Path,
) -> None:
    tiers = Tiered(window_ms=2_000, tiers_ms=(1_000, 3_000))
    on = stage(chaos_broker, tiers, guard_ms=5_000, partitions=2)
    consumer = on.consumer("consumer")
    consumer.start()
    load = on.load(TRAFFIC)
    conductor = on.conductor(load, steady=[consumer])
    service = Service(on.plan_file, chaos_broker.service_url, tmp_path)
    choices = random.Random(on.seed)
    try:
        in_flight = []
        for _ in range(ends):
            service.start()
            until_s = time.monotonic() + choices.uniform(1.0, LONGEST_LIFE_S)
            conductor.calm(lambda until_s=until_s: time.monotonic() >= until_s, 60.0, "a while")  # type: ignore[misc]
            in_flight.append(conductor.in_flight)
            assert service.end(signal.SIGTERM) == 0
            assert not service.is_ready
        service.start()
        on.drain(conductor, load, DRAIN_TIMEOUT_S)
        assert service.end(signal.SIGINT) == 0
    finally:
        service.close()

    verdict = on.verdict(conductor, load)
    on.say(f"ended {ends} times, at least {min(in_flight)} timers in flight")
    on.say(verdict)
    keeps_every_promise(verdict)
    # By either lane: no acknowledgement was lost, so nothing was sent again.
    assert verdict.copies.stored == verdict.totals.acknowledged, verdict
    assert min(in_flight) >= LEAST_IN_FLIGHT
    evidence(
        "a relay service told to end", {"ends": ends, "stored": verdict.copies.stored, **verdict.figures}, seed=on.seed
    )
