"""What one plan lets stay, the next one moves: when the plan changes, and when the shadow begins anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.broker.due_topic import now_ms
from tests.broker.relay_service import RelayProcess
from tests.broker.relay_stage import BUSINESS, plan_of
from tests.broker.shadow_stage import ShadowStage
from tests.broker.test_shadow_changed import moved
from tests.broker.test_shadow_look import run
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.plan import Plan, Tiered
from timewheel.core.planfile import save_plan
from timewheel.provision.provisioning import ensure
from timewheel.shadow.machine.states import State
from timewheel.shadow.machine.survey_counters import PARTLY
from timewheel.shadow.overview_reading import overview_of
from timewheel.shadow.surveying import read_topic
from timewheel.shadow.verifying import verify
from timewheel.testing import Broker, eventually

WIDE = plan_of(
    Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS, 5 * DAY_MS)),
    relay="service",
    readers="any",
    intake=True,
    guard_ms=60_000,
    max_delay_ms=30 * DAY_MS,
)
EACH = 1_500
"""Of what stays with the wide window, and of what is moved: one after the other, so that each move makes a gap."""


def narrow(plan: Plan) -> Plan:
    scheme = Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, DAY_MS, 5 * DAY_MS))
    return replace(plan, scheme=scheme, revision=plan.revision + 1)


def gaps(on: ShadowStage) -> int:
    return on.admin.topics.stats(on.parts()[0]).subscriptions[BUSINESS].gap_count


def decisions(on: ShadowStage, plan: Plan) -> dict[str, int]:
    """As the dry run shows them."""
    found = read_topic(on.admin, on.dialer, plan, target="plan.toml").survey(plan)
    return {name: amount.entries for name, amount in found.decisions.items()}


def changed(on: ShadowStage, service: RelayProcess, new: Plan) -> None:
    ensure(on.admin, new, now_ms=now_ms())
    save_plan(new, service.plan_file)
    service.hang_up()


def killed(on: ShadowStage, service: RelayProcess, new: Plan) -> None:
    """While it moves what was left: what is stored then is moved no second time."""
    changed(on, service, new)
    eventually(lambda: decisions(on, new).get("moved", 0) < EACH, 60, poll=0.01)
    service.kill()


def aborted(on: ShadowStage, service: RelayProcess, new: Plan) -> None:
    done = run(on.broker, "abort", str(service.plan_file))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1, f"the client's own lines are not on the terminal: {done.stderr}"
    changed(on, service, new)
    on.desired(State.SHADOWING)


@pytest.mark.parametrize("way", [changed, aborted, killed])
def test_what_a_wide_window_let_stay_is_lifted_with_a_narrow_one(
    pulsar_broker: Broker, tmp_path: Path, way: Callable[[ShadowStage, RelayProcess, Plan], None]
) -> None:
    plan = replace(WIDE, due_topic=plan_of().due_topic)
    new = narrow(plan)
    with ShadowStage(pulsar_broker, plan) as on, RelayProcess(pulsar_broker, plan, tmp_path, kind="shadow") as service:
        on.desired(State.SHADOWING)
        service.await_ready()
        producer, at_ms = on.plain_producer(), now_ms()
        for number in range(EACH):
            for name, delay_ms in ((f"stays {number}", 5 * HOUR_MS), (f"goes {number}", 3 * DAY_MS)):
                producer.send_async(name.encode(), None, deliver_at=at_ms + delay_ms)
        producer.flush()
        eventually(lambda: moved(service) == EACH, 60)
        eventually(lambda: gaps(on) >= EACH - 1, 60)
        assert decisions(on, plan).get("moved", 0) == 0
        # All who look by the new plan count what it would take up.
        assert decisions(on, new)["moved"] == EACH
        assert overview_of(on.admin, on.dialer, new, sample=4 * EACH, arrived_ms=0).parts[0].left == EACH
        assert verify(on.admin, on.dialer, new, again_ms=0).parts[0].decisions["moved"] == EACH

        way(on, service, new)
        again = RelayProcess(pulsar_broker, new, tmp_path, kind="shadow") if way is killed else service
        with again:
            eventually(lambda: decisions(on, new).get("moved", 0) == 0, 60)
            eventually(lambda: gaps(on) <= 1, 60, message="they fall")
            found = verify(on.admin, on.dialer, new)
            assert found.is_balanced, found
            assert not {"moved", PARTLY} & found.parts[0].decisions.keys()
            # And all of it is there once.
            assert run(on.broker, "abort", str(again.plan_file)).returncode == 0
            found = verify(on.admin, on.dialer, new)
            assert found.is_balanced, found
            assert found.parts[0].decisions == {"moved": 2 * EACH}
