"""Metrics of shadows: values in, what Prometheus reads out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from prometheus_client import CollectorRegistry

from tests.ops.test_metrics import DUE, of, scraped
from timewheel.core.plan import Plan, Tiered
from timewheel.metrics import Metrics
from timewheel.shadow.machine.lifting import Fate
from timewheel.shadow.machine.states import State
from timewheel.shadow.status import LifterStatus, ShadowStatus

PLAN = Plan(
    due_topic=DUE,
    subscriptions=("billing",),
    scheme=Tiered(window_ms=60_000, tiers_ms=(60_000,)),
    guard_ms=30_000,
    max_delay_ms=600_000,
    relay="service",
    readers="any",
    intake=True,
)
FATES = {fate.value: 0 for fate in Fate}
IDLE = LifterStatus(
    topic=f"{DUE}-partition-0",
    leads=False,
    alive=True,
    caught_up=False,
    lifted=0,
    deduplicated=0,
    struck_again=0,
    stirs=0,
    failures=0,
    fates=FATES,
    lag_p50_ms=None,
    lag_p99_ms=None,
    reason=None,
)
BUSY = replace(
    IDLE,
    leads=True,
    caught_up=True,
    lifted=10,
    deduplicated=2,
    struck_again=3,
    stirs=4,
    failures=5,
    fates={**FATES, "lifted": 12, "near": 6},
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


def status_of(*lifters: LifterStatus, **more: Any) -> ShadowStatus:
    return ShadowStatus(**{"state": State.SHADOWING, "refusal": "", "struck": 7, "lifters": lifters, **more})


def told_of(*shadows: OneShadow) -> dict[str, float]:
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
    found = told_of(OneShadow(status_of(IDLE, BUSY, SLOW)))

    assert {name: found[name] for name in ("partitions", "led_partitions", "caught_up_partitions")} == {
        "partitions": 3,
        "led_partitions": 2,
        "caught_up_partitions": 1,
    }
    assert found["stuck_partitions"] == 1
    assert (found["lifted_total"], found["struck_total"], found["struck_again_total"]) == (20, 7, 6)
    assert (found["deduplicated_total"], found["stirs_total"], found["sessions_failed_total"]) == (4, 8, 10)
    assert (found["lag_seconds 0.5"], found["lag_seconds 0.99"], found["guard_seconds"]) == (0.02, 2.0, 30)


def test_every_fate_and_every_state_is_a_series_from_the_beginning() -> None:
    """Of a series that begins with 1, Prometheus sees no increase."""
    found = told_of(OneShadow(status_of(IDLE, BUSY)))

    fates = {name.partition(" ")[2]: value for name, value in found.items() if name.startswith("entries_total")}
    assert fates == {**FATES, "lifted": 12, "near": 6}
    states = {name.partition(" ")[2]: value for name, value in found.items() if name.startswith("state")}
    assert states == {**{state.value: 0 for state in State}, "shadowing": 1}


def test_a_lag_that_is_not_known_is_absent_and_a_refusal_is_told() -> None:
    found = told_of(OneShadow(status_of(IDLE, refusal="a subscription is Exclusive")))

    assert not [name for name in found if name.startswith("lag")]
    assert found["refused"] == 1
    assert told_of(OneShadow(status_of(IDLE)))["refused"] == 0


def test_shadows_are_asked_for_at_each_scrape() -> None:
    registry, shadows = CollectorRegistry(), [OneShadow(status_of(BUSY))]
    Metrics(registry).watch_shadows(lambda: shadows)
    lifted = of("shadow_lifted_total", due_topic=DUE, relay_id="mover")
    assert scraped(registry)[lifted] == 10
    shadows.clear()
    assert lifted not in scraped(registry)


def test_a_story_is_json_of_all() -> None:
    story = status_of(BUSY, refusal="no").story()

    assert (story["state"], story["refusal"], story["struck"]) == ("shadowing", "no", 7)
    assert (story["lifters"][0]["leads"], story["lifters"][0]["fates"]["near"]) == (True, 6)
