"""`timewheel sample` and `timewheel survey`: what a plan is made from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from timewheel.cli import planning
from timewheel.cli.connecting import AdminOptions
from timewheel.cli.options import AsJson, GapLimit, at_second, need_folders, writing
from timewheel.cli.terminal import print_line, progress_bar, say, show_rows
from timewheel.core.clock import SystemClock
from timewheel.core.durations import rounded_up, span
from timewheel.core.escapes import timewheel_command
from timewheel.core.extras import need_extras
from timewheel.core.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from timewheel.inspect.sample import Sample, SampledTopic, SampleFigures
    from timewheel.spark_planner import Survey


def sample(
    topic: Annotated[str, Argument(metavar="TOPIC", help="persistent://tenant/namespace/topic.", show_default=False)],
    out: Annotated[
        Path, Option("-o", "--out", help="Write the sample here, as Parquet.", show_default=False, dir_okay=False)
    ],
    *,
    samples: Annotated[
        int, Option(min=1, max=1_000_000, help="Entries to sample; all, if the topic has fewer.")
    ] = 10_000,
    seed: Annotated[int, Option(help="Seed of the sample: the same seed draws the same entries.")] = 0,
    limit: GapLimit = None,
    cluster: AdminOptions,
    as_json: AsJson = False,
) -> None:
    """Sample random entries of a topic: write when each was sent and when it is due. Nothing is consumed or changed.

    The file also stores the scale of the sample (entries of the topic per row), the topic, its partitions and
    subscriptions, and the broker's gap limit and tick: `timewheel plan` reads all of these from it.
    """
    from timewheel.inspect.gaps.gap_status import FIRST_AID, FOR_GOOD
    from timewheel.inspect.profile import limit_of
    from timewheel.inspect.sample import figures_of, sampled_topic, write_sample
    from timewheel.inspect.sample import sample as take
    from timewheel.provision.shadow_commands import shadow_commands

    need_extras("a sample's file", "planner")  # before thousands of requests
    need_folders({"--out": out})
    with cluster.admin() as admin, progress_bar("looking at entries") as on_progress:
        known = limit_of(admin, gap_limit_ranges=limit)
        taken = take(admin, topic, now_ms=SystemClock().now_ms(), samples=samples, seed=seed, on_progress=on_progress)
        of_topic = sampled_topic(admin, taken, known.profile)
    figures = figures_of(taken)
    with writing(out, "--out"):
        write_sample(taken, figures, out, of_topic, reached_by=cluster.words)
    following = timewheel_command("plan", str(out), "-o", "plan.toml")
    if as_json:
        what = {"topic": topic, "partitions": taken.partitions, "seed": seed, "sampled_at_ms": taken.sampled_at_ms}
        print(json.dumps({**what, **asdict(figures), **asdict(of_topic), "file": str(out), "next": following}))
        return
    lines = [*_lines(taken, figures, of_topic, known.source), ("file", str(out))]
    aid = shadow_commands(taken.topic, of_topic.shadow, cluster.words)
    if aid:
        lines += [("either", f"{FIRST_AID}: {aid[0]}"), ("or", f"{FOR_GOOD}; that comes next")]
    for name, text in (*lines, ("next", following)):
        print_line(f"{name:9}{text}")


def _lines(
    taken: Sample, figures: SampleFigures, of_topic: SampledTopic, limit_source: str
) -> Iterator[tuple[str, str]]:
    """Yield the sample's figures, a line each, with errors beside their figures."""
    kind = counted(taken.partitions, "partition") if taken.partitions else "without partitions"
    yield "topic", f"{taken.topic}, {kind}, {counted(figures.population, 'entry', 'entries')}"
    yield "read by", ", ".join(of_topic.subscriptions) or "no durable subscription"
    yield "limit", f"{of_topic.profile.gap_limit_ranges:,} gaps of a partition, {limit_source}"
    is_whole = taken.is_whole
    part = "all of them" if is_whole else f"1 of {figures.scale:,.4g}, seed {taken.seed}"
    yield "sample", f"{counted(figures.rows, 'entry', 'entries')}, {part}"
    first, last = at_second(figures.first_publish_ms), at_second(figures.last_publish_ms)
    yield "sent", f"{first} to {last} UTC, {figures.entries_per_second:,.3g} entries a second in the topic"
    mean = span(figures.delay_mean_ms)
    if not is_whole:
        mean += f" +- {span(figures.delay_mean_error_ms)}"
    shares = (("half", figures.delay_p50_ms), ("90 %", figures.delay_p90_ms), ("99 %", figures.delay_p99_ms))
    up_to = ", ".join(f"{share} up to {span(delay_ms)}" for share, delay_ms in shares)
    yield "delay", f"mean {mean}; {up_to}; longest {span(figures.delay_max_ms)}"
    if not is_whole:
        yield "error", f"any share of delays +- {100 * figures.share_error:.2g} points; all errors here at 95 %"
    gaps, gaps_error = figures.law_gaps, figures.law_gaps_error
    if gaps is None or gaps_error is None:
        yield "law", "no estimate, since the sample covers less time than the delays take"
    else:
        yield (
            "law",
            f"{gaps:,.0f} +- {gaps_error:,.0f} gaps of a subscription, if delays do not depend on the time of sending",
        )
    if figures.undelayed:
        batches = f", {figures.batches:,} of them batches" if figures.batches else ""
        undelayed = counted(figures.undelayed, "entry has", "entries have")
        yield "note", f"{undelayed} no delay{batches}: written as due when they were sent"
    if figures.overdue:
        overdue = counted(figures.overdue, "entry was", "entries were")
        yield "note", f"{overdue} due before they were sent: written as due when they were sent"
    if figures.of_shadow:
        left_out = counted(figures.of_shadow, "entry is", "entries are")
        yield "note", f"{left_out} written by its shadow: left out, since the sample has the originals"
    if figures.moved_entries:
        moved = counted(figures.moved_entries, "entry was", "entries were")
        said = "their earlier wait is not in the sample (timewheel plan check reads holding topics too)"
        yield "note", f"{moved} moved on by timewheel: {said}"
    if gone := figures.unread - figures.unreadable:
        yield "note", f"{counted(gone, 'chosen entry was', 'chosen entries were')} gone when they were looked at"
    if figures.unreadable:
        unreadable = counted(figures.unreadable, "chosen entry", "chosen entries")
        yield "note", f"{unreadable} could not be read, and are not in the sample"


MAX_SHOWN = 20


def survey(
    history: planning.HistorySource,
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
    asked: planning.HistoryOptions,
    as_json: planning.PlannerJson = False,
) -> None:
    """Read a history once and store the statistics that a plan is made from: some megabytes, by day, up to 5,000
    topics.

    Then `timewheel plan --from FOLDER` and `timewheel predict PLAN --from FOLDER` answer in seconds, without Spark. A
    sample (`timewheel sample`) needs no survey: `timewheel plan` reads it directly.
    """
    if replace and add:
        raise typer.BadParameter("give --replace or --add, not both", param_hint="--replace")
    planning.need_new_folder(out, "a survey is a folder")
    if planning.note_of(history) is not None:
        following = timewheel_command("plan", history, "-o", "plan.toml")
        raise typer.BadParameter(f"a sample needs no survey; run: {following}", param_hint="HISTORY")
    console = planning.console_for(as_json=as_json)
    with asked.session() as spark:
        from timewheel.spark_planner import add_survey, drop_days_before

        with planning.progress_on(console) as on_progress:
            found = asked.survey(spark, history, on_progress, all_topics=True).survey(on_progress)
    written = add_survey(found, out, "replace" if replace else "add" if add else "refuse")
    dropped = [] if keep is None else drop_days_before(out, written[-1] + 1 - keep)
    planning.show_lost(console, found.statistic)
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
