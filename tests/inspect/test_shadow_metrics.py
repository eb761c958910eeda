"""Metrics of shadows: values in, what Prometheus reads out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from prometheus_client import CollectorRegistry

from tests.inspect.test_metrics import DUE, of, scraped
from tests.support.plans import shadow_of
from timewheel.core.plan import Plan, Tiered
from timewheel.metrics import Metrics
from timewheel.shadow.desired_state import State
from timewheel.shadow.machine.move_decider import MoveDecision
from timewheel.shadow.shadow import MoverStatus, ShadowStatus

PLAN = shadow_of(Tiered(window_ms=60_000, tiers_ms=(60_000,)), due_topic=DUE, guard_ms=30_000, max_delay_ms=600_000)
DECISIONS = {decision.value: 0 for decision in MoveDecision}
IDLE = MoverStatus(
    topic=f"{DUE}-partition-0",
    leads=False,
    alive=True,
    caught_up=False,
    moved=0,
    deduplicated=0,
    acked_again=0,
    nudges=0,
    failures=0,
    decisions=DECISIONS,
    lag_p50_ms=None,
    lag_p99_ms=None,
    reason=None,
)
BUSY = replace(
    IDLE,
    leads=True,
    caught_up=True,
    moved=10,
    deduplicated=2,
    acked_again=3,
    nudges=4,
    failures=5,
    decisions={**DECISIONS, "moved": 12, "near": 6},
    lag_p50_ms=20,
    lag_p99_ms=1_500,
)
SLOW = replace(BUSY, caught_up=False, alive=False, lag_p50_ms=10, lag_p99_ms=2_000)


@dataclass
class OneShadow:
    """Has what a collector reads of a shadow."""

    status: ShadowStatus
    relay_id: str = "mover"
    plan: Plan = PLAN

    def shadow_status(self) -> ShadowStatus:
        return self.status


def status_of(*movers: MoverStatus, **more: Any) -> ShadowStatus:
    return ShadowStatus(**{"state": State.SHADOWING, "refusal": "", "acked_originals": 7, "movers": movers, **more})


def reported_of(*shadows: OneShadow) -> dict[str, float]:
    """By name without the labels that all have, and the others in the order of their names."""
    registry = CollectorRegistry()
    Metrics(registry).watch_shadows(lambda: shadows)
    same = {"due_topic": DUE, "relay_id": "mover"}
    found = {}
    for (name, labels), value in scraped(registry).items():
        more = sorted(set(labels) - set(same.items()))
        if name.startswith("timewheel_shadow_"):
            found[" ".join([name.removeprefix("timewheel_shadow_"), *(text for _, text in more)])] = value
    return found


def test_partitions_are_told_as_one_and_the_longest_of_lags() -> None:
    found = reported_of(OneShadow(status_of(IDLE, BUSY, SLOW)))

    assert {name: found[name] for name in ("partitions", "led_partitions", "caught_up_partitions")} == {
        "partitions": 3,
        "led_partitions": 2,
        "caught_up_partitions": 1,
    }
    assert found["stuck_partitions"] == 1
    assert (found["moved_total"], found["acked_total"], found["acked_again_total"]) == (20, 7, 6)
    assert (found["deduplicated_total"], found["nudges_total"], found["sessions_failed_total"]) == (4, 8, 10)
    assert (found["lag_seconds 0.5"], found["lag_seconds 0.99"], found["guard_seconds"]) == (0.02, 2.0, 30)


def test_every_fate_and_every_state_is_a_series_from_the_beginning() -> None:
    """Of a series that begins with 1, Prometheus sees no increase."""
    found = reported_of(OneShadow(status_of(IDLE, BUSY)))

    decisions = {name.partition(" ")[2]: value for name, value in found.items() if name.startswith("entries_total")}
    assert decisions == {**DECISIONS, "moved": 12, "near": 6}
    states = {name.partition(" ")[2]: value for name, value in found.items() if name.startswith("state")}
    assert states == {**{state.value: 0 for state in State}, "shadowing": 1}


def test_a_lag_that_is_not_known_is_absent_and_a_refusal_is_told() -> None:
    found = reported_of(OneShadow(status_of(IDLE, refusal="a subscription is Exclusive")))

    assert not [name for name in found if name.startswith("lag")]
    assert found["refused"] == 1
    assert reported_of(OneShadow(status_of(IDLE)))["refused"] == 0


def test_shadows_are_asked_for_at_each_scrape() -> None:
    registry, shadows = CollectorRegistry(), [OneShadow(status_of(BUSY))]
    Metrics(registry).watch_shadows(lambda: shadows)
    moved = of("shadow_moved_total", due_topic=DUE, relay_id="mover")
    assert scraped(registry)[moved] == 10
    shadows.clear()
    assert moved not in scraped(registry)


def test_a_story_is_json_of_all() -> None:
    story = status_of(BUSY, refusal="no").story()

    assert (story["state"], story["refusal"], story["acked_originals"]) == ("shadowing", "no", 7)
    assert (story["movers"][0]["leads"], story["movers"][0]["decisions"]["near"]) == (True, 6)
