"""`timewheel whereis` and `timewheel status` on a real broker: timers are found, and counted, where they are."""

from __future__ import annotations

import datetime as dt
import json
import random
import subprocess
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.behaviour.test_gaps import run as run_gaps
from tests.broker.due_topic import Handled, now_ms, running
from tests.broker.relay_stage import BUSINESS, Stage, plan_of
from tests.support.command_line import timewheel, well
from timewheel.consumers import DelayedConsumer
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.envelope import PROBE_PROPERTY, Envelope
from timewheel.core.names import Names, partition_topic
from timewheel.core.plan import Calendar, Native, Plan, Ring, Scheme, Tiered, Wheel
from timewheel.core.planfile import save_plan
from timewheel.inspect.doctor import inspect_plan, verdict_on
from timewheel.inspect.status import status_of
from timewheel.inspect.whereis import State, Wanted, Whereabouts, whereis
from timewheel.producers import DelayedProducer
from timewheel.provision.provisioning import ensure
from timewheel.testing import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Evidence
    from timewheel.testing import Broker


SEED = 20_261_123
LONGEST_MS = 100_000
MARGIN_MS = 5_000  # around a release or a due time: both sides of it are right
SCHEMES: dict[str, Scheme] = {
    "native": Native(),
    "tiered": Tiered(window_ms=5_000, tiers_ms=(5_000, 15_000)),
    "calendar": Calendar(interval_ms=120_000),  # made an interval ahead, which a slow machine may need
    "wheel": Wheel(rings=(Ring(slot_ms=2_000, slots=14), Ring(slot_ms=20_000, slots=8))),
}
MAX_READS = 5


@dataclass(frozen=True, slots=True)
class Sent:
    timer_id: str
    due_ms: int
    key: str | None

    def wanted(self) -> Wanted:
        return Wanted.of(self.timer_id, due_ms=self.due_ms, key=self.key)


def send(producer: Any, source: random.Random, count: int, over_ms: int) -> list[Sent]:
    """So many timers in so much time, some of them with keys."""
    sent = []
    began = now_ms()
    for number in range(count):
        ahead_ms = began + number * over_ms // count - now_ms()
        if ahead_ms > 0:
            time.sleep(ahead_ms / 1_000)
        key = f"k{source.randrange(50)}" if source.random() < 0.3 else None
        after = dt.timedelta(milliseconds=source.randrange(LONGEST_MS))
        timer = producer.send(b"x", deliver_after=after, partition_key=key)
        sent.append(Sent(timer.id, timer.due_ms, key))
    return sent


def is_right(found: Whereabouts) -> bool:
    """It is where it should be at that moment; near a release or the due time both places will do."""
    left_ms = found.due_ms - found.at_ms if found.due_ms is not None else 0
    if left_ms < -MARGIN_MS:
        return found.state in (State.HANDLED, State.REMOVED)
    if left_ms < MARGIN_MS and found.state in (State.HANDLED, State.REMOVED):
        return True
    here = found.here
    if here is None or found.state not in (State.HELD, State.DUE):
        return False
    return any(
        here.topic.startswith(f"{stop.topic}-partition-")
        and here.envelope.entered_ms == stop.entered.first_ms
        and stop.entered.first_ms <= found.at_ms
        and (stop.is_due or stop.leaves_ms > found.at_ms - MARGIN_MS)
        for stop in found.way
    )


def searched(
    broker: Broker, scheme: Scheme, count: int, over_ms: int, wait_ms: int, partitions: int = 2
) -> tuple[list[Whereabouts], Plan]:
    """Send, let relay and consumer work, and look for each while they go on."""
    source = random.Random(SEED)
    plan = plan_of(scheme, partitions=partitions, guard_ms=1_000, max_delay_ms=LONGEST_MS)
    with Stage(broker, plan) as stage, ExitStack() as stack:
        stack.enter_context(running(DelayedConsumer(stage.client, plan, BUSINESS), Handled()))
        producer = stack.enter_context(DelayedProducer(stage.client, plan))
        sent = send(producer, source, count, over_ms)
        time.sleep(wait_ms / 1_000)
        source.shuffle(sent)
        return [whereis(stage.admin, plan, one.wanted()) for one in sent], plan


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_timers_of_every_scheme_are_found_where_they_are(pulsar_broker: Broker, name: str) -> None:
    found, _ = searched(pulsar_broker, SCHEMES[name], 40, 3_000, 1_500)
    wrong = [one for one in found if not is_right(one)]
    assert not wrong, wrong[0]
    reads = sorted(one.cost.reads for one in found)
    assert reads[len(reads) // 2] <= MAX_READS, Counter(reads)


def run(broker: Broker, plan: Plan, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    plan_file = folder / "plan.toml"
    save_plan(plan, plan_file)
    return timewheel("whereis", plan_file, *arguments, "--admin-url", broker.admin_url)


def test_the_command_tells_where_it_is_and_where_it_goes(pulsar_broker: Broker, tmp_path: Path) -> None:
    plan = plan_of(partitions=2)
    with Stage(pulsar_broker, plan) as stage, DelayedProducer(stage.client, plan) as producer:
        generated = producer.send(b"x", deliver_after=dt.timedelta(seconds=50))
        own = producer.send(b"x", deliver_after=dt.timedelta(seconds=3), timer_id="sub-42", partition_key="k")
        sent_ms = now_ms()

        told = well(run(pulsar_broker, plan, tmp_path, generated.id))
        assert f"held in {stage.tiers[0]}-partition-0, due in" in told.stdout
        assert told.stdout.count("goes to") >= 9, "tiers of four seconds for fifty"
        facts = json.loads(run(pulsar_broker, plan, tmp_path, generated.id, "--json").stdout)
        assert (facts["state"], facts["due_ms"], facts["reads"]) == ("held", generated.due_ms, 1)

        # An id says nothing of its send: by its due time alone all entries are looked at, here two or three.
        by_due = well(run(pulsar_broker, plan, tmp_path, "sub-42", "--due", own.due_at.isoformat()))
        assert "sub-42: held in" in by_due.stdout
        to_the_minute = run(pulsar_broker, plan, tmp_path, "sub-42", "--due", f"{own.due_at:%Y-%m-%dT%H:%MZ}")
        assert "sub-42: held in" in to_the_minute.stdout
        early = run(pulsar_broker, plan, tmp_path, "sub-42", "--due", "2027-01-01T08:00Z").stdout
        assert "due      2027-01-01T08:00:00.000Z to 2027-01-01T08:00:59.999Z" in early
        assert "sub-42: not found" in run(pulsar_broker, plan, tmp_path, "sub-42", "--due", "2027-01-01").stdout

        # Past its due time, and no relay: it is where it was.
        time.sleep(max(own.due_ms + 500 - now_ms(), 0) / 1_000)
        hints = ("sub-42", "--sent-at", str(sent_ms), "--key", "k")
        late = run(pulsar_broker, plan, tmp_path, *hints)
        assert "held in" in late.stdout, late.stdout
        assert "ago" in late.stdout.splitlines()[0]

        stage.relay()
        with running(DelayedConsumer(stage.client, plan, BUSINESS), Handled()):
            eventually(
                lambda: "handled: every" in run(pulsar_broker, plan, tmp_path, *hints, "--max-reads", "50").stdout,
                30,
                message="handled",
            )


def test_what_is_not_there_or_not_said_is_told(pulsar_broker: Broker, tmp_path: Path) -> None:
    plan = plan_of()
    with Stage(pulsar_broker, plan):
        unknown = run(pulsar_broker, plan, tmp_path, "sub-42")
        assert unknown.returncode == 1
        assert "does not contain its time of sending" in unknown.stderr
        assert unknown.stderr.count("\n") == 1
        due = str(now_ms() + 40_000)
        nowhere = run(pulsar_broker, plan, tmp_path, "sub-42", "--sent-at", str(now_ms()), "--due", due)
        assert nowhere.returncode == 4, nowhere.stdout + nowhere.stderr
        assert "sub-42: not found" in nowhere.stdout
        assert "searched" in nowhere.stdout
        bad = run(pulsar_broker, plan, tmp_path, "sub-42", "--sent-at", "yesterday")
        assert bad.returncode == 2


@pytest.mark.proof
@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_a_thousand_of_a_thousand_are_found(pulsar_broker: Broker, name: str, evidence: Evidence) -> None:
    found, plan = searched(pulsar_broker, SCHEMES[name], 1_000, 20_000, 10_000, partitions=4)

    wrong = [one for one in found if not is_right(one)]
    reads = sorted(one.cost.reads for one in found)
    seeks = sorted(one.cost.seeks for one in found)
    states = Counter(one.state.value for one in found)
    assert not wrong, (len(wrong), wrong[0])
    # Hops come in by several relays, and their order among each other is not strict.
    few = sum(one <= MAX_READS for one in reads) / len(reads)
    assert few == 1 if name in ("native", "calendar") else few >= 0.99, Counter(reads)
    evidence(
        f"`timewheel whereis`, {name}",
        {
            "found": f"{len(found) - len(wrong)} of {len(found)}",
            **states,
            "partitions": plan.partitions,
            "reads": f"median {reads[len(reads) // 2]}, at most {reads[-1]}",
            f"with at most {MAX_READS}": f"{100 * few:.1f} %",
            "searches by the broker": f"median {seeks[len(seeks) // 2]}, at most {seeks[-1]}",
        },
    )


LOOKED_AT: dict[str, Scheme] = {
    "native": Native(),
    "tiered": Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, DAY_MS)),
    "calendar": Calendar(interval_ms=DAY_MS),
    "wheel": Wheel(rings=(Ring(slot_ms=HOUR_MS, slots=28), Ring(slot_ms=DAY_MS, slots=6))),
}
DELAYS_S = (30, 600, 2 * 3_600, 30 * 3_600, 80 * 3_600)  # one for each of: next minute, hour, day, day 2, day 4
STRETCHES = ["next minute", "next hour", "next day", "day 2", "day 4"]


def status(broker: Broker, plan: Plan, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    plan_file = folder / "plan.toml"
    save_plan(plan, plan_file)
    return timewheel("status", plan_file, *arguments, "--admin-url", broker.admin_url)


def fill(stage: Stage, each: int) -> None:
    with DelayedProducer(stage.client, stage.plan) as producer:
        for _ in range(each):
            for delay_s in DELAYS_S:
                producer.send_async(b"x", lambda *_: None, deliver_after=dt.timedelta(seconds=delay_s))
        producer.flush()


@pytest.mark.parametrize("name", sorted(LOOKED_AT))
def test_timers_are_counted_by_due_time_and_place(pulsar_broker: Broker, tmp_path: Path, name: str) -> None:
    plan = plan_of(LOOKED_AT[name], partitions=2, guard_ms=60_000, max_delay_ms=4 * DAY_MS)
    with Stage(pulsar_broker, plan) as stage:
        fill(stage, 40)
        told = status(pulsar_broker, plan, tmp_path, "--json", "--fail-late", "1m")
        shown = status(pulsar_broker, plan, tmp_path, "--heads")

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


def test_late_timers_and_the_relays_that_have_them(pulsar_broker: Broker, tmp_path: Path) -> None:
    plan = plan_of(partitions=2)
    with Stage(pulsar_broker, plan) as stage:
        stage.hold(2_600 + number for number in range(20))
        stage.hold(50_000 + number for number in range(20))
        time.sleep(4.5)  # past the release of the first ones, and past their due time

        late = status(pulsar_broker, plan, tmp_path, "--fail-late", "500ms", "--json")
        assert late.returncode == 4, late.stdout + late.stderr
        facts = json.loads(late.stdout)
        assert facts["relay_late_ms"] > 500
        assert next(one["count"] for one in facts["horizon"] if one["name"] == "overdue") == 20
        assert len(facts["unattended"]) == 4, "two tiers of two partitions"
        assert "No relay is connected where heads should have left" in status(pulsar_broker, plan, tmp_path).stdout

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
            attended = well(status(pulsar_broker, plan, tmp_path, "--fail-late", "1h"))
            return f"Relay {mine} has 4 partitions with about 20 timers" in " ".join(attended.stdout.split())

        eventually(is_text)


def test_a_plan_that_nobody_has_made_is_not_well(pulsar_broker: Broker, tmp_path: Path) -> None:
    plan = plan_of(partitions=2)
    told = status(pulsar_broker, plan, tmp_path)
    assert told.returncode == 1, told.stdout
    assert "no topic of the plan can be seen" in told.stdout
    ensure = f"timewheel topics ensure {tmp_path}/plan.toml"
    assert f"Missing: {plan.due_topic} ({ensure} creates it)." in " ".join(told.stdout.split())
    gaps = run_gaps(pulsar_broker, str(tmp_path / "plan.toml"))
    assert gaps.returncode == 1, gaps.stdout
    assert "all is well" not in gaps.stdout
    assert plan.due_topic in gaps.stdout
    with Stage(pulsar_broker, plan) as stage:
        idle = well(status(pulsar_broker, plan, tmp_path))
        assert "0 timers wait; nothing is late, and no relay is connected" in " ".join(idle.stdout.split())
        assert "on time" not in idle.stdout
        assert run_gaps(pulsar_broker, str(tmp_path / "plan.toml")).returncode == 0
        stage.admin.topics.delete(stage.tiers[0])

        told = status(pulsar_broker, plan, tmp_path, "--fail-late", "1m")
        assert told.returncode == 1, told.stdout
        assert "0 timers wait, and 1 topic of the plan missing" in told.stdout
        gaps = run_gaps(pulsar_broker, str(tmp_path / "plan.toml"), "--fail-at", "alarm", "--json")
        assert (gaps.returncode, json.loads(gaps.stdout)["missing"]) == (1, [stage.tiers[0]])
        dead_letters = Names(plan).dead_letter
        stage.admin.topics.delete(dead_letters)
        without = status(pulsar_broker, plan, tmp_path)
        assert without.returncode == 1, without.stdout
        assert f"Missing: {dead_letters} (" in " ".join(without.stdout.split())


def test_timers_of_an_earlier_plan_are_told(pulsar_broker: Broker, tmp_path: Path) -> None:
    before = plan_of(LOOKED_AT["tiered"], partitions=2, guard_ms=60_000, max_delay_ms=4 * DAY_MS)
    after = replace(before, scheme=Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS,)))
    with Stage(pulsar_broker, before) as stage:
        for _ in range(3):
            stage.hold([3 * DAY_MS, 3 * DAY_MS])  # into both partitions, and each in an entry of its own
        former = stage.tiers[0]
        assert json.loads(status(pulsar_broker, before, tmp_path, "--json").stdout)["former"] == []
        ensure(stage.admin, after, now_ms=now_ms(), ignore_former_topics=True)

        facts = json.loads(status(pulsar_broker, after, tmp_path, "--json").stdout)
        assert facts["timers"]["count"] == 0
        assert facts["former"] == [{"topic": former, "entries": 6, "left_behind": True}]
        shown = " ".join(status(pulsar_broker, after, tmp_path).stdout.split())
        assert "0 timers wait, 6 entries wait in topics of earlier plans; nothing is late, and no relay is" in shown
        assert f"{former}: 6 entries wait here, of an earlier plan: this plan's consumers, with" in shown
        served = replace(after, relay="service")
        (one,) = json.loads(status(pulsar_broker, served, tmp_path, "--json").stdout)["former"]
        assert not one["left_behind"], "a service can list topics, and drains it"

        moved = replace(after, scheme=Calendar(interval_ms=DAY_MS))  # nobody has made its topics
        nobody = " ".join(status(pulsar_broker, moved, tmp_path).stdout.split())
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
    idle = well(status(pulsar_broker, stage.plan, tmp_path, "--json", "--fail-late", "1ms"))
    facts = json.loads(idle.stdout)
    assert (facts["timers"], facts["relay_late_ms"]) == ({"count": 0, "error": 0}, 0)

    # It should have left the tier long ago, and no relay is connected.
    stage.put(tier, Envelope("late", now_ms() + HOUR_MS, now_ms() - HOUR_MS))
    stage.flush()
    late = status(pulsar_broker, stage.plan, tmp_path, "--json", "--fail-late", "1m")
    facts = json.loads(late.stdout)
    assert (facts["timers"]["count"], late.returncode) == (1, 4)
    assert facts["relay_late_ms"] > HOUR_MS - 60_000
    found = verdict_on(inspect_plan(stage.admin, stage.plan, target="plan.toml")).findings
    assert any(one.slug == "relay-late" and "timer late should" in one.read for one in found)


@pytest.mark.real
def test_what_waits_in_an_intake_that_no_relay_reads_counts_and_is_exit_status_4(
    pulsar_broker: Broker, tmp_path: Path
) -> None:
    plan = plan_of(LOOKED_AT["tiered"], guard_ms=60_000, max_delay_ms=4 * DAY_MS, intake=True, relay="service")
    with Stage(pulsar_broker, plan) as stage:
        intake = stage.producer(stage.names.intake, batching_enabled=False)
        assert status(pulsar_broker, plan, tmp_path).returncode == 0
        for due_ms in [now_ms()] * 9 + [now_ms() + 2 * HOUR_MS]:
            intake.send(b"x", properties={"tw-due": str(due_ms)})

        said, shown = (status(pulsar_broker, plan, tmp_path, *options) for options in (["--json"], []))

        assert (said.returncode, shown.returncode) == (4, 4)
        facts = json.loads(said.stdout)
        by_name = {one["name"]: one["count"] for one in facts["horizon"]}
        assert (by_name["overdue"], by_name["next day"], facts["timers"]["count"]) == (9, 1, 10)
        assert facts["unattended"] == [partition_topic(stage.names.intake, 0)]
        assert "10 of them wait in the intake, which no relay reads" in " ".join(shown.stdout.split())
        found = verdict_on(inspect_plan(stage.admin, plan, target="plan.toml")).findings
        (alone,) = [one for one in found if one.slug == "no-relay"]
        assert "10 entries wait in 1 of 1 partition, the first overdue" in alone.read
