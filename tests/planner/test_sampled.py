"""A sample says how much it stands for, and the planner's commands take it so."""

from __future__ import annotations

import json
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

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from rich.console import Console
from typer.testing import CliRunner, Result

from examples.history.make_renewals import PATH
from timewheel.cli.app import app
from timewheel.cli.planning import as_sampled, growth_of
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS
from timewheel.core.errors import PlanError
from timewheel.core.plan import Plan
from timewheel.inspect.sample import NOTE, Sample, SampledEntry, SampledTopic, figures_of, write_sample
from timewheel.spark_planner.history.sampled import SAMPLE_NOTE, SampleNote, sample_note

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
