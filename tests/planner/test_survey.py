"""A survey: what is kept of a history by day, and the plans that are made from it without the history."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from tests.planner.test_job import CANDIDATES as JOB_CANDIDATES
from tests.support.dependent import DEPENDENT
from timewheel.cli.app import app
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.plan import Native, Plan
from timewheel.spark_planner.errors import DaysAlreadyStored, StatisticUnreadable
from timewheel.spark_planner.estimating import estimate
from timewheel.spark_planner.history.keys import KeyShares
from timewheel.spark_planner.job import survey
from timewheel.spark_planner.results.facts import estimated_verdict
from timewheel.spark_planner.summary.cells import Cells
from timewheel.spark_planner.summary.statistic import Statistic
from timewheel.spark_planner.summary.survey import (
    FINEST_STEP_MS,
    DailyGaps,
    Survey,
    add_survey,
    day_name,
    drop_days_before,
    load_survey,
    stored_days,
)

Integers = NDArray[np.int64]
START_MS = 1_767_571_200_000
FIRST_DAY = START_MS // DAY_MS
BASE = Plan(due_topic="persistent://acme/crm/reminders", subscriptions=("billing",), max_delay_ms=10 * DAY_MS)
CANDIDATES = [replace(BASE, scheme=plan.scheme) for plan in JOB_CANDIDATES]


def of_sends(sent_ms: Integers, due_ms: Integers, topic: str = "", keys: KeyShares | None = None) -> Survey:
    return Survey(
        statistic=Statistic(cells={topic: Cells.of_timers(sent_ms, due_ms)}),
        gaps={topic: DailyGaps.of_sends(sent_ms, due_ms, FINEST_STEP_MS)},
        keys={topic: keys or KeyShares(len(sent_ms), ())},
    )


def independent(timers: int, days: int, seed: int = 5) -> tuple[Integers, Integers]:
    rng = np.random.default_rng(seed)
    sent_ms = np.sort(rng.integers(0, days * DAY_MS, timers)) + START_MS
    return sent_ms, sent_ms + rng.integers(MINUTE_MS, DAY_MS, timers)


def assert_same(one: Survey, other: Survey) -> None:
    assert list(one.statistic.cells) == list(other.statistic.cells)
    for topic, cells in one.statistic.cells.items():
        theirs = other.statistic.cells[topic]
        assert cells.level == theirs.level
        for mine, their in zip(cells.facts(), theirs.facts(), strict=True):
            np.testing.assert_array_equal(mine, their)
        for name in ("day", "moment", "change"):
            np.testing.assert_array_equal(getattr(one.gaps[topic], name), getattr(other.gaps[topic], name))
    assert dict(one.statistic.quarantined) == dict(other.statistic.quarantined)
    assert dict(one.keys) == dict(other.keys)


def test_its_days_together_are_the_whole() -> None:
    sent_ms, due_ms = independent(20_000, 5)
    whole = of_sends(sent_ms, due_ms)
    whole = replace(whole, statistic=replace(whole.statistic, quarantined={"no_due": 3}, samples={"no_due": ("{}",)}))
    days = whole.by_day()
    assert list(days) == [FIRST_DAY + day for day in range(5)] == whole.days
    assert [dict(day.statistic.quarantined) for day in days.values()] == [{}, {}, {}, {}, {"no_due": 3}]
    assert_same(Survey.merged(days.values()), whole)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    keys = KeyShares(9_000, (("tenant-1", 900),))
    one = of_sends(*independent(9_000, 3), topic="a", keys=keys)
    both = Survey.merged([one, of_sends(*independent(4_000, 2, seed=6), topic="b")])
    written = add_survey(both, tmp_path / "stat")
    assert written == [FIRST_DAY, FIRST_DAY + 1, FIRST_DAY + 2]
    found = load_survey(tmp_path / "stat")
    assert_same(replace(found, keys={}), replace(both, keys={}))
    (heavy,) = found.keys["a"].heavy
    assert heavy[0] == "tenant-1"
    assert abs(heavy[1] - 900) <= 3  # each day has its share, in whole timers


def test_a_day_is_added_made_anew_and_taken_away(tmp_path: Path) -> None:
    folder = tmp_path / "stat"
    sent_ms, due_ms = independent(12_000, 4)
    cut = int(np.searchsorted(sent_ms, START_MS + 3 * DAY_MS))
    three, fourth = of_sends(sent_ms[:cut], due_ms[:cut]), of_sends(sent_ms[cut:], due_ms[cut:])
    add_survey(three, folder)
    add_survey(fourth, folder)
    whole = load_survey(folder)
    assert whole.statistic.timers == 12_000
    # Only between the two surveys a pair of neighbours was seen by neither.
    assert abs(whole.gaps[""].peak - of_sends(sent_ms, due_ms).gaps[""].peak) <= 1
    with pytest.raises(DaysAlreadyStored, match=r"2026-01-08.*--replace.*--add"):
        add_survey(fourth, folder)
    assert_same(load_survey(folder), whole)
    add_survey(fourth, folder, "replace")
    assert_same(load_survey(folder), whole)
    add_survey(fourth, folder, "add")
    assert load_survey(folder).statistic.timers == 12_000 + fourth.statistic.timers
    assert [day_name(day) for day in drop_days_before(folder, FIRST_DAY + 3)] == [
        "2026-01-05",
        "2026-01-06",
        "2026-01-07",
    ]
    assert list(stored_days(folder)) == [FIRST_DAY + 3]
    assert sorted(path.name for path in folder.iterdir()) == ["2026-01-08.cells.parquet", "2026-01-08.gaps.parquet"]


def test_what_is_no_survey_is_named(tmp_path: Path) -> None:
    with pytest.raises(StatisticUnreadable, match="no day of a survey in it"):
        load_survey(tmp_path)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "2026-01-05.cells.parquet")
    with pytest.raises(StatisticUnreadable, match=r"2026-01-05\.cells\.parquet: no day of a survey"):
        load_survey(tmp_path)


def with_limit(ranges: int) -> BrokerProfile:
    return BrokerProfile.from_mapping({"base": "4.0", "name": "small", "gap_limit_ranges": ranges})


@pytest.mark.parametrize("name", DEPENDENT)
def test_nobody_is_told_to_migrate_whom_the_count_lets_stay(name: str) -> None:
    found = of_sends(*DEPENDENT[name](np.random.default_rng(21), 24_000))
    profile = with_limit(max(int(1.3 * found.gaps[""].peak / 0.8), 60))
    answer = estimate(found, "", BASE, profile, candidates=CANDIDATES, as_is=True)
    assert (answer.plan.scheme, answer.plan.partitions) == (Native(), 1)
    assert answer.keeps_limits
    assert "counted" in estimated_verdict(answer)


@pytest.mark.parametrize("name", DEPENDENT)
def test_estimates_decide_only_where_delays_are_independent(name: str) -> None:
    found = of_sends(*DEPENDENT[name](np.random.default_rng(21), 24_000))
    peak = found.gaps[""].peak
    profile = with_limit(max(int(0.3 * peak / 0.8), 4))
    answer = estimate(found, "", BASE, profile, candidates=CANDIDATES, as_is=True)
    if isinstance(answer.plan.scheme, Native):
        assert answer.is_certain
    else:
        assert answer.is_certain == answer.native.independent
        assert ("NOT DECIDED" in estimated_verdict(answer)) != answer.is_certain


def test_independent_delays_are_decided_as_with_the_history() -> None:
    found = of_sends(*independent(40_000, 6))
    assert found.gaps[""].peak > 900
    answer = estimate(found, "", BASE, with_limit(400), candidates=CANDIDATES, as_is=True)
    assert answer.native.ratio == pytest.approx(1, abs=0.03)
    assert answer.keeps_limits
    assert (answer.plan.scheme, answer.plan.partitions) != (Native(), 1)


@pytest.mark.short
def test_a_survey_that_is_too_short_is_continued() -> None:
    rng = np.random.default_rng(8)
    sent_ms = np.sort(rng.integers(0, 7 * DAY_MS, 28_000)) + START_MS
    found = of_sends(sent_ms, sent_ms + rng.integers(0, 30 * DAY_MS, 28_000))
    base = replace(BASE, max_delay_ms=40 * DAY_MS)
    answer = estimate(found, "", base, BrokerProfile.named("4.0"), max_delay_ms=40 * DAY_MS)
    assert answer.continued.continuation is not None
    # 4,000 a day, uniform over 30 days, hold 20,000 gaps once the topic is full.
    assert answer.native.peak == pytest.approx(20_300, rel=0.05)
    assert answer.native.counted < 7_500
    assert "about 20," in estimated_verdict(answer) or "about 19," in estimated_verdict(answer)
    assert (answer.plan.scheme, answer.plan.partitions) != (Native(), 1)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("survey")
    parts = []
    for number, (topic, kind) in enumerate({"a": "a delay that drifts", "b": "timers that beget timers"}.items()):
        sent_ms, due_ms = DEPENDENT[kind](np.random.default_rng(number), 20_000)
        parts.append(pa.table({"topic": [topic] * len(sent_ms), "publish_ms": sent_ms, "due_ms": due_ms}))
    path = folder / "fleet.parquet"
    pq.write_table(pa.concat_tables(parts).sort_by("publish_ms"), path)
    return path


def test_spark_keeps_what_a_brute_force_counts(spark: SparkSession, fleet: Path) -> None:
    history = survey(spark.read.parquet(str(fleet)))
    found = history.survey()
    history.cached.forget()
    assert list(found.gaps) == ["a", "b"]
    for topic, own in found.gaps.items():
        rows = pq.read_table(fleet).filter(pc.field("topic") == topic)
        sent_ms, due_ms = (np.asarray(rows[name]) for name in ("publish_ms", "due_ms"))
        straight = DailyGaps.of_sends(sent_ms, due_ms, own.step_ms)
        assert own.step_ms < 10 * MINUTE_MS
        assert abs(own.peak - straight.peak) <= 2
    assert found.keys["a"].timers == 20_000


def test_the_commands_answer_from_a_folder(fleet: Path, tmp_path: Path, spark: SparkSession) -> None:
    del spark  # the command takes the session that there is
    runner, stat, plan_file = CliRunner(), tmp_path / "stat", tmp_path / "plan.toml"
    cached = runner.invoke(app, ["survey", str(fleet), "-o", str(stat), "--json"])
    assert cached.exit_code == 0, cached.output
    facts = json.loads(cached.stdout)
    assert facts["timers"] == 2 * 20_000 - 20_000 % 6
    assert len(facts["days_written"]) == len(stored_days(stat)) >= 3
    assert all(len(cells) > 500 for cells in load_survey(stat).statistic.cells.values()), "fine enough to price a plan"
    assert "next    timewheel plan --from" in cached.stderr

    again = runner.invoke(app, ["survey", str(fleet), "-o", str(stat)])
    assert isinstance(again.exception, DaysAlreadyStored)

    unnamed = runner.invoke(app, ["plan", "--from", str(stat)])
    assert unnamed.exit_code == 2
    assert "2 topics" in unnamed.output

    told = runner.invoke(app, ["plan", "--from", str(stat), "--topic", "a", "-o", str(plan_file), "--as-is", "--json"])
    assert told.exit_code == 0, told.output
    answer = json.loads(told.stdout)
    assert answer["keeps_limits"]
    assert answer["native_gaps"]["counted"] == facts["topics"]["a"]["native_peak_gaps"]
    assert Plan.load(plan_file).scheme == Native()

    predicted = runner.invoke(app, ["predict", str(plan_file), "--from", str(stat), "--topic", "a", "--json"])
    assert predicted.exit_code == 0, predicted.output
    assert json.loads(predicted.stdout)["native_ratio"] < 0.5
    assert "Count them" in predicted.stderr
    compared = runner.invoke(app, ["compare", str(plan_file), str(plan_file), "--from", str(stat), "--topic", "b"])
    assert compared.exit_code == 0, compared.output


def test_a_history_without_a_gap_has_a_survey(tmp_path: Path, spark: SparkSession) -> None:
    rows = [(START_MS + 1_000 * number, START_MS + 1_000 * number + HOUR_MS) for number in range(100)]
    history = survey(spark.createDataFrame(rows, "publish_ms bigint, due_ms bigint"))
    add_survey(history.survey(), tmp_path / "stat")
    assert load_survey(tmp_path / "stat").statistic.timers == 100
    assert load_survey(tmp_path / "stat").gaps.get("", DailyGaps.none()).peak == 0


def test_a_burst_without_room_gets_the_command_that_makes_room(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    sent_ms = np.sort(rng.integers(0, HOUR_MS, 4_000)) + START_MS
    burst = of_sends(sent_ms, sent_ms + rng.integers(HOUR_MS, 12 * HOUR_MS, 4_000))
    add_survey(burst, tmp_path / "stat")
    profile, plan_file = tmp_path / "broker.toml", tmp_path / "plan.toml"
    profile.write_text(f"gap_limit_ranges = {int(burst.gaps[''].peak * 1.6)}\nname = 'small'\n")
    words = ["plan", "--from", str(tmp_path / "stat"), "--profile", str(profile), "-o", str(plan_file)]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 3, told.output
    assert "This history is SHORT, and shows one burst: 1." in " ".join(told.output.split())
    (line,) = (line for line in told.output.splitlines() if line.startswith("room "))
    name, *again = shlex.split(line.removeprefix("room").strip())
    assert name == "timewheel"
    assert again[again.index("--growth") + 1] == "2"
    assert CliRunner().invoke(app, again).exit_code == 0
    near = CliRunner().invoke(app, [*words, "--as-is", "--gap-fraction", "1", "--growth", "1.5"])
    assert near.exit_code == 0, near.output
    assert "above the 80% of it from which gaps are a warning" in " ".join(near.output.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan"], "give a history or a survey"),
        (["plan", "h.parquet", "--from", "."], "not both"),
        (["plan", "--from", ".", "--report", "r.html"], "--report"),
        (["plan", "--from", ".", "--all-topics"], "--all-topics"),
        (["survey", "h.parquet", "-o", "stat", "--add", "--replace"], "not both"),
        (["survey", "h.parquet", "-o", "nowhere/stat"], "no folder nowhere"),
    ],
)
def test_wrong_requests_are_told_at_once(words: list[str], said: str) -> None:
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 2
    assert said in " ".join(found.output.split())
