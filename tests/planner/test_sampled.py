"""A sample says how much it stands for, and the planner's commands take it so."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from rich.console import Console
from typer.testing import CliRunner, Result

from examples.history.make_renewals import PATH
from tests.support.exact_play import play
from tests.support.plans import plan_of
from tests.support.workloads import WORKLOADS
from timewheel.cli.app import app
from timewheel.cli.planning import as_sampled, growth_of
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.errors import PlanError
from timewheel.core.plan import Native, Plan, Tiered
from timewheel.inspect.sample import NOTE, Sample, SampledEntry, SampledTopic, draw, figures_of, write_sample
from timewheel.spark_planner.choice.constraints import max_countable
from timewheel.spark_planner.history.sampled import SAMPLE_NOTE, SampleNote, sample_note
from timewheel.spark_planner.pricing.evaluate import evaluate
from timewheel.spark_planner.summary.cells import Cells

TOPIC = "persistent://acme/crm/reminders"
START_MS = 1_800_000_000_000
ROWS = 400
POPULATION = 80_000
SCALE = 200
NO_SPARK = {**os.environ, "JAVA_HOME": "/none", "COLUMNS": "500"}  # Spark cannot start there
OF_TOPIC = SampledTopic(
    profile=replace(BrokerProfile.named("4.0"), name="its own", gap_limit_ranges=70, tick_ms=250),
    subscriptions=("billing", "crm"),
)
NATIVE = f'format = 1\ndue_topic = "{TOPIC}"\nsubscriptions = ["billing"]\n[native]\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sampled")


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    """400 entries of 80,000, a minute apart; delays of up to two days, each as frequent."""
    entries = tuple(
        SampledEntry(
            publish_ms=START_MS + number * 60_000,
            due_ms=START_MS + number * 60_000 + (number * 61 % ROWS) * 2 * DAY_MS // ROWS,
            size_bytes=100,
            key=None,
            is_delayed=True,
            is_overdue=False,
            batch_messages=0,
        )
        for number in range(ROWS)
    )
    taken = Sample(
        topic=TOPIC,
        partitions=2,
        population=POPULATION,
        seed=1,
        sampled_at_ms=START_MS + DAY_MS,
        entries=entries,
        unread=0,
    )
    path = folder / "delays.parquet"
    write_sample(taken, figures_of(taken), path, OF_TOPIC, reached_by=["--admin-url", "http://here:1"])
    (folder / "native.toml").write_text(NATIVE)
    return path


@pytest.fixture(scope="module")
def predict(spark: SparkSession, folder: Path) -> Any:
    def command(history: Path, *options: str) -> Result:
        assert SparkSession.getActiveSession() is spark
        arguments = ["predict", str(folder / "native.toml"), str(history), "--json", *options]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        return result

    return command


def test_the_note_is_read_under_the_name_that_it_is_written_under(file: Path) -> None:
    assert SAMPLE_NOTE == NOTE
    for source in (str(file), f"file://{file}"):
        note = sample_note(source)
        assert note is not None
        assert (note.topic, note.rows, note.population, note.scale) == (TOPIC, ROWS, POPULATION, SCALE)
        assert (note.partitions, note.subscriptions, note.shadow) == (2, OF_TOPIC.subscriptions, None)
        assert note.profile == OF_TOPIC.profile
        # Of 400 minutes of sends with delays up to two days, those are left that are due after the first day.
        assert note.native == SCALE * sum(
            60_000 * n + (n * 61 % ROWS) * 2 * DAY_MS // ROWS > DAY_MS for n in range(ROWS)
        )
        assert note.native_until_ms is not None
        assert note.native_until_ms > START_MS + DAY_MS


def test_what_is_no_sample_has_none(file: Path, folder: Path) -> None:
    broken = pq.read_table(file).replace_schema_metadata({SAMPLE_NOTE: b'{"scale": "many"}'})
    pq.write_table(broken, folder / "broken.parquet")
    (folder / "history.csv").write_text("publish_ms,due_ms\n1,2\n")
    others = (PATH, folder, folder / "broken.parquet", folder / "history.csv", folder / "none", "s3a://b/x.parquet")
    assert [sample_note(str(other)) for other in others] == [None] * 6


def test_a_sample_is_predicted_as_its_topic(predict: Any, file: Path) -> None:
    done = predict(file)

    found = json.loads(done.stdout)
    (plan,) = found["plans"].values()
    assert found["growth"] == SCALE
    grown, of_history = plan["predicted_at_growth"], plan["predicted"]
    for name in ("peak_gaps", "peak_pending", "timers", "silence_seconds", "timers_per_day"):
        assert grown[name] == pytest.approx(SCALE * of_history[name], rel=1e-6), name
    assert grown["peak_gaps"] > 1_000
    assert plan["counted"]["entries"] == of_history["timers"] == ROWS
    assert f"SAMPLE  400 of 80,000 entries of {TOPIC}: scaled to all of them (--growth 200)\n" in done.stderr
    assert "at 200 times this volume" in done.stderr


def test_an_explicit_growth_wins_and_is_told_in_volumes_of_the_topic(predict: Any, file: Path) -> None:
    done = predict(file, "--growth", "3")

    assert json.loads(done.stdout)["growth"] == 3
    assert "--growth 3 is 0.015 times the topic's volume (--growth 200 is its volume)" in done.stderr


# --- a plan is for the topic that was sampled


@pytest.fixture(scope="module")
def plan(spark: SparkSession, folder: Path) -> Any:
    def command(history: Path, *options: str) -> tuple[str, Plan, dict[str, Any]]:
        assert SparkSession.getActiveSession() is spark
        out = folder / "plan.toml"
        result = CliRunner().invoke(app, ["plan", str(history), "-o", str(out), "--json", *options])
        assert result.exit_code in (0, 1), result.output
        return result.stderr, Plan.load(out), json.loads(result.stdout)

    return command


@pytest.mark.short
def test_a_plan_takes_the_topics_own_limit_tick_partitions_and_subscriptions(plan: Any, file: Path) -> None:
    said, made, facts = plan(file)

    assert facts["profile"]["gap_limit_ranges"] == 70
    assert facts["constraints"]["partitions_min"] == 2, "partitions cannot be taken away"
    assert made.partitions >= 2
    assert (made.due_topic, made.subscriptions, made.tick_ms) == (TOPIC, ("billing", "crm"), 250)
    assert "Assumed" not in said
    assert f"FIRST   {TOPIC} holds about " in said
    assert f"shadow  timewheel shadow start {TOPIC} -o shadow.toml --dry-run --admin-url http://here:1\n" in said
    (new,) = re.findall(r"^new     timewheel (.*)$", said, re.MULTILINE)
    words = shlex.split(new)
    assert words[:2] == ["plan", str(file)]
    assert words[words.index("--due-topic") + 1] == f"{TOPIC}-timers"
    (out,) = (Path(after) for word, after in pairwise(words) if word in ("-o", "--out"))
    assert out.name == "plan-timers.toml", "the plan that was just written stays"
    assert "--report" not in words

    said, _, _ = plan(file, "--report", str(out.with_name("why.html")))
    (new,) = re.findall(r"^new     timewheel (.*)$", said, re.MULTILINE)
    assert shlex.split(new)[shlex.split(new).index("--report") + 1] == str(out.with_name("why-timers.html"))


def test_an_option_counts_for_more_than_the_sample(plan: Any, file: Path) -> None:
    said, made, facts = plan(file, "--due-topic", f"{TOPIC}-new", "--subscription", "other", "--profile", "4.2")

    assert facts["profile"] == {**facts["profile"], "name": "4.2", "gap_limit_ranges": 10_000, "tick_ms": 1_000}
    assert facts["constraints"]["partitions_min"] == 1, "a new topic may have any number"
    assert (made.due_topic, made.subscriptions, made.tick_ms) == (f"{TOPIC}-new", ("other",), 1_000)
    assert "FIRST" not in said


def test_a_survey_refuses_a_sample_before_spark_starts_and_names_the_command(file: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "timewheel", "survey", str(file), "--out", str(folder / "survey")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=NO_SPARK)
    assert done.returncode == 2
    assert f"timewheel plan {file} -o plan.toml" in " ".join(done.stderr.replace("│", " ").split())


def test_a_name_that_no_plan_takes_is_refused_before_the_history_is_read() -> None:
    note = SampleNote(topic=TOPIC, rows=1, population=1, scale=1.0, subscriptions=("billing", ".."))
    with pytest.raises(PlanError, match="subscriptions"):
        as_sampled(note, None, None, unpartitioned=False)
    assert as_sampled(note, None, ["audit"], unpartitioned=False)[0] == ["audit"]


def test_a_sample_of_every_entry_is_no_part_taken_as_all() -> None:
    console = Console(file=StringIO(), width=200)
    note = SampleNote(topic=TOPIC, rows=7_000, population=7_000, scale=1.0)
    assert growth_of(None, note, console) == 1.0
    assert console.file.getvalue() == f"SAMPLE  all 7,000 entries of {TOPIC}\n"  # type: ignore[attr-defined] # a StringIO


# A sample of a topic as a history: read without an option, and priced by its scale as the whole topic would be.
PROFILE = BrokerProfile.named("4.0")
ENTRIES = 200_000
SAMPLES = 10_000


NATIVE_PLAN = plan_of(Native())
TIERED_PLAN = plan_of(Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS, DAY_MS, 5 * DAY_MS)))


def sampled(name: str) -> tuple[Cells, Sample]:
    """The whole of a workload, and what `timewheel sample` would have of it."""
    sent_ms, due_ms = WORKLOADS[name](np.random.default_rng(5), ENTRIES, 10)
    entries = tuple(
        SampledEntry(
            publish_ms=int(sent_ms[number]),
            due_ms=int(due_ms[number]),
            size_bytes=250,
            key=f"key-{number}",
            is_delayed=True,
            is_overdue=False,
            batch_messages=0,
        )
        for number in sorted(draw(ENTRIES, SAMPLES, 0))
    )
    taken = Sample(topic=TOPIC, partitions=4, population=ENTRIES, seed=0, sampled_at_ms=0, entries=entries, unread=0)
    return Cells.of_timers(sent_ms, due_ms, np.full(len(sent_ms), 250)), taken


def cells_of(taken: Sample) -> Cells:
    publish_ms, due_ms, size_bytes = (
        np.array([getattr(entry, name) for entry in taken.entries]) for name in ("publish_ms", "due_ms", "size_bytes")
    )
    return Cells.of_timers(publish_ms, due_ms, size_bytes)


@pytest.mark.parametrize("name", ["mixture", "fixed 1h, 1d, 5d", "campaign", "seasons", "full hours"])
def test_grown_by_its_scale_a_sample_is_priced_as_the_topic(name: str) -> None:
    whole, taken = sampled(name)
    few, growth = cells_of(taken), taken.scale

    for plan in (NATIVE_PLAN, TIERED_PLAN):
        truth = evaluate(plan, whole.bounded(100_000), PROFILE)
        found = evaluate(plan, few.bounded(100_000), PROFILE, growth=growth)
        # A peak of n entries stands on n / scale of the sample, whose chance of a few roots makes the highest moment
        # higher: the error grows as the peak shrinks, and is to the safe side.
        for real, priced in ((truth.peak_gaps, found.peak_gaps), (truth.peak_pending, found.peak_pending)):
            assert real * 0.95 <= priced <= real + 4 * math.sqrt(real * growth) + growth
        assert found.hops_mean == pytest.approx(truth.hops_mean, abs=0.05)


def test_what_is_counted_on_a_sample_bears_out_what_the_topic_does() -> None:
    sent_ms, due_ms = WORKLOADS["mixture"](np.random.default_rng(5), ENTRIES, 10)
    allowed = play(NATIVE_PLAN, sent_ms, due_ms).peak()
    peaks = []
    for seed in range(20):
        few = sorted(draw(ENTRIES, 2_000, seed))
        peaks.append(play(NATIVE_PLAN, sent_ms[few], due_ms[few]).peak())

    # About 67 by the law, and some roots of that above it: a hundred times as much is more than the topic's own peak.
    assert sum(100 * counted > allowed for counted in peaks) > 10
    assert max(peaks) <= max_countable(allowed, 100)
    assert min(peaks) > max_countable(allowed / 2, 100)


@pytest.mark.parametrize(
    ("allowed", "growth", "most"),
    [
        (8_000, 1, 8_000),  # the whole is held to the limit as it is
        (240, 1, 240),
        (8_000, 1.5, 5_379),  # 7,693 and 3.5 roots of it are 8,000: so 5,129 and 3.5 roots of that; its share is 5,333
        (8_000, 2, 4_063),
        (8_000, 100, 107),
        (8_000, 2_000, 10),  # a mean of 4: hardly more than no limit at all, and the law has the say
        (8_000, 0.5, 15_820),  # of a smaller volume the count is more certain: 16,000 would be too many
    ],
)
def test_what_may_be_counted_on_a_history_for_so_many_times_its_volume(allowed: int, growth: float, most: int) -> None:
    assert max_countable(allowed, growth) == most


@pytest.mark.parametrize("allowed", [240, 8_000, 40_000])
def test_more_volume_never_allows_for_a_greater_count(allowed: int) -> None:
    counts = [max_countable(allowed, growth) for growth in (1, 1.01, 2, 10, 100, 1_000, 10_000)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == allowed
    # Chance is never taken for the whole of it: of twice what is allowed some count is refused.
    assert all(
        max_countable(2 * allowed, growth) > most for growth, most in zip((1, 1.01, 2, 10), counts, strict=False)
    )


def test_the_laws_figure_is_that_of_a_steady_topic_and_says_nothing_of_the_clock() -> None:
    whole, taken = sampled("fixed 1h, 1d, 5d")
    figures = figures_of(taken)
    # Three delays, a third each: F (1 - F) is 2/9 from 1 h to 5 d. The history has 10 days of sending.
    law = ENTRIES / (10 * DAY_MS) * (5 * DAY_MS - HOUR_MS) * 2 / 9
    assert figures.law_gaps == pytest.approx(law, rel=0.02)
    assert evaluate(NATIVE_PLAN, whole.bounded(100_000), PROFILE).peak_gaps == pytest.approx(law, rel=0.02)

    assert figures.law_gaps is not None
    assert figures.law_gaps_error is not None
    assert abs(figures.law_gaps - law) <= 1.5 * figures.law_gaps_error
    _, on_the_clock = sampled("09:00 next day")
    # Delays are even over a day, for which the law says a sixth; all of a day are due at once, so there are none.
    assert figures_of(on_the_clock).law_gaps == pytest.approx(ENTRIES / 10 / 6, rel=0.02)
