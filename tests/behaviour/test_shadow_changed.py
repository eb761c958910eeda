"""The plan of a shadow changes while timers wait: nothing is lost, repeated or left; what is over a limit is cured."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.test_shadow_look import run, saved
from tests.broker.due_topic import now_ms
from tests.broker.relay_service import RelayProcess
from tests.broker.relay_stage import BUSINESS, TIERED, plan_of
from tests.broker.shadow_stage import ShadowStage, shadow_plan, staged
from tests.support.command_line import well
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from timewheel.core.plan import Plan, Ring, Tiered, Wheel
from timewheel.core.planfile import save_plan
from timewheel.core.topology import UndrainedTopics
from timewheel.inspect.status import Amount
from timewheel.provision import FormerTopics
from timewheel.provision.former_topics import left_behind
from timewheel.provision.provisioning import ensure
from timewheel.relay import Relay
from timewheel.shadow.curing import first_plan, fitted
from timewheel.shadow.desired_state import State, desired_in
from timewheel.shadow.draining import waiting
from timewheel.shadow.machine.audit import Place
from timewheel.shadow.machine.survey_counters import PARTLY
from timewheel.shadow.overview import overview_of
from timewheel.shadow.survey import read_topic
from timewheel.shadow.verification import Verification, verify
from timewheel.testing import Broker, LocalPulsar, eventually

RING = Wheel(rings=(Ring(slot_ms=2_000, slots=14, headstart_ms=500),))
EACH = 150
SHORTEST_MS, LONGEST_MS = 9_000, 18_000
CHANGES: dict[str, tuple[Any, dict[str, Any]]] = {
    "other tiers": (TIERED, {"scheme": Tiered(window_ms=2_000, tiers_ms=(2_000, 5_000))}),
    "tiers to a ring": (TIERED, {"scheme": RING, "revision": 2}),
    "a ring to tiers": (RING, {"scheme": TIERED}),
    "a larger guard": (TIERED, {"guard_ms": 1_500}),
    "more partitions": (TIERED, {"partitions": 4}),
}


def send(on: ShadowStage, names: range) -> None:
    # A producer of its own, which knows all partitions that there are now.
    producer = on.plain_producer()
    step_ms = (LONGEST_MS - SHORTEST_MS) // len(names)
    for place, number in enumerate(names):
        due_ms = now_ms() + SHORTEST_MS + place * step_ms
        producer.send_async(f"{number} {due_ms}".encode(), None, deliver_at=due_ms, partition_key=f"{number}")
    producer.flush()
    producer.close()


ALWAYS = {"other tiers", "more partitions"}


@pytest.mark.real
@pytest.mark.parametrize(
    ("scheme", "changed"),
    [
        pytest.param(*change, id=name, marks=() if name in ALWAYS else pytest.mark.proof)
        for name, change in CHANGES.items()
    ],
)
def test_a_plan_changes_while_lifted_timers_wait(
    pulsar_broker: Broker, tmp_path: Path, scheme: Any, changed: dict[str, Any]
) -> None:
    plan = shadow_plan(scheme, partitions=2, max_delay_ms=20_000)
    with staged(pulsar_broker, plan) as on, RelayProcess(pulsar_broker, plan, tmp_path, kind="shadow") as service:
        service.await_ready()
        handling = [on.plain_consumer()]
        send(on, range(EACH))
        eventually(lambda: moved(service) >= EACH // 2, 60, message="timers are moved")

        new = replace(plan, **changed)
        if new.partitions != plan.partitions:
            on.admin.topics.update_partitions(plan.due_topic, new.partitions)
            told = eventually(lambda: service.told("shadow_misses_partitions"), 60)
            assert [(one["has"], one["plan"]) for one in told] == [(new.partitions, plan.partitions)]
        ensure(on.admin, new, now_ms=now_ms(), grow=True)
        save_plan(new, service.plan_file)
        service.hang_up()
        sessions = plan.partitions + new.partitions
        eventually(lambda: len(service.told("shadow_caught_up")) >= sessions, 60, message="movers with the new plan")
        if new.partitions != plan.partitions:
            handling.append(on.plain_consumer())  # the client looks for new partitions once a minute
        send(on, range(EACH, 2 * EACH))
        handled = {f"{number}" for number in range(2 * EACH)}
        eventually(lambda: {name for one in handling for name in one.handled} == handled, 60)

        assert sum(one.again for one in handling) == 0
        assert sum(len(one.handled) for one in handling) == len(handled), "each by one of them"
        early_ms = plan.tick_ms + 50
        assert min(late for one in handling for late in one.lateness_ms.values()) > -early_ms
        assert moved(service) >= EACH // 2, "of those that came after the change, too"
        eventually(lambda: waiting(on.admin, new) == 0, 60)


def moved(service: RelayProcess) -> int:
    """Copies that its movers have stored since they have their plan."""
    return sum(one["moved"] for one in service.status()["relays"][0]["shadow"]["movers"])


@pytest.mark.short
def test_a_plan_without_its_intake_is_refused_until_the_intake_is_empty(pulsar_broker: Broker) -> None:
    """As the way in ends: the last plain producer is gone, and relays move on what waits."""
    plan = shadow_plan(max_delay_ms=40_000)
    without = replace(plan, intake=False)
    with staged(pulsar_broker, plan) as on:
        consumer, shadow = on.plain_consumer(), on.shadow(hold_ms=100)
        producer, due_ms = on.plain_producer(), now_ms() + 25_000
        for number in range(EACH):
            producer.send_async(f"{number} {due_ms}".encode(), None, deliver_at=due_ms)
        producer.flush()
        eventually(lambda: shadow.shadow_status().acked_originals == EACH, 60)
        former = FormerTopics(on.admin, without)
        with pytest.raises(UndrainedTopics, match="keep timewheel shadow run PLAN going"):
            ensure(on.admin, without, now_ms=now_ms())

        eventually(lambda: not left_behind(without, former()), 60, message="the journal is let go")
        shadow.stop()
        ensure(on.admin, without, now_ms=now_ms())
        relay = Relay(on.client, without, hooks=(on.events,), former_topics=former).start()
        try:
            assert now_ms() < due_ms, "relays take over while timers wait"
            eventually(lambda: len(consumer.handled) == EACH, 60)
        finally:
            relay.stop(5_000)
        assert consumer.again == 0


def test_what_waits_in_a_former_tier_is_seen_and_comes_back_by_an_abort_alone(
    pulsar_broker: Broker, tmp_path: Path
) -> None:
    """Nobody runs `shadow run` after the change: the looks are what one runs then, and the abort drains it itself."""
    before = Tiered(window_ms=10 * SECOND_MS, tiers_ms=(10 * SECOND_MS, HOUR_MS))
    plan = shadow_plan(before, partitions=2, max_delay_ms=2 * DAY_MS)
    new = replace(plan, scheme=replace(before, tiers_ms=(10 * SECOND_MS, 2 * HOUR_MS)))
    with staged(pulsar_broker, plan) as on:
        on.plain_consumer()
        shadow, producer, due_ms = on.shadow(), on.plain_producer(), now_ms() + 5 * HOUR_MS
        for number in range(EACH):
            producer.send_async(b"x", None, deliver_at=due_ms + number, partition_key=f"{number}")
        producer.flush()
        eventually(lambda: shadow.shadow_status().acked_originals == EACH, 60)
        eventually(lambda: places(verify(on.admin, on.dialer, plan))[Place.HOLDING] == EACH, 20, message="in a tier")
        shadow.stop()
        ensure(on.admin, new, now_ms=now_ms())

        tier = on.tiers[0]
        assert tier.endswith(".tier-1h")
        found = verify(on.admin, on.dialer, new)
        assert found.is_balanced, found.wrong
        assert (found.unread, found.missing) == ((), ())
        assert places(found)[Place.HOLDING] == EACH
        held = overview_of(on.admin, on.dialer, new)
        assert [*held.former] == [tier]
        assert not held.holding
        assert held.timers == {tier: Amount(float(EACH))}, "of fewer entries, in batches"
        assert held.former[tier] <= EACH
        plan_file = saved(new, tmp_path)
        assert "Held by an earlier plan's topics" in run(pulsar_broker, "status", plan_file).stdout
        assert waiting(on.admin, new) > 0

        well(run(pulsar_broker, "abort", plan_file))
        assert desired_in(on.admin.topics.properties(on.names.journal)).state is State.NATIVE
        assert places(verify(on.admin, on.dialer, new))[Place.DUE] == EACH
        assert waiting(on.admin, new) == 0
        assert not overview_of(on.admin, on.dialer, new).former


def places(found: Verification) -> Counter[Place]:
    """Where the journal's copies are."""
    counts: Counter[Place] = Counter()
    for part in found.parts:
        counts.update(part.places)
    return counts


DAYS = Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS, 5 * DAY_MS))
WIDE = shadow_plan(DAYS, guard_ms=60_000, max_delay_ms=30 * DAY_MS)
PAIRS = 1_500
"""Of what stays with the wide window, and of what is moved: one after the other, so that each move makes a gap."""


def narrow(plan: Plan) -> Plan:
    scheme = Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, DAY_MS, 5 * DAY_MS))
    return replace(plan, scheme=scheme, revision=plan.revision + 1)


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
    eventually(lambda: decisions(on, new).get("moved", 0) < PAIRS, 60, poll=0.01)
    service.kill()


def aborted(on: ShadowStage, service: RelayProcess, new: Plan) -> None:
    done = well(run(on.broker, "abort", str(service.plan_file)))
    assert done.stderr.count("\n") == 1, f"the client's own lines are not on the terminal: {done.stderr}"
    changed(on, service, new)
    on.desired(State.SHADOWING)


@pytest.mark.parametrize("way", [changed, aborted, killed])
@pytest.mark.short
def test_what_a_wide_window_let_stay_is_lifted_with_a_narrow_one(
    pulsar_broker: Broker, tmp_path: Path, way: Callable[[ShadowStage, RelayProcess, Plan], None]
) -> None:
    plan = replace(WIDE, due_topic=plan_of().due_topic)
    new = narrow(plan)
    with staged(pulsar_broker, plan) as on, RelayProcess(pulsar_broker, plan, tmp_path, kind="shadow") as service:
        service.await_ready()
        producer, at_ms = on.plain_producer(), now_ms()
        for number in range(PAIRS):
            for name, delay_ms in ((f"stays {number}", 5 * HOUR_MS), (f"goes {number}", 3 * DAY_MS)):
                producer.send_async(name.encode(), None, deliver_at=at_ms + delay_ms)
        producer.flush()
        eventually(lambda: moved(service) == PAIRS, 60)
        eventually(lambda: on.gaps() >= PAIRS - 1, 60)
        assert decisions(on, plan).get("moved", 0) == 0
        # All who look by the new plan count what it would take up.
        assert decisions(on, new)["moved"] == PAIRS
        assert overview_of(on.admin, on.dialer, new, sample=4 * PAIRS, arrived_ms=0).parts[0].left == PAIRS
        assert verify(on.admin, on.dialer, new, again_ms=0).parts[0].decisions["moved"] == PAIRS

        way(on, service, new)
        again = RelayProcess(pulsar_broker, new, tmp_path, kind="shadow") if way is killed else service
        with again:
            eventually(lambda: decisions(on, new).get("moved", 0) == 0, 60)
            eventually(lambda: on.gaps() <= 1, 60, message="they fall")
            found = verify(on.admin, on.dialer, new)
            assert found.is_balanced, found
            assert not {"moved", PARTLY} & found.parts[0].decisions.keys()
            # And all of it is there once.
            assert run(on.broker, "abort", str(again.plan_file)).returncode == 0
            found = verify(on.admin, on.dialer, new)
            assert found.is_balanced, found
            assert found.parts[0].decisions == {"moved": 2 * PAIRS}


LIMIT = 200
ROUNDS = 500


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalPulsar]:
    with LocalPulsar(config={"managedLedgerMaxUnackedRangesToPersist": str(LIMIT)}) as pulsar:
        yield pulsar


def filled(on: ShadowStage, *delays_ms: int) -> None:
    """Timers of these delays by turns, with a handled one behind each round."""
    producer, at_ms = on.plain_producer(), now_ms()
    consumer = on.plain_consumer()
    for number in range(ROUNDS):
        for delay_ms in delays_ms:
            producer.send_async(b"later", None, deliver_at=at_ms + delay_ms)
        producer.send_async(f"{number}".encode(), None)
    producer.flush()
    eventually(lambda: len(consumer.handled) == ROUNDS, 60)
    eventually(lambda: on.gaps() >= ROUNDS - 1, 60)


def plan() -> Plan:
    return replace(WIDE, due_topic=plan_of().due_topic)


def as_printed(broker: LocalPulsar, text: str) -> subprocess.CompletedProcess[str]:
    """The command that would put it right, run by a shell as it stands there."""
    line = re.search(r"timewheel shadow start \S+ --window \S+", " ".join(text.split()))
    assert line is not None, text
    where = {"PULSAR_ADMIN_URL": broker.admin_url, "PULSAR_SERVICE_URL": broker.service_url}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | where | {"PATH": path, "COLUMNS": "500"}
    return subprocess.run(line.group(), shell=True, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.short
def test_it_is_refused_and_begun_all_the_same_it_can_be_put_right_by_the_command_that_status_prints(
    broker: LocalPulsar, tmp_path: Path
) -> None:
    wide = plan()
    with ShadowStage(broker, wide) as on:
        filled(on, 3 * HOUR_MS, 5 * DAY_MS)
        file = saved(wide, tmp_path)
        for option in ("--dry-run", "--entries=100000"):
            refused = run(broker, "start", option, file)
            assert refused.returncode == 3, refused.stderr
            assert "still-over-limit" in refused.stdout
            assert f"has caught up; the broker keeps {LIMIT}" in " ".join(refused.stdout.split())
        assert desired_in(on.admin.topics.properties(on.names.journal)).state is State.PROVISIONED
        # A plan that is made for the topic has the window that is found to do.
        made = tmp_path / "made.toml"
        shown = well(run(broker, "start", wide.due_topic, "--out", str(made), "--dry-run"))
        first = first_plan(wide.due_topic, wide.subscriptions, wide.partitions, Plan.load(made).tick_ms)
        assert Plan.load(made) == fitted(first, 2 * HOUR_MS, 5 * DAY_MS)
        assert "Nothing was begun; the plan is in" in shown.stdout

        well(run(broker, "start", file, "--ignore-refusals"))
        with RelayProcess(broker, wide, tmp_path, kind="shadow") as service:
            assert str(service.plan_file) == file
            service.await_ready()
            eventually(lambda: service.told("shadow_caught_up"), 60)
            assert on.gaps() >= ROUNDS - 1
            status = run(broker, "status", file)
            assert status.returncode == 3, status.stderr
            assert "--dry-run" not in status.stdout, "one excess, one remedy"
            Path(file).write_text("# written by hand\n" + Path(file).read_text())
            done = well(as_printed(broker, status.stdout))
            narrow = Plan.load(file)
            assert Path(file).read_text().startswith("# written by hand\n")
            assert "revision = 2, [tiered] window = " in done.stdout
            assert "Each shadow run that reads this file follows it" in done.stdout
            # The longest window that leaves room: the next one, 3 h, would let the timers of 3 h stay.
            assert isinstance(narrow.scheme, Tiered)
            assert (narrow.scheme.window_ms, narrow.revision) == (2 * HOUR_MS, 2)
            service.hang_up()
            eventually(lambda: on.gaps() <= 1, 60, message="what was let stay is taken up")
            assert run(broker, "status", file).returncode == 0
            assert run(broker, "verify", file).returncode == 0


def test_where_no_window_would_do_it_says_why_in_figures(broker: LocalPulsar, tmp_path: Path) -> None:
    with ShadowStage(broker, plan()) as on:
        filled(on, 90_000)
        found = run(broker, "start", saved(on.plan, tmp_path))
        assert found.returncode == 3, found.stderr
        told = " ".join(found.stdout.split())
        assert re.search(rf"No window would do: of {ROUNDS} pending entries {ROUNDS} are due within 3m, or", told), told
        assert "give the topic more partitions; or" in told
        unfit = run(broker, "start", on.plan.due_topic, "--out", str(tmp_path / "made.toml"), "--yes")
        assert unfit.returncode == 3, unfit.stderr
        assert "No window would do" in " ".join(unfit.stdout.split())
        assert "Nothing was begun; the plan is in" in unfit.stdout
        assert on.admin.topics.stats(on.parts()[0]).subscriptions[BUSINESS].gap_count >= ROUNDS - 1
        assert MINUTE_MS + 2 * on.plan.guard_ms == 3 * MINUTE_MS
