"""A sample says how much it stands for, and the planner's commands take it so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from examples.history.make_renewals import PATH
from timewheel.cli.app import app
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.ops.sample import Sample, SampledEntry
from timewheel.ops.sample_figures import figures_of
from timewheel.ops.sample_file import NOTE, write_sample
from timewheel.spark_planner.history.sampled import SAMPLE_NOTE, sample_note

TOPIC = "persistent://acme/crm/reminders"
START_MS = 1_800_000_000_000
ROWS = 400
POPULATION = 80_000
SCALE = 200
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
    write_sample(taken, figures_of(taken), path)
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
    assert f"SAMPLE  400 of 80,000 entries of {TOPIC}: taken as all of them (--growth 200)\n" in done.stderr
    assert "at 200 times this volume" in done.stderr


def test_an_explicit_growth_wins_and_is_told_in_volumes_of_the_topic(predict: Any, file: Path) -> None:
    done = predict(file, "--growth", "3")

    assert json.loads(done.stdout)["growth"] == 3
    assert "--growth 3 is 0.015 times the topic's volume (--growth 200 is all of it)" in done.stderr


def test_another_history_is_taken_as_it_is(predict: Any, folder: Path) -> None:
    rows = [f"{START_MS + number},{START_MS + number + HOUR_MS}" for number in range(50)]
    path = folder / "plain.csv"
    path.write_text("\n".join(["publish_ms,due_ms", *rows]))

    done = predict(path)

    found = json.loads(done.stdout)
    (plan,) = found["plans"].values()
    assert found["growth"] == 1
    assert plan["predicted_at_growth"] == plan["predicted"]
    assert "SAMPLE" not in done.stderr
