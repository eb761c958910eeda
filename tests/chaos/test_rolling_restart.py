"""Relay services that are ended and started again one after the other: no timer is lost, repeated or late for it."""

from __future__ import annotations

import pytest

from tests.chaos.conftest import MakeStage
from tests.support.chaos_load import Traffic
from tests.support.chaos_verdict import keeps_every_promise
from timewheel.core.plan import Tiered
from timewheel.testing import eventually

RELAYS = [pytest.param(3, id="short"), pytest.param(10, id="long")]
"""As many partitions: each end and each start moves most of them to another relay."""
TIERS = Tiered(window_ms=2_000, tiers_ms=(1_000, 3_000))
GUARD_MS = 30_000
"""Of which a partition that changes hands again and again used up to 14 s, on a machine with nine times as much to do
as it has cores."""
TRAFFIC = Traffic(burst=50, every_s=0.5, shortest_ms=40_000, longest_ms=58_000)
"""100 a second for 49 s on average: 4,900 in flight, 1,900 of them in tiers, each with three to twelve hops."""
LEAST_IN_FLIGHT = 2_000
READY_TIMEOUT_S = 180.0
FILL_TIMEOUT_S = 180.0
DRAIN_TIMEOUT_S = 180.0


@pytest.mark.proof
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("relays", RELAYS)
def test_a_rolling_restart_of_relay_services_loses_nothing_and_makes_no_timer_late(
    stage: MakeStage, relays: int
) -> None:
    on = stage(TIERS, guard_ms=GUARD_MS, partitions=relays)
    services, consumer = [on.service(f"relay-{number}") for number in range(relays)], on.consumer("consumer")
    consumer.start()
    for service in services:
        service.start()
    eventually(lambda: all(service.is_ready for service in services), READY_TIMEOUT_S, message="all services ready")
    load = on.load(TRAFFIC)
    conductor = on.conductor(load, steady=[consumer], watched=services)
    conductor.calm(lambda: conductor.in_flight >= LEAST_IN_FLIGHT, FILL_TIMEOUT_S, "timers in flight")

    in_flight = []
    for service in services:
        in_flight.append(conductor.in_flight)
        assert service.end() == 0, service.log_tail()
        service.start()
        # At once the next, as an orchestrator does it: nobody waits until the partitions have settled.
        conductor.calm(lambda ready=service: ready.is_ready, READY_TIMEOUT_S, "ready again")  # type: ignore[misc]
    on.drain(conductor, load, DRAIN_TIMEOUT_S)
    assert [service.end() for service in services] == [0] * relays

    on.say(f"{relays} restarts, at least {min(in_flight)} timers in flight")
    verdict = on.shown_verdict(conductor, load)
    keeps_every_promise(verdict)
    assert min(in_flight) >= LEAST_IN_FLIGHT
    # There are copies by the late lane (`extra_late`), and none is handled: a relay that lost a partition and waits for
    # its names sends what it has in flight once that is late, though another has sent it long since.
    # No first hop into the due topic used the guard up, so no timer was late for the restarts.
    assert verdict.copies.lag_max_ms <= GUARD_MS, verdict
    assert verdict.late_max_ms <= GUARD_MS, verdict
    on.evidence(
        "a rolling restart of relay services",
        {
            "restarts": relays,
            **verdict.figures,
            "behind at most ms": verdict.copies.lag_max_ms,
            "late p99 ms": verdict.late_p99_ms,
            "late at most ms": verdict.late_max_ms,
        },
    )
