"""`timewheel status` on a real broker: timers by due time and place, heads, relays; what a role may not see is said."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.broker.due_topic import now_ms
from tests.broker.relay_stage import Stage, plan_of
from tests.broker.test_gaps import run as run_gaps
from tests.support.command_line import timewheel
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.envelope import PROBE_PROPERTY, Envelope
from timewheel.core.names import Names, partition_topic
from timewheel.core.plan import Calendar, Native, Ring, Scheme, Tiered, Wheel
from timewheel.core.planfile import save_plan
from timewheel.inspect.doctor import inspect_plan, verdict_on
from timewheel.inspect.status import status_of
from timewheel.producers import DelayedProducer
from timewheel.provision.provisioning import ensure
from timewheel.testing import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from timewheel.core.plan import Plan
    from timewheel.testing import Broker

SCHEMES: dict[str, Scheme] = {
    "native": Native(),
    "tiered": Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, DAY_MS)),
    "calendar": Calendar(interval_ms=DAY_MS),
    "wheel": Wheel(rings=(Ring(slot_ms=HOUR_MS, slots=28), Ring(slot_ms=DAY_MS, slots=6))),
}
DELAYS_S = (30, 600, 2 * 3_600, 30 * 3_600, 80 * 3_600)
"""One for each of: next minute, hour, day, day 2, day 4."""
STRETCHES = ["next minute", "next hour", "next day", "day 2", "day 4"]


def run(broker: Broker, plan: Plan, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    plan_file = folder / "plan.toml"
    save_plan(plan, plan_file)
    return timewheel("status", plan_file, *arguments, "--admin-url", broker.admin_url)


def fill(stage: Stage, each: int) -> None:
    with DelayedProducer(stage.client, stage.plan) as producer:
        for _ in range(each):
            for delay_s in DELAYS_S:
                producer.send_async(b"x", lambda *_: None, deliver_after=dt.timedelta(seconds=delay_s))
        producer.flush()


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_timers_are_counted_by_due_time_and_place(pulsar_broker: Broker, tmp_path: Path, name: str) -> None:
    plan = plan_of(SCHEMES[name], partitions=2, guard_ms=60_000, max_delay_ms=4 * DAY_MS)
    with Stage(pulsar_broker, plan) as stage:
        fill(stage, 40)
        told = run(pulsar_broker, plan, tmp_path, "--json", "--fail-late", "1m")
        shown = run(pulsar_broker, plan, tmp_path, "--heads")

        assert told.returncode == 0, told.stdout + told.stderr
        facts = json.loads(told.stdout)
        assert facts["timers"] == {"count": 200, "error": 0}
        assert {one["name"]: one["count"] for one in facts["horizon"] if one["count"]} == dict.fromkeys(STRETCHES, 40)
        heads = [one["head"] for one in facts["partitions"] if one["entries"]]
        assert all(head["leaves_ms"] > facts["at_ms"] for head in heads), "nobody is late"
        assert (facts["relay_late_ms"], facts["relays"], facts["missing"], facts["unseen"]) == (0, {}, [], [])
        assert "200 timers wait" in shown.stdout
        assert "all figures are exact" in shown.stdout
        assert "day 4" in shown.stdout
        if name != "native":
            sampled = status_of(stage.admin, plan, reads=1)
            assert sampled.read <= 2 * 200


def test_a_sample_says_how_wrong_it_may_be(pulsar_broker: Broker) -> None:
    plan = plan_of(Native(), partitions=2, max_delay_ms=4 * DAY_MS)
    with Stage(pulsar_broker, plan) as stage:
        fill(stage, 400)
        found = status_of(stage.admin, plan, reads=400)

        by_name = dict(zip((one.name for one in found.horizon.buckets), found.by_stretch(), strict=True))
        for name in STRETCHES:
            assert 0 < by_name[name].error < 150
            assert by_name[name].count == pytest.approx(400, abs=2 * by_name[name].error)
        assert found.timers.count == pytest.approx(2_000, abs=found.timers.error)
        assert found.read <= 410


def test_late_timers_and_the_relays_that_have_them(pulsar_broker: Broker, tmp_path: Path) -> None:
    plan = plan_of(partitions=2)
    with Stage(pulsar_broker, plan) as stage:
        stage.hold(2_600 + number for number in range(20))
        stage.hold(50_000 + number for number in range(20))
        time.sleep(4.5)  # past the release of the first ones, and past their due time

        late = run(pulsar_broker, plan, tmp_path, "--fail-late", "500ms", "--json")
        assert late.returncode == 4, late.stdout + late.stderr
        facts = json.loads(late.stdout)
        assert facts["relay_late_ms"] > 500
        assert next(one["count"] for one in facts["horizon"] if one["name"] == "overdue") == 20
        assert len(facts["unattended"]) == 4, "two tiers of two partitions"
        assert "No relay is connected where heads should have left" in run(pulsar_broker, plan, tmp_path).stdout

        relay = stage.relay()
        stage.await_due(20)
        eventually(lambda: status_of(stage.admin, plan).relay_late_ms == 0, message="the relay is on time")
        found = status_of(stage.admin, plan)
        assert not found.unattended()
        (mine,) = found.relays()
        assert mine == relay.status().relay_id
        assert len(found.relays()[mine]) == 2 * len(stage.tiers)
        # While they hop, once in four seconds, they are there twice.
        eventually(lambda: sum(place.timers.count for place in status_of(stage.admin, plan).relays()[mine]) == 20)

        def is_text() -> bool:
            attended = run(pulsar_broker, plan, tmp_path, "--fail-late", "1h")
            assert attended.returncode == 0
            return f"Relay {mine} has 4 partitions with about 20 timers" in " ".join(attended.stdout.split())

        eventually(is_text)


def test_a_plan_that_nobody_has_made_is_not_well(pulsar_broker: Broker, tmp_path: Path) -> None:
    plan = plan_of(partitions=2)
    told = run(pulsar_broker, plan, tmp_path)
    assert told.returncode == 1, told.stdout
    assert "no topic of the plan can be seen" in told.stdout
    ensure = f"timewheel topics ensure {tmp_path}/plan.toml"
    assert f"Missing: {plan.due_topic} ({ensure} creates it)." in " ".join(told.stdout.split())
    gaps = run_gaps(pulsar_broker, str(tmp_path / "plan.toml"))
    assert gaps.returncode == 1, gaps.stdout
    assert "all is well" not in gaps.stdout
    assert plan.due_topic in gaps.stdout
    with Stage(pulsar_broker, plan) as stage:
        idle = run(pulsar_broker, plan, tmp_path)
        assert idle.returncode == 0
        assert "0 timers wait; nothing is late, and no relay is connected" in " ".join(idle.stdout.split())
        assert "on time" not in idle.stdout
        assert run_gaps(pulsar_broker, str(tmp_path / "plan.toml")).returncode == 0
        stage.admin.topics.delete(stage.tiers[0])

        told = run(pulsar_broker, plan, tmp_path, "--fail-late", "1m")
        assert told.returncode == 1, told.stdout
        assert "0 timers wait, and 1 topic of the plan missing" in told.stdout
        gaps = run_gaps(pulsar_broker, str(tmp_path / "plan.toml"), "--fail-at", "alarm", "--json")
        assert (gaps.returncode, json.loads(gaps.stdout)["missing"]) == (1, [stage.tiers[0]])
        dead_letters = Names(plan).dead_letter
        stage.admin.topics.delete(dead_letters)
        without = run(pulsar_broker, plan, tmp_path)
        assert without.returncode == 1, without.stdout
        assert f"Missing: {dead_letters} (" in " ".join(without.stdout.split())


def test_timers_of_an_earlier_plan_are_told(pulsar_broker: Broker, tmp_path: Path) -> None:
    before = plan_of(SCHEMES["tiered"], partitions=2, guard_ms=60_000, max_delay_ms=4 * DAY_MS)
    after = replace(before, scheme=Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS,)))
    with Stage(pulsar_broker, before) as stage:
        for _ in range(3):
            stage.hold([3 * DAY_MS, 3 * DAY_MS])  # into both partitions, and each in an entry of its own
        former = stage.tiers[0]
        assert json.loads(run(pulsar_broker, before, tmp_path, "--json").stdout)["former"] == []
        ensure(stage.admin, after, now_ms=now_ms(), ignore_former_topics=True)

        facts = json.loads(run(pulsar_broker, after, tmp_path, "--json").stdout)
        assert facts["timers"]["count"] == 0
        assert facts["former"] == [{"topic": former, "entries": 6, "left_behind": True}]
        shown = " ".join(run(pulsar_broker, after, tmp_path).stdout.split())
        assert "0 timers wait, 6 entries wait in topics of earlier plans; nothing is late, and no relay is" in shown
        assert f"{former}: 6 entries wait here, of an earlier plan: this plan's consumers, with" in shown
        served = replace(after, relay="service")
        (one,) = json.loads(run(pulsar_broker, served, tmp_path, "--json").stdout)["former"]
        assert not one["left_behind"], "a service can list topics, and drains it"

        moved = replace(after, scheme=Calendar(interval_ms=DAY_MS))  # nobody has made its topics
        nobody = " ".join(run(pulsar_broker, moved, tmp_path).stdout.split())
        assert "no topic of the plan can be seen, and 6 entries wait in topics of earlier plans." in nobody
        stage.admin.subscriptions.clear(former, "timewheel-relay")
        eventually(lambda: status_of(stage.admin, after).former == (), message="it is drained")


def test_probes_of_relays_are_no_timers_and_hide_none_behind_them(
    stage: Stage, pulsar_broker: Broker, tmp_path: Path
) -> None:
    tier = stage.tiers[0]
    probe = stage.producer(tier, batching_enabled=False)
    for relay in ("r0", "r1"):
        probe.send(b"", properties={PROBE_PROPERTY: relay})
    idle = run(pulsar_broker, stage.plan, tmp_path, "--json", "--fail-late", "1ms")
    assert idle.returncode == 0, idle.stdout
    facts = json.loads(idle.stdout)
    assert (facts["timers"], facts["relay_late_ms"]) == ({"count": 0, "error": 0}, 0)

    # It should have left the tier long ago, and no relay is connected.
    stage.put(tier, Envelope("late", now_ms() + HOUR_MS, now_ms() - HOUR_MS))
    stage.flush()
    late = run(pulsar_broker, stage.plan, tmp_path, "--json", "--fail-late", "1m")
    facts = json.loads(late.stdout)
    assert (facts["timers"]["count"], late.returncode) == (1, 4)
    assert facts["relay_late_ms"] > HOUR_MS - 60_000
    found = verdict_on(inspect_plan(stage.admin, stage.plan, target="plan.toml")).findings
    assert any(one.slug == "relay-late" and "timer late should" in one.read for one in found)


def test_what_waits_in_an_intake_that_no_relay_reads_counts_and_is_exit_status_4(
    pulsar_broker: Broker, tmp_path: Path
) -> None:
    plan = plan_of(SCHEMES["tiered"], guard_ms=60_000, max_delay_ms=4 * DAY_MS, intake=True, relay="service")
    with Stage(pulsar_broker, plan) as stage:
        intake = stage.producer(stage.names.intake, batching_enabled=False)
        assert run(pulsar_broker, plan, tmp_path).returncode == 0
        for due_ms in [now_ms()] * 9 + [now_ms() + 2 * HOUR_MS]:
            intake.send(b"x", properties={"tw-due": str(due_ms)})

        said, shown = (run(pulsar_broker, plan, tmp_path, *options) for options in (["--json"], []))

        assert (said.returncode, shown.returncode) == (4, 4)
        facts = json.loads(said.stdout)
        by_name = {one["name"]: one["count"] for one in facts["horizon"]}
        assert (by_name["overdue"], by_name["next day"], facts["timers"]["count"]) == (9, 1, 10)
        assert facts["unattended"] == [partition_topic(stage.names.intake, 0)]
        assert "10 of them wait in the intake, which no relay reads" in " ".join(shown.stdout.split())
        found = verdict_on(inspect_plan(stage.admin, plan, target="plan.toml")).findings
        (alone,) = [one for one in found if one.slug == "no-relay"]
        assert "10 entries wait in 1 of 1 partition, the first overdue" in alone.read
