"""`timewheel sample`: samples the delays of a live topic for `timewheel plan`, without a change to any service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from timewheel.cli.connecting import AdminOptions
from timewheel.cli.moments import at_second
from timewheel.cli.options import AsJson, GapLimit, need_folders, with_options, writing
from timewheel.cli.terminal import print_line, progress_bar
from timewheel.core.clock import SystemClock
from timewheel.core.durations import span
from timewheel.core.escapes import timewheel_command
from timewheel.core.extras import need_extras
from timewheel.core.plurals import counted

if TYPE_CHECKING:
    from timewheel.inspect.sample import Sample, SampledTopic, SampleFigures


@with_options
def sample(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="persistent://tenant/namespace/topic.", show_default=False)
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Write the sample here, as Parquet.", show_default=False, dir_okay=False)
    ],
    *,
    samples: Annotated[
        int, typer.Option("--samples", min=1, max=1_000_000, help="Entries to sample; all, if the topic has fewer.")
    ] = 10_000,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the sample: the same seed draws the same entries.")] = 0,
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
    with (
        cluster.admin() as admin,
        progress_bar("looking at entries") as on_progress,
    ):
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
