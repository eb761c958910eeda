"""Live plans on a real broker, checked: their gaps beside what the broker counts, and what has changed since."""

from __future__ import annotations

import datetime as dt
import json
import random
import shlex
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pulsar
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from tests.broker.due_topic import Handled, now_ms, running
from tests.broker.relay_stage import Stage, plan_of
from tests.broker.shadow_stage import PlainConsumer
from tests.support.command_line import timewheel
from tests.support.own_broker import own_broker
from timewheel.broker.admin.client import AdminClient
from timewheel.cli.app import app
from timewheel.consumers import DelayedConsumer
from timewheel.core.names import partition_topic
from timewheel.core.plan import Calendar, Native, Plan
from timewheel.core.planfile import load_plan, save_plan
from timewheel.errors import NothingToSample, NotOfThisPlan
from timewheel.inspect.profile import profile_of
from timewheel.producers import DelayedProducer
from timewheel.provision.provisioning import ensure
from timewheel.spark_planner.choice import choose
from timewheel.spark_planner.choice.candidates import candidate_plans
from timewheel.spark_planner.summary.cells import Cells
from timewheel.spark_planner.summary.statistic import Statistic
from timewheel.testing import eventually
from timewheel.watch import Checked, Level, append_check, check

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from timewheel.testing import Broker

SUBSCRIPTION = "billing"
SEED = 11
PER_SECOND = 250
LONGEST_MS = 12_000
GAP_LIMIT = 777  # of the broker of `live`: so few that some hundred timers a second come near it
TICK_MS = 250
WEEK_MS = 7 * 86_400_000


def mixed_delay_ms(source: random.Random) -> int:
    """A half uniform, a quarter soon, a quarter at two fixed delays."""
    match source.randrange(8):
        case 0 | 1 | 2 | 3:
            return source.randrange(LONGEST_MS)
        case 4 | 5:
            return min(int(source.expovariate(5 / LONGEST_MS)), LONGEST_MS)
        case 6:
            return LONGEST_MS // 5
        case _:
            return LONGEST_MS * 3 // 5


@dataclass(frozen=True, slots=True)
class Live:
    """A due topic under native delays: sent to at an even pace, consumed as it comes due, until the tests are done."""

    broker: Broker
    admin: AdminClient
    plan: Plan
    sends: list[tuple[int, int]]

    def checked(self, **options: Any) -> Checked:
        return check(self.admin, self.plan, profile_of(self.admin), **options)

    def file(self, folder: Path) -> str:
        save_plan(self.plan, folder / "plan.toml")
        return str(folder / "plan.toml")


def produce(client: Any, plan: Plan, sends: list[tuple[int, int]], ended: threading.Event) -> None:
    source = random.Random(SEED)
    producers = [
        client.create_producer(partition_topic(plan.due_topic, part), batching_enabled=False)
        for part in range(plan.partitions)
    ]
    begun = time.monotonic()
    number = 0
    while not ended.wait(max(number / PER_SECOND - (time.monotonic() - begun), 0)):
        sent_ms = now_ms()
        due_ms = sent_ms + mixed_delay_ms(source)
        producers[number % plan.partitions].send_async(b"x", None, deliver_at=due_ms)
        sends.append((sent_ms, due_ms))
        number += 1
    for producer in producers:
        producer.flush()
        producer.close()


def native_plan(**changes: Any) -> Plan:
    return replace(
        Plan(
            due_topic=f"persistent://public/default/check-{uuid.uuid4().hex[:8]}",
            subscriptions=(SUBSCRIPTION,),
            scheme=Native(),
            partitions=2,
            max_delay_ms=LONGEST_MS,
            guard_ms=500,
            tick_ms=TICK_MS,
        ),
        **changes,
    )


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    config = {"managedLedgerMaxUnackedRangesToPersist": str(GAP_LIMIT), "delayedDeliveryTickTimeMillis": str(TICK_MS)}
    plan, ended = native_plan(), threading.Event()
    sends: list[tuple[int, int]] = []
    with own_broker(config) as broker, AdminClient(broker.admin_url) as admin:
        client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        ensure(admin, plan, now_ms=now_ms())
        consumer = PlainConsumer(client, plan.due_topic, SUBSCRIPTION)
        thread = threading.Thread(target=produce, args=(client, plan, sends, ended))
        thread.start()
        try:
            # Until it is full.
            eventually(lambda: bool(sends) and sends[-1][0] - sends[0][0] > LONGEST_MS, 60)
            yield Live(broker, admin, plan, sends)
        finally:
            ended.set()
            thread.join(30)
            consumer.close()
            client.close()


def law(sends: list[tuple[int, int]], per_second: float) -> float:
    """Rate times half the mean difference of two delays."""
    delays = np.sort([due - sent for sent, due in sends]).astype(float)
    count = len(delays)
    half = float((delays * (2 * np.arange(count) - count + 1)).sum()) / count / (count - 1)
    return per_second * half / 1_000


@pytest.mark.short
def test_what_a_native_topic_should_hold_is_what_the_broker_counts(live: Live) -> None:
    found = live.checked()

    (whole,) = found.wholes
    assert whole.agrees, whole
    assert whole.counted > 300
    assert whole.predicted == pytest.approx(whole.counted, rel=0.15), "a tick is a fiftieth of the longest delay"
    assert found.sample.in_due.scale == 1
    assert found.sends.per_second == pytest.approx(PER_SECOND, rel=0.1)
    # All that was sent is still there: nothing is missing, and short delays are not rarer than they were sent.
    until = found.sample.at_ms
    sent = sorted(due - sent for sent, due in live.sends if found.sends.from_ms <= sent < until - 1_000)
    seen = sorted(timer.due_ms - timer.stored_ms for timer in found.sends.timers if timer.stored_ms < until - 1_000)
    assert len(seen) == pytest.approx(len(sent), abs=PER_SECOND / 20)
    assert seen[len(seen) // 2] == pytest.approx(sent[len(sent) // 2], rel=0.05)
    assert found.expected is not None
    assert found.expected.evaluation.peak_gaps == pytest.approx(law(live.sends, PER_SECOND), rel=0.1)
    assert found.level is Level.FINE, found.findings


def test_a_sample_of_it_says_the_same_within_its_band(live: Live) -> None:
    found = live.checked(samples=1_500)

    (whole,) = found.wholes
    assert found.sample.in_due.scale > 1.5
    assert 0 < whole.error < whole.predicted / 2
    assert whole.agrees, whole
    assert found.sends.per_second == pytest.approx(PER_SECOND, abs=2 * found.sends.per_second_error)


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, arguments)
    return done.exit_code, done.output


def test_a_topic_whose_sends_have_changed_is_told_so(live: Live, tmp_path: Path) -> None:
    """The plan was made for a tenth of the rate, and for delays of up to two seconds."""
    sent_ms = 1_700_000_000_000 + 40 * np.arange(15_000)
    delays_ms = np.random.default_rng(SEED).integers(0, 2_000, len(sent_ms))
    stat = tmp_path / "stat.parquet"
    Statistic(cells={live.plan.due_topic: Cells.of_timers(sent_ms, sent_ms + delays_ms)}).save(stat)
    command = ["plan", "check", live.file(tmp_path), "--broker", live.broker.admin_url, "--samples", "1500"]

    status, said = run(*command, "--stat", str(stat))

    assert status == 3, said
    assert "The plan needs attention" in said
    assert "timers are sent a second, against 25 by the statistic" in said
    assert "delays differ from those of the statistic" in said
    status, said = run(*command, "--stat", str(stat), "--json")
    facts = json.loads(said[said.index("{\n") :])
    assert (status, facts["level"]) == (3, "attention")
    assert {finding["name"] for finding in facts["findings"]} >= {"rate", "delays"}
    assert facts["drift"]["rate"] == pytest.approx(PER_SECOND / 25, rel=0.15)
    assert facts["drift"]["moved"] > 0.3


def some_candidates(*arguments: Any) -> tuple[Plan, ...]:
    """Every twelfth: more are priced in tests/planner/test_cli_plan.py."""
    return candidate_plans(*arguments)[::12]


@pytest.mark.short
def test_growth_over_logged_checks_gives_the_date_and_the_change(
    live: Live, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fifth more a week, over five weeks."""
    assert SparkSession.getActiveSession() is spark, "the command takes the one that is there"
    monkeypatch.setattr(choose, "candidate_plans", some_candidates)
    log = tmp_path / "checks.jsonl"
    now = live.checked(samples=1_500).line()
    assert now.per_second is not None
    assert now.peak is not None
    for weeks in range(5, 0, -1):
        less = 1.2**-weeks
        append_check(
            log, replace(now, at_ms=now.at_ms - weeks * WEEK_MS, per_second=now.per_second * less, peak=now.peak * less)
        )

    monkeypatch.chdir(tmp_path)
    look = ["plan", "check", live.file(tmp_path), "--broker", live.broker.admin_url, "--samples", "1500"]
    earlier = log.read_text()
    status, said = run(*look, "--log", str(log), "--horizon", "70d")

    assert status == 3, said
    # Up to 80 % of 777 gaps, from what there are now.
    weeks = np.log(0.8 * GAP_LIMIT / now.peak) / np.log(1.2)
    day = dt.datetime.fromtimestamp(now.at_ms / 1_000, dt.UTC) + dt.timedelta(weeks=float(weeks))
    date = said.split("the limit is reached on ")[1]
    told = dt.datetime.strptime(date[:10] + "+0000", "%Y-%m-%d%z")
    assert abs(told - day) < dt.timedelta(days=7), said
    assert "at this growth (+2" in said or "at this growth (+1" in said
    assert "This change keeps every limit at" in said
    assert {"-revision = 1", "+revision = 2"} <= set(said.splitlines()), said  # others may stand between
    assert len(log.read_text().splitlines()) == 6
    # As printed, it is written.
    to_write = next(line for line in said.splitlines() if line.startswith("To write it: "))
    written = tmp_path / "new-plan.toml"
    assert not written.exists()
    log.write_text(earlier)
    command, *words = shlex.split(to_write.partition(": ")[2])
    _, said = run(*words)
    assert command == "timewheel"
    assert f"Written: {written.name}" in said
    changed = load_plan(written)
    grow = f"timewheel topics ensure {written.name} --grow --admin-url {live.broker.admin_url}"
    assert (f"Then raise the partitions: {grow}" in said) is (changed.partitions > live.plan.partitions)
    assert changed.revision == 2
    assert (changed.scheme, changed.partitions) != (live.plan.scheme, live.plan.partitions)
    assert changed.partitions >= live.plan.partitions


def test_what_cannot_be_checked_is_one_clear_line(live: Live, tmp_path: Path) -> None:
    profile = profile_of(live.admin)
    with pytest.raises(NothingToSample, match="there is no such topic"):
        check(live.admin, native_plan(), profile)
    with pytest.raises(NotOfThisPlan, match=f"has no subscription other.*it has {SUBSCRIPTION}"):
        check(live.admin, replace(live.plan, subscriptions=("other",)), profile)
    empty = native_plan()
    ensure(live.admin, empty, now_ms=now_ms())
    with pytest.raises(NothingToSample, match="no topic of the plan stores an entry"):
        check(live.admin, empty, profile)
    broken = tmp_path / "checks.jsonl"
    broken.write_text("no json\n")
    done = timewheel("plan", "check", live.file(tmp_path), "--broker", live.broker.admin_url, "--log", broken)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "checks.jsonl, line 1" in done.stderr
    assert broken.read_text() == "no json\n", "a log that cannot be read is not written on"


@pytest.mark.short
def test_a_tiered_plan_is_seen_whole_though_its_timers_were_moved_on(live: Live) -> None:
    """The relay keeps no send time of what it moves: those are read where they were sent, batches included."""
    source = random.Random(SEED)
    delays = iter(lambda: source.randrange(7_000), -1)
    sent: list[tuple[int, int]] = []
    with Stage(live.broker, plan_of(partitions=2, tick_ms=TICK_MS)) as stage:
        consumer = DelayedConsumer(stage.client, stage.plan, SUBSCRIPTION)
        with running(consumer, Handled()), DelayedProducer(stage.client, stage.plan) as producer:

            def send(delay_ms: int) -> None:
                due_ms = now_ms() + delay_ms
                due_at = dt.datetime.fromtimestamp(due_ms / 1_000, dt.UTC)
                producer.send(b"x", deliver_at=due_at)
                sent.append((now_ms(), due_ms))

            begun = now_ms()
            with ThreadPoolExecutor(8) as pool:
                while now_ms() - begun < 7_000:
                    list(pool.map(send, islice(delays, 40)))
                found = check(stage.admin, stage.plan, profile_of(stage.admin))
    (whole,) = found.wholes
    assert found.expected is not None
    assert any(timer.hops for timer in found.sample.in_due.timers), "some came through a tier"
    assert len(found.sample.in_holding.timers) > found.sample.in_holding.inspected, "some were sent in batches"
    assert found.sends.from_ms < begun + 1_000, "nothing of these seconds is gone"
    # Each timer once, where it was sent, with its whole delay.
    of_window = sorted(due_ms for at_ms, due_ms in sent if at_ms < found.sample.at_ms)
    seen = sorted(timer.due_ms for timer in found.sends.timers)
    assert Counter(seen) <= Counter(due_ms for _, due_ms in sent)
    assert len(seen) == pytest.approx(len(of_window), rel=0.02)
    assert seen[len(seen) // 2] == pytest.approx(of_window[len(of_window) // 2], abs=200)
    assert whole.agrees, whole
    assert found.level is Level.FINE, found.findings


def test_a_calendar_is_seen_in_all_its_topics(live: Live) -> None:
    """Topics of intervals to come may be as young as they like: nothing of theirs can be gone."""
    day_ms = 86_400_000
    plan = native_plan(partitions=1, scheme=Calendar(interval_ms=day_ms), max_delay_ms=5 * day_ms)
    ensure(live.admin, plan, now_ms=now_ms())
    source, sent = random.Random(SEED), []
    client = pulsar.Client(live.broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    with DelayedProducer(client, plan) as producer:
        # One in the running interval first: that one's topic is whole since then.
        for delay_ms in [1, *(source.randrange(4 * day_ms) for _ in range(200))]:
            timer = producer.send(b"x", deliver_after=dt.timedelta(milliseconds=delay_ms))
            sent.append(round(timer.due_at.timestamp() * 1_000))

    found = check(live.admin, plan, profile_of(live.admin))
    client.close()

    assert len(found.sample.due) == 7, "the running interval, five to come, and one more"
    assert sum(bool(part.entries) for topic in found.sample.due for part in topic.parts) == 5
    assert {timer.due_ms for timer in found.sends.timers} <= set(sent)
    assert len(found.sends.timers) == pytest.approx(len(sent), abs=4)
    assert found.fullest.pending == pytest.approx(len(sent), abs=2)
    assert found.level is Level.FINE, found.findings
