"""The demo's epilogue: the planner on a run's ledger. What a broker did is stood in for by exact counting."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from tests.support.exact_play import play
from tests.support.forgetting import redelivered_exactly
from timewheel.cli.demo import _with_foresight  # pyright: ignore[reportPrivateUsage]
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.planfile import parse_plan
from timewheel.demo.results import BrokerFacts, Files, Result, save
from timewheel.demo.settings import SchemeName, Settings
from timewheel.demo.verdict import Lateness, Measured, Verdict
from timewheel.testing.evidence.ledger import Entry, Totals
from timewheel.testing.evidence.trace import delays_ms, timer_id

START_MS = 1_800_000_000_000
SCHEMES: tuple[SchemeName, ...] = ("native", "tiered-relay", "calendar")
CLEAN = Totals(attempted=0, acknowledged=0, handled=0, lost=0, unexpected=0, duplicated=0, recovered=0)


def played(settings: Settings) -> tuple[list[Entry], np.ndarray, np.ndarray]:
    """The trace sent at an even pace."""
    delays = np.array(delays_ms(messages=settings.messages, span_ms=settings.span_ms, seed=settings.seed))
    sent_ms = START_MS + np.arange(settings.messages) * settings.publish_ms("native") // settings.messages
    due_ms = sent_ms + delays
    entries = [
        Entry(timer=timer_id(number), attempted_ms=int(sent), confirmed_ms=int(sent), due_ms=int(due))
        for number, (sent, due) in enumerate(zip(sent_ms, due_ms, strict=True))
    ]
    return entries, sent_ms, due_ms


@pytest.fixture
def result(tmp_path: Path) -> Result:
    """A run whose measured figures are exact counts of what an ideal broker would have done."""
    settings = Settings(messages=10_000, day_ms=4_000, seed=3, schemes=SCHEMES, out=tmp_path)
    profile = BrokerProfile.from_broker_settings(settings.broker_config(), "4.0.7")
    entries, sent_ms, due_ms = played(settings)
    unload_ms = START_MS + settings.scheme_ms("native") // 2
    forgotten = redelivered_exactly(due_ms <= unload_ms, profile.ledger_max_entries, profile, "ranges")
    rows = [
        Measured(
            scheme=scheme,
            due_peak=play(settings.plan(scheme), sent_ms, due_ms).peak(),
            law_peak=0.0,
            hold=None,
            holding_peak=0,
            in_flight_window=0,
            index_bytes=0,
            entries_written=0,
            hops=0.0,
            redelivered_due=forgotten if scheme == "native" else 0,
            redelivered_holding=0,
            totals=CLEAN,
            early=0,
            late=Lateness(p50_ms=0, p99_ms=0, max_ms=0),
            samples_per_day=10.0,
            topics=1,
        )
        for scheme in SCHEMES
    ]
    facts = BrokerFacts(
        version="4.0.7",
        pid=1,
        service_url="pulsar://x",
        admin_url="http://x",
        config=settings.broker_config(),
        profile=profile,
    )
    found = Result(
        settings=settings,
        broker=facts,
        rows=rows,
        checker_trial={},
        verdict=Verdict(broken=()),
        seconds=1.0,
        started_ms=START_MS,
        unloaded_ms=unload_ms,
        unloads_ms=MappingProxyType(dict.fromkeys(SCHEMES, unload_ms)),
        samples={},
        entries={scheme: [*entries, Entry(timer="never sent")] for scheme in SCHEMES},
    )
    save(found, Files.under(tmp_path))
    return found


@pytest.fixture
def console() -> Console:
    return Console(file=StringIO(), width=200)


def said(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_the_ledger_foretells_what_was_measured_and_it_is_told_and_saved(
    spark: SparkSession, result: Result, console: Console
) -> None:
    assert SparkSession.getActiveSession() is spark
    whole = _with_foresight(console, result)
    found = whole.foresight

    assert found is not None, said(console)
    native, *others = found.rows
    # 10,000 within 6 s and delays of 0 to 120 s: n F (1 - F) is 2,500 at the half, where F (1 - F) is a fourth.
    assert native.measured_peak == pytest.approx(2_500, rel=0.05)
    assert native.predicted_peak == pytest.approx(native.measured_peak, rel=0.03)
    # The broker keeps 250 of them: most of the 5,000 that are done come again.
    assert 3_000 < native.measured_redelivered < 5_000
    assert native.predicted_redelivered == pytest.approx(native.measured_redelivered, rel=0.05)
    for row in others:
        # Chance makes some roots of such a number, and the highest moment is looked for.
        assert abs(row.predicted_peak - row.measured_peak) < 4 * np.sqrt(row.measured_peak), row
        assert (row.predicted_redelivered, row.measured_redelivered) == (0, 0), row
    assert parse_plan(found.plan).max_delay_ms == result.settings.span_ms
    assert found.candidates >= 50
    assert found.verdict.startswith(f"Of {found.candidates} candidates, ")

    (line,) = [line for line in said(console).splitlines() if line.startswith("native, raw client")]
    numbers = (native.predicted_peak, native.measured_peak, native.predicted_redelivered, native.measured_redelivered)
    for number in numbers:
        assert f"{number:,.0f}" in line
    assert "For this trace the planner would choose: Of " in said(console)
    files = Files.under(result.settings.out)
    saved = json.loads(files.results.read_text())["planner"]
    assert saved == json.loads(json.dumps(whole.as_json()["planner"]))
    assert saved["schemes"]["native"]["measured_redelivered"] == native.measured_redelivered
    page = files.report.read_text()
    assert "predicted beside measured" in page
    assert f"{native.predicted_peak:,.0f}" in page


def test_without_the_extra_one_line_says_what_to_install(
    result: Result, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)

    assert _with_foresight(console, result) is result
    assert said(console).split("\n") == [
        "",
        "[  20 s left] the planner predicts the same: starting Spark",
        "No prediction from the ledger: the planner needs pyspark, which this line installs: "
        f"{sys.executable} -m pip install 'pyspark>=4.1'",
        "",
    ]


def test_whatever_fails_in_it_the_result_stands(spark: SparkSession, result: Result, console: Console) -> None:
    assert SparkSession.getActiveSession() is spark
    Files.under(result.settings.out).ledger.unlink()

    assert _with_foresight(console, result) is result
    assert "No prediction from the ledger: HistoryUnreadable: " in said(console)


@pytest.mark.short
def test_a_scheme_that_sent_nothing_is_left_out(spark: SparkSession, result: Result, console: Console) -> None:
    assert SparkSession.getActiveSession() is spark
    silent = replace(result, entries={**result.entries, "calendar": [Entry(timer="never sent")]})
    save(silent, Files.under(result.settings.out))

    found = _with_foresight(console, silent).foresight

    assert found is not None, said(console)
    assert [row.scheme for row in found.rows] == ["native", "tiered-relay"]
