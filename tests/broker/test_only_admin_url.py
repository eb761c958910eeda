"""Commands that are given an admin URL alone look the brokers' own address up, all in the same way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from tests.broker.relay_service import RelayProcess
from tests.support.command_line import timewheel, well
from timewheel.broker.admin import AdminClient
from timewheel.core.cancel_policy import Cancel
from timewheel.core.durations import HOUR_MS
from timewheel.core.plan import Plan, Tiered
from timewheel.core.planfile import save_plan
from timewheel.provision.provisioning import ensure
from timewheel.testing import Broker, eventually


def plan_of(topic: str, kind: str) -> Plan:
    plan = Plan(
        due_topic=topic,
        subscriptions=("billing",),
        scheme=Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, 12 * HOUR_MS)),
        relay="service",
    )
    return replace(plan, intake=True, readers="any") if kind == "shadow" else replace(plan, cancel=Cancel(), retry=True)


@pytest.fixture
def admin_alone(pulsar_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A connection's file with an admin URL; nothing listens where a client would go by default."""
    assert ":6650" not in pulsar_broker.service_url
    for name in ("PULSAR_SERVICE_URL", "PULSAR_ADMIN_URL"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "connection.toml"
    file.write_text(f'[connection]\nadmin_url = "{pulsar_broker.admin_url}"\n')
    return file


def ran(folder: Path, connection: Path, *words: str) -> str:
    """What a command printed that ended well."""
    done = well(timewheel(*words, "--connection", connection, cwd=folder))
    return done.stdout


def test_timers_are_cancelled_looked_at_and_relayed(
    pulsar_broker: Broker, topic: str, admin_alone: Path, tmp_path: Path
) -> None:
    plan = plan_of(topic, "relay")
    save_plan(plan, tmp_path / "plan.toml")
    done = timewheel("timer", "cancel", "plan.toml", "one", "--connection", admin_alone, cwd=tmp_path)
    assert done.returncode == 1
    assert "timewheel topics ensure plan.toml" in done.stderr, "also where there is nothing to look up yet"
    with AdminClient(pulsar_broker.admin_url) as admin:
        ensure(admin, plan, now_ms=admin.clock.now_ms())
    assert "one" in ran(tmp_path, admin_alone, "timer", "cancel", "plan.toml", "one")
    assert "one" in ran(tmp_path, admin_alone, "cancellations", "list", "plan.toml")
    assert "1 cancellation" in ran(tmp_path, admin_alone, "cancellations", "compact", "plan.toml")
    assert "remembered until" in ran(tmp_path, admin_alone, "timer", "show", "plan.toml", "one")
    _runs("relay", pulsar_broker, plan, tmp_path, admin_alone)


def test_a_shadow_is_begun_looked_at_run_and_ended(
    pulsar_broker: Broker, topic: str, admin_alone: Path, tmp_path: Path
) -> None:
    plan = plan_of(topic, "shadow")
    save_plan(plan, tmp_path / "plan.toml")
    with AdminClient(pulsar_broker.admin_url) as admin:
        admin.topics.create(topic, 1)
        admin.subscriptions.create(topic, "billing")
    begun = ran(tmp_path, admin_alone, "shadow", "start", "plan.toml")
    assert "timewheel shadow run plan.toml --connection" in begun
    assert "--service-url" not in begun, "the next command looks it up as well"
    _runs("shadow", pulsar_broker, plan, tmp_path, admin_alone)
    assert "audit balances" in ran(tmp_path, admin_alone, "shadow", "verify", "plan.toml")
    assert "put back" in ran(tmp_path, admin_alone, "shadow", "abort", "plan.toml")
    assert "native" in ran(tmp_path, admin_alone, "shadow", "status", "plan.toml")


def _runs(kind: Literal["relay", "shadow"], broker: Broker, plan: Plan, folder: Path, connection: Path) -> None:
    with RelayProcess(broker, plan, folder, connection=connection, kind=kind) as service:
        eventually(service.ready_file.exists, 60, message="it reaches the broker")
