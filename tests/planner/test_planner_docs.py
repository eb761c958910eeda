"""The pages on planning: their code runs, their profile is one, and their options are those of the commands."""

from __future__ import annotations

import datetime as dt
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from markdown_it import MarkdownIt
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from tests.support.checkout import ROOT
from timewheel.cli.app import app
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS, MINUTE_MS

START_MS = int(dt.datetime(2026, 1, 5, tzinfo=dt.UTC).timestamp() * 1_000)
PAGE = (ROOT / "docs" / "how-to" / "choose-a-plan.md").read_text(encoding="utf-8")
IN_SPARK = (ROOT / "docs" / "how-to" / "plan-in-spark.md").read_text(encoding="utf-8")


def block(page: str, language: str) -> str:
    (found,) = [token.content for token in MarkdownIt().parse(page) if token.type == "fence" and token.info == language]
    return found


@pytest.fixture
def _events(spark: SparkSession, tmp_path: Path) -> Iterator[None]:
    """The table that the page reads."""
    # Delays of minutes have few candidates. From 2026-01-05 on, so that the page's filter keeps all of it.
    rng = np.random.default_rng(2)
    sent_ms = np.sort(START_MS + rng.integers(0, DAY_MS, 2_000))
    times = np.array([sent_ms, sent_ms + rng.integers(0, 10 * MINUTE_MS, 2_000)]).T
    spark.sql(f"create database events location '{tmp_path / 'events'}'")
    frame = spark.createDataFrame(times.tolist(), "sent bigint, due bigint")
    frame.selectExpr("timestamp_millis(sent) sent_at", "timestamp_millis(due) due_at").write.saveAsTable(
        "events.reminders"
    )
    yield
    spark.sql("drop database events cascade")


@pytest.mark.short
@pytest.mark.usefixtures("_events")
def test_the_notebook_block_runs_as_it_stands(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    due_topic = 'due_topic = "persistent://acme/crm/reminders"'
    Path("reminders.toml").write_text(f'format = 1\n{due_topic}\nsubscriptions = ["billing"]\n[native]\n')
    names = {"spark": spark}
    exec(compile(block(IN_SPARK, "python"), "docs/how-to/plan-in-spark.md", "exec"), names)
    planned = names["planned"]
    assert planned.history.statistic.timers == 2_000  # type: ignore[attr-defined] # it is what the block makes
    assert "<h2>Why</h2>" in str(names["html"])


def test_the_profile_is_one() -> None:
    profile = BrokerProfile.from_mapping(tomllib.loads(block(PAGE, "toml")))
    assert (profile.gap_limit_ranges, profile.write_quorum, profile.ack_format) == (50_000, 3, "bitmap")


def test_every_option_of_the_page_is_one_of_the_commands() -> None:
    named = set(re.findall(r"--[a-z][a-z-]+", PAGE)) - {"--dry-run"}
    texts = [
        CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
        for command in ("plan", "predict", "compare", "survey")
    ]
    assert named
    assert named <= set(re.findall(r"--[a-z][a-z-]+", texts[0] + texts[-1]))
    # What names columns and units is the same everywhere.
    for option in ("--publish", "--due", "--delay", "--topic", "--time-unit", "--json"):
        assert all(option in text for text in texts)
