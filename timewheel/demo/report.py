"""The report of a run, as a self-contained page. Imported only if its drawing libraries are installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from timewheel._report.gap_chart import GapChart, Mark, Series, gap_chart
from timewheel._report.page import Page, Table
from timewheel._report.render import render_page
from timewheel.demo import foresight
from timewheel.demo.foresight import Foresight
from timewheel.demo.results import Result
from timewheel.demo.settings import DAYS
from timewheel.demo.table import HEADER, LABELS, row_texts, where_we_lose
from timewheel.testing.evidence.ledger import Totals, recount_command

CAPTION = (
    "Gap ranges of one subscription, same trace. Dashed: what the broker keeps. Vertical: unload. "
    "What is above the line is delivered twice."
)


def report_page(result: Result, ledger: Path) -> str:
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
            figure=gap_chart(chart),
            tables=[
                Table(caption="What each scheme did.", header=HEADER, rows=[row_texts(row) for row in result.rows]),
                *([_trial_table(result.checker_trial)] if result.checker_trial else []),
                *([] if result.foresight is None else [_foresight_table(result.foresight)]),
            ],
            notes=[
                "Gaps: the most at any one sample, summed over a scheme's due topics (due) and its holding topics "
                "(held); law: what the law of gaps predicts for that from the trace alone, with the band that follows "
                "from how many timers were late at once. Redelivered: came again "
                "after its acknowledgement had returned, counted at the raw client: to business + to a relay, which "
                "skips it. Twice: reached the handler again; with plain clients, which handle all that comes again: as "
                "original and as copy.",
                *result.outside,
                "Where timewheel loses: " + "; ".join(where_we_lose(result.rows)) + ".",
                *([] if result.foresight is None else [foresight.NOTE, f"The planner: {result.foresight.verdict}"]),
            ],
            commands=[("Recount the losses from the ledger file:", recount_command(Path(ledger.name)))],
        )
    )  # fmt: skip


def _trial_table(trial: Mapping[str, Totals]) -> Table:
    return Table(
        caption="Can the checker fail? A relay that is killed while it has timers in flight:",
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
