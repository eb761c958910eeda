"""`timewheel survey`: stores the statistics for a plan by day, so that a history is read only once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from timewheel.cli.options import with_options
from timewheel.cli.planning import (
    AsJson,
    HistoryOptions,
    HistorySource,
    console_for,
    need_new_folder,
    note_of,
    progress_on,
    show_lost,
)
from timewheel.cli.terminal import say, show_rows
from timewheel.core.durations import rounded_up
from timewheel.core.escapes import timewheel_command
from timewheel.core.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from timewheel.spark_planner import Survey

MAX_SHOWN = 20


@with_options
def survey(
    history: HistorySource,
    *,
    out: Annotated[Path, Option("-o", "--out", help="Folder of the survey; days are added to it.", show_default=False)],
    replace: Annotated[bool, Option("--replace", help="Replace days that the survey already has.")] = False,
    add: Annotated[
        bool,
        Option("--add", help="Add to days that the survey already has: timers of another region, or other topics."),
    ] = False,
    keep: Annotated[
        int | None, Option(min=1, help="Days to keep; earlier days are removed.", show_default="all")
    ] = None,
    asked: HistoryOptions,
    as_json: AsJson = False,
) -> None:
    """Read a history once and store the statistics that a plan is made from: some megabytes, by day, up to 5,000
    topics.

    Then `timewheel plan --from FOLDER` and `timewheel predict PLAN --from FOLDER` answer in seconds, without Spark. A
    sample (`timewheel sample`) needs no survey: `timewheel plan` reads it directly.
    """
    if replace and add:
        raise typer.BadParameter("give --replace or --add, not both", param_hint="--replace")
    need_new_folder(out, "a survey is a folder")
    if note_of(history) is not None:
        following = timewheel_command("plan", history, "-o", "plan.toml")
        raise typer.BadParameter(f"a sample needs no survey; run: {following}", param_hint="HISTORY")
    console = console_for(as_json=as_json)
    with asked.session() as spark:
        from timewheel.spark_planner import add_survey, drop_days_before

        with progress_on(console) as on_progress:
            found = asked.survey(spark, history, on_progress, all_topics=True).survey(on_progress)
    written = add_survey(found, out, "replace" if replace else "add" if add else "refuse")
    dropped = [] if keep is None else drop_days_before(out, written[-1] + 1 - keep)
    show_lost(console, found.statistic)
    _show(console, found)
    _say_days(console, out, written, dropped)
    if as_json:
        print(json.dumps(_facts(found, out, written, dropped), indent=1))


def _show(console: Console, found: Survey) -> None:
    from timewheel.spark_planner.results.facts import delay_quantile_ms

    ranked = sorted(found.statistic.cells, key=lambda topic: (-found.gaps[topic].peak, topic))
    rows = [
        (
            topic or "(no name)",
            f"{found.statistic.cells[topic].timers:,}",
            rounded_up(delay_quantile_ms(found.statistic.cells[topic], 0.5)),
            rounded_up(int(found.statistic.cells[topic].delay_max_ms.max())),
            f"{found.gaps[topic].peak:,}",
        )
        for topic in ranked[:MAX_SHOWN]
    ]
    more = f"The {MAX_SHOWN} of {len(ranked):,} topics with the most gaps" if len(ranked) > MAX_SHOWN else "Topics"
    caption = f"{more}; gaps: native delays on one partition, counted"
    show_rows(console, caption, ("topic", "timers", "half wait within", "longest", "peak gaps"), rows)


def _say_days(console: Console, out: Path, written: Sequence[int], dropped: Sequence[int]) -> None:
    from timewheel.spark_planner.summary.survey import day_name, stored_days

    there = list(stored_days(out))
    said = f"survey  {out}: {counted(len(written), 'day')} written"
    if dropped:
        said += f", {len(dropped):,} removed"
    say(console, f"{said}; it has {len(there):,}, from {day_name(there[0])} to {day_name(there[-1])}")
    say(console, f"next    {timewheel_command('plan', '--from', str(out), '-o', 'plan.toml')}")


def _facts(found: Survey, out: Path, written: Sequence[int], dropped: Sequence[int]) -> dict[str, object]:
    from timewheel.spark_planner.summary.survey import day_name

    statistic = found.statistic
    return {
        "folder": str(out),
        "days_written": [day_name(day) for day in written],
        "days_taken_away": [day_name(day) for day in dropped],
        "timers": statistic.timers,
        "rows": statistic.rows,
        "quarantined": dict(statistic.quarantined),
        "remarked": dict(statistic.remarked),
        "cells": len(statistic),
        "topics": {
            topic: {"timers": cells.timers, "native_peak_gaps": found.gaps[topic].peak}
            for topic, cells in statistic.cells.items()
        },
    }
