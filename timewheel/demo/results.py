"""From what players and gauges saw to rows, JSON and page. Pure, but for writing the three files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from timewheel.core.gaps import peak
from timewheel.core.plan import Plan
from timewheel.core.profile import BrokerProfile
from timewheel.demo import foresight
from timewheel.demo.foresight import Foresight
from timewheel.demo.sampling import Sample
from timewheel.demo.settings import DAYS, SchemeName, Settings
from timewheel.demo.table import HEADER, LABELS, row_texts, where_we_lose
from timewheel.demo.verdict import Measured, Verdict, lateness
from timewheel.report import GapChart, Mark, Page, Series, Table, gap_chart, render_page
from timewheel.testing.evidence.checker import Totals
from timewheel.testing.evidence.law import predicted_gaps
from timewheel.testing.evidence.ledger import Entry, recount_command, totals, write_ledger
from timewheel.testing.evidence.messages import Done

__all__ = ["BrokerFacts", "Files", "Result", "Seen", "measure", "save"]

CAPTION = (
    "Gap ranges of one subscription, same trace. Dashed: what the broker keeps. Vertical: unload. "
    "What is above the line is delivered twice."
)
GRID_PER_DAY = 20
"""Moments at which the law is evaluated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """The broker of a run: what a reader can check while it runs.

    Args:
        version: Its release.
        pid: Of its process.
        service_url: Of its binary protocol.
        admin_url: Of its web service.
        config: Settings that differ from its defaults.
        profile: What it forgets and pins, by its own word.
    """

    version: str
    pid: int
    service_url: str
    admin_url: str
    config: Mapping[str, str]
    profile: BrokerProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a gauge saw of one scheme."""

    plan: Plan
    samples: Sequence[Sample]
    entries_written: int
    topics: int
    in_flight_window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run, complete.

    Args:
        settings: What was played.
        broker: On what.
        rows: One per scheme.
        checker_trial: Totals of the checker's trial, by its relays' order of publishing and acknowledging.
        verdict: Of it all.
        seconds: From the command to the verdict.
        started_ms: When the first scheme began to publish, UTC milliseconds.
        unloaded_ms: When the unload of all topics began.
        unloads_ms: When each scheme's own topics were unloaded, the middle of it.
        samples: By scheme.
        entries: The ledger's rows by scheme.
        foresight: What the planner makes of the ledger; None: it was not asked.
    """

    settings: Settings
    broker: BrokerFacts
    rows: Sequence[Measured]
    checker_trial: Mapping[str, Totals]
    verdict: Verdict
    seconds: float
    started_ms: int
    unloaded_ms: int
    unloads_ms: Mapping[SchemeName, int]
    samples: Mapping[SchemeName, Sequence[Sample]]
    entries: Mapping[SchemeName, Sequence[Entry]]
    foresight: Foresight | None = None

    def as_json(self) -> dict[str, Any]:
        """Everything but the single timers, as JSON values."""
        settings = asdict(self.settings)
        return {
            "settings": {**settings, "out": str(self.settings.out), "limit": self.settings.limit, "days": DAYS},
            "broker": asdict(self.broker),
            "schemes": {row.scheme: {**asdict(row), "written_multiple": row.written_multiple} for row in self.rows},
            "checker_trial": {name: asdict(found) for name, found in self.checker_trial.items()},
            "kept": self.verdict.kept,
            "broken": list(self.verdict.broken),
            "seconds": round(self.seconds, 1),
            "started_ms": self.started_ms,
            "unloaded_ms": self.unloaded_ms,
            "unloads_ms": dict(self.unloads_ms),
            "planner": None if self.foresight is None else self.foresight.as_json(),
            "samples": {scheme: [asdict(sample) for sample in samples] for scheme, samples in self.samples.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where a run's results lie."""

    results: Path
    ledger: Path
    report: Path

    @classmethod
    def under(cls, folder: Path) -> Files:
        """Their names in a folder."""
        return cls(results=folder / "results.json", ledger=folder / "ledger.csv", report=folder / "report.html")


def measure(settings: Settings, scheme: SchemeName, start_ms: int, seen: Seen, done: Done) -> Measured:
    """One scheme's row.

    Args:
        settings: The run's.
        scheme: Which.
        start_ms: When it began to publish, UTC milliseconds.
        seen: By its gauge.
        done: By its player.
    """
    end_ms = start_ms + settings.scheme_ms
    grid = range(start_ms, end_ms, max(1, settings.day_ms // GRID_PER_DAY))
    sends = [(entry.attempted_ms, entry.due_ms) for entry in done.entries if entry.attempted_ms]
    found = totals(done.entries)
    played = [sample for sample in seen.samples if start_ms <= sample.at_ms <= end_ms]
    return Measured(
        scheme=scheme,
        due_peak=max((sample.due_gaps for sample in seen.samples), default=0),
        law_peak=peak(predicted_gaps(seen.plan, sends, grid, settings.day_ms)),
        hold=("relay" if seen.plan.holds_in_relay else "broker") if seen.plan.needs_relay else None,
        holding_peak=max((sample.holding_gaps for sample in seen.samples), default=0),
        in_flight_window=seen.in_flight_window,
        index_bytes=max((sample.index_bytes for sample in seen.samples), default=0),
        entries_written=seen.entries_written,
        hops=done.hops / max(1, found.handled),
        redelivered_due=done.redelivered_due,
        redelivered_holding=done.redelivered_holding,
        totals=found,
        early=sum(entry.early for entry in done.entries),
        late=lateness(done.lateness_ms),
        samples_per_day=len(played) * settings.day_ms / (end_ms - start_ms),
        topics=seen.topics,
        send_errors=done.errors,
        events=done.events,
        cpu_s=done.cpu_s,
    )


def save(result: Result, files: Files) -> None:
    """Write JSON, ledger and page; their folder exists."""
    files.results.write_text(json.dumps(result.as_json(), indent=1), encoding="utf-8")
    write_ledger(files.ledger, result.entries.items())
    files.report.write_text(_page(result, files), encoding="utf-8")


def _page(result: Result, files: Files) -> str:
    settings, broker = result.settings, result.broker

    def days(at_ms: int) -> float:
        return (at_ms - result.started_ms) / settings.day_ms

    chart = GapChart(
        title="Gap ranges over time, by scheme",
        caption=CAPTION,
        series=[
            Series(
                name=LABELS[scheme],
                points=[(days(one.at_ms), one.due_gaps) for one in samples if one.at_ms >= result.started_ms],
            )
            for scheme, samples in result.samples.items()
        ],
        limit=settings.limit,
        marks=[Mark(at=days(result.unloaded_ms), name="unload of every topic")],
        time_unit=f"days of {settings.day_ms / 1000:g} s",
    )
    promises = "Promises kept" if result.verdict.kept else f"{len(result.verdict.broken)} promises broken"
    return render_page(
        Page(
            title="timewheel demo: the same timers through every scheme",
            verdict=promises + (": " + "; ".join(result.verdict.broken) if result.verdict.broken else "."),
            good=result.verdict.kept,
            facts=[
                ("Trace", f"{settings.messages:,} timers, delays of 0 to {DAYS} days of {settings.day_ms / 1000:g} s, "
                          f"seed {settings.seed}, one partition"),
                ("Broker", f"Apache Pulsar {broker.version}, pid {broker.pid}, {broker.admin_url}"),
                ("Its settings", ", ".join(f"{name}={value}" for name, value in broker.config.items())),
                ("Took", f"{result.seconds:.0f} s"),
            ],
            chart=gap_chart(chart),
            caption=CAPTION,
            tables=[
                Table(caption="What each scheme did.", header=HEADER, rows=[row_texts(row) for row in result.rows]),
                *([_trial_table(result.checker_trial)] if result.checker_trial else []),
                *([] if result.foresight is None else [_foresight_table(result.foresight)]),
            ],
            notes=[
                "Gaps: the most at any one sample, summed over a scheme's due topics (due) and its holding topics "
                "(held); law: what the law of gaps predicts for that from the trace alone. Redelivered: came again "
                "after its acknowledgement had returned, counted at the raw client: to business + to a relay, which "
                "skips it. Twice: reached the handler again.",
                "Where timewheel loses: " + "; ".join(where_we_lose(result.rows)) + ".",
                *([] if result.foresight is None else [foresight.NOTE, f"The planner: {result.foresight.verdict}"]),
            ],
            commands=[("Recount the losses from the ledger file:", recount_command(Path(files.ledger.name)))],
        )
    )  # fmt: skip


def _trial_table(trial: Mapping[str, Totals]) -> Table:
    return Table(
        caption="Can the checker fail? A relay that is killed while it has timers in hand:",
        header=("the relay", "attempted", "handled", "lost", "twice"),
        rows=[
            (name, *(f"{value:,}" for value in (found.attempted, found.handled, found.lost, found.duplicated)))
            for name, found in trial.items()
        ],
    )


def _foresight_table(found: Foresight) -> Table:
    return Table(
        caption="The planner on this run's own ledger: predicted beside measured.",
        header=foresight.HEADER,
        rows=[foresight.row_texts(row) for row in found.rows],
    )
