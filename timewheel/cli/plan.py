"""`timewheel plan`: makes a plan file from a history of delays, and gives the reasons."""

from __future__ import annotations

import re
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated

import typer

from timewheel.cli.broker_profile import ProfileOptions
from timewheel.cli.from_survey import need_one_source, plan_from
from timewheel.cli.options import with_options
from timewheel.cli.plan_fleet import answer_fleet, need_folder
from timewheel.cli.plan_next import status_of, style_of, write_planned
from timewheel.cli.planning import (
    AsJson,
    MaybeHistory,
    PlannerOptions,
    Shadow,
    as_sampled,
    console_for,
    growth_of,
    note_of,
    progress_on,
    show_reading,
)
from timewheel.cli.terminal import say, show_table
from timewheel.core.gap_law import WATCH_SHARE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from timewheel.core.plan import Plan
    from timewheel.spark_planner import Constraints, Planned, Prices

__all__ = ["plan", "show_planned"]

PriceMillionWrites = Annotated[
    float | None,
    typer.Option(
        "--price-million-writes",
        min=0.0,
        help="Price of a million entries written: the answer then has a month's cost. No price changes the choice.",
    ),
]
PriceGbMonth = Annotated[
    float | None,
    typer.Option("--price-gb-month", min=0.0, help="Price of a gigabyte on disk for a month, for each copy."),
]
PriceTopicMonth = Annotated[
    float | None, typer.Option("--price-topic-month", min=0.0, help="Price of a partition topic for a month.")
]
PriceRelayMonth = Annotated[
    float | None, typer.Option("--price-relay-month", min=0.0, help="Price of a running relay for a month.")
]
Currency = Annotated[str, typer.Option("--currency", help="Currency of these prices, written after an amount.")]

DEFAULT_NAMESPACE = "persistent://public/default/"
DEFAULT_SUBSCRIPTION = "timers"


@with_options
def plan(
    context: typer.Context,
    history: MaybeHistory = None,
    *,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Write the recommended plan here; with --all-topics a folder of plans."),
    ] = None,
    report: Annotated[Path | None, typer.Option("--report", help="Write the reasons here, as one HTML page.")] = None,
    due_topic: Annotated[
        str | None,
        typer.Option(
            "--due-topic", help="persistent://tenant/namespace/topic; else the history's topic, or its file name."
        ),
    ] = None,
    subscriptions: Annotated[
        list[str] | None, typer.Option("--subscription", help="A subscription of the due topic; may be given again.")
    ] = None,
    unpartitioned: Annotated[
        bool,
        typer.Option(
            "--unpartitioned",
            help="The due topic is not partitioned, as Pulsar makes topics by default, and so cannot get partitions.",
        ),
    ] = False,
    shadow: Shadow = False,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Plan for every topic of the history that needs it, in one pass.")
    ] = False,
    max_plans: Annotated[
        int,
        typer.Option(
            "--max-plans", min=0, help="With --all-topics: number of topics to plan for, those at most risk first."
        ),
    ] = 20,
    asked: PlannerOptions,
    cluster: ProfileOptions,
    max_delay: Annotated[
        str | None,
        typer.Option(
            "--max-delay",
            show_default="the history's longest, rounded up",
            help="The plan's max_delay, such as 90d: sends with a longer delay are refused.",
        ),
    ] = None,
    gap_fraction: Annotated[
        float,
        typer.Option(
            "--gap-fraction", min=0.01, max=1.0, help="Largest share of the broker's gap limit, in any partition."
        ),
    ] = WATCH_SHARE,
    max_silence: Annotated[
        str, typer.Option("--max-silence", help="Longest silence of a partition after an unload: 10s; none: no limit.")
    ] = "10s",
    max_hops: Annotated[int | None, typer.Option("--max-hops", min=0, help="Most hops of any timer.")] = None,
    max_topics: Annotated[
        int | None, typer.Option("--max-topics", min=1, help="Most topics; each partition counts.")
    ] = None,
    max_lateness: Annotated[
        str, typer.Option("--max-lateness", help="Most lateness from a relay that cannot keep up: 1s; none: no limit.")
    ] = "1s",
    topic_cost: Annotated[
        float, typer.Option("--topic-cost", min=0.0, help="Cost of a partition topic, in entries written a second.")
    ] = 0.5,
    relay_cost: Annotated[
        float, typer.Option("--relay-cost", min=0.0, help="Cost of running a relay, in entries written a second.")
    ] = 2.0,
    price_million_writes: PriceMillionWrites = None,
    price_gb_month: PriceGbMonth = None,
    price_topic_month: PriceTopicMonth = None,
    price_relay_month: PriceRelayMonth = None,
    currency: Currency = "EUR",
    as_json: AsJson = False,
) -> None:
    """Choose a plan from a history of delays: price some 300 plans, explain the best, and replay every timer through
    it.

    Exit status 1 if no plan keeps every limit; the plan that breaks the fewest limits is written nevertheless. Exit
    status: 3 if the history is a burst, and twice as many timers would break the broker's gap limit. Once the plan is
    live, `timewheel plan check` monitors whether it still holds.
    """
    import json
    from dataclasses import replace

    from timewheel.core.durations import parse_duration
    from timewheel.core.extras import need_extras

    need_one_source(
        history,
        asked,
        {"--report": report, "--all-topics": all_topics},
    )
    if all_topics:
        need_folder(
            out, {"--topic": asked.topic, "--due-topic": due_topic, "--report": report, "--max-delay": max_delay}
        )
    else:
        _need_files({"--out": out, "--report": report})
    if report is not None or all_topics:
        need_extras("a plan with a report", "planner", "report", java=True)
    limits_ms = {"silence": _limit_ms(max_silence), "lateness": _limit_ms(max_lateness)}
    max_delay_ms = None if max_delay is None else parse_duration(max_delay)
    note = note_of(history)
    console = console_for(as_json=as_json)
    evaluated_by = cluster.shown(console, None if note is None else note.profile)
    subscriptions, unpartitioned, partitions_min = as_sampled(
        note, due_topic, subscriptions, unpartitioned=unpartitioned
    )

    def constraints_of() -> Constraints:
        from timewheel.spark_planner import Constraints

        return Constraints(
            gap_fraction=gap_fraction,
            silence_seconds=_seconds(limits_ms["silence"]),
            hops_max=max_hops,
            partition_topics=max_topics,
            partitions_min=partitions_min,
            lateness_seconds=_seconds(limits_ms["lateness"]),
            topic_writes_per_second=topic_cost,
            relay_writes_per_second=relay_cost,
        )

    def base_of(name: str) -> Plan:
        from timewheel.spark_planner import as_shadow

        base = _base(due_topic, subscriptions, name, history or str(asked.stored), evaluated_by.tick_ms)
        base = replace(base, partitions=0) if unpartitioned else base
        return as_shadow(base) if shadow else base

    if asked.stored is not None:
        plan_from(
            context, asked, base_of, evaluated_by, constraints_of, max_delay_ms=max_delay_ms, out=out, as_json=as_json
        )
    assert history is not None  # need_one_source
    with asked.session() as spark:
        from timewheel.spark_planner import Prices, plan_all, plan_for, planned_facts

        constraints = constraints_of()
        prices = Prices(
            currency=currency,
            million_writes=price_million_writes,
            gb_month=price_gb_month,
            topic_month=price_topic_month,
            relay_month=price_relay_month,
        )
        volume = growth_of(asked.growth, note, console)
        if all_topics:
            with progress_on(console) as on_progress:
                seen = asked.survey(spark, history, on_progress, all_topics=True)
                fleet = plan_all(
                    seen,
                    base_of,
                    evaluated_by,
                    constraints,
                    most=max_plans,
                    growth=volume,
                    as_is=asked.as_is,
                    on_progress=on_progress,
                )
            answer_fleet(console, fleet, out, base_of, prices, as_json=as_json)
        with progress_on(console) as on_progress:
            seen = asked.survey(spark, history, on_progress)
            wanted = seen.topic(asked.topic)
            base = base_of(wanted)
            planned = plan_for(
                seen,
                wanted,
                base,
                evaluated_by,
                constraints,
                max_delay_ms=max_delay_ms,
                growth=volume,
                as_is=asked.as_is,
                on_progress=on_progress,
            )
    show_planned(
        console,
        planned,
        _assumed(base, named=due_topic is not None, subscribed=bool(subscriptions), wanted=wanted),
        prices,
    )
    write_planned(context, cluster.words, console, planned, out, report, prices, note)
    if as_json:
        print(json.dumps(planned_facts(planned, prices), indent=1))
    if status := status_of(planned):
        raise typer.Exit(status)


def _need_files(paths: Mapping[str, Path | None]) -> None:
    """Refuse paths (by option) that cannot be written, before a minute's work and not after it."""
    for option, path in paths.items():
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise typer.BadParameter(f"{path} cannot be written: give a file in an existing folder", param_hint=option)


def _limit_ms(text: str) -> int | None:
    from timewheel.core.durations import parse_duration

    return None if text == "none" else parse_duration(text)


def _seconds(limit_ms: int | None) -> float | None:
    return None if limit_ms is None else limit_ms / 1_000


def _base(due_topic: str | None, subscriptions: list[str] | None, topic: str, source: str, tick_ms: int) -> Plan:
    """Return a plan without a scheme: the settings of the user and the broker, and a name if the user gives none."""
    from timewheel.core.plan import Plan

    name = due_topic
    if name is None and topic:
        # A topic of a history may have any name: the name that the data use, or Pulsar's full name.
        name = topic if topic.startswith("persistent://") else DEFAULT_NAMESPACE + re.sub(r"[^\w.=:-]+", "-", topic)
    if name is None:
        stem = re.sub(r"[^\w.-]+", "-", PurePath(source).name.partition(".")[0]).strip("-") or "timers"
        name = DEFAULT_NAMESPACE + stem
    return Plan(due_topic=name, subscriptions=tuple(subscriptions or (DEFAULT_SUBSCRIPTION,)), tick_ms=tick_ms)


def _assumed(base: Plan, *, named: bool, subscribed: bool, wanted: str) -> str:
    """Name the values that the user did not give; empty: there are none."""
    said = []
    if not named and not wanted.startswith("persistent://"):
        said.append(f"the due topic {base.due_topic} (--due-topic)")
    if not subscribed:
        said.append(f"the subscription {DEFAULT_SUBSCRIPTION!r} (--subscription)")
    return f"Assumed, name them before use: {' and '.join(said)}." if said else ""


def show_planned(console: Console, planned: Planned, assumed: str, prices: Prices) -> None:
    """Print the answer on a terminal.

    Args:
        console: The terminal.
        planned: The result.
        assumed: Values that the user did not give, in a sentence; empty: there are none.
        prices: Prices for a month's cost.
    """
    from timewheel.spark_planner import verdict
    from timewheel.spark_planner.results import tables
    from timewheel.spark_planner.results import tables as costs
    from timewheel.spark_planner.results.facts import (
        describe_copies,
        describe_growth,
        describe_keys,
        describe_limit,
        describe_native,
    )
    from timewheel.spark_planner.results.report_page import headlines
    from timewheel.spark_planner.results.tables import shadow_table

    statistic = planned.history.statistic
    show_reading(console, statistic, planned.topic, planned.traffic)
    for said in (describe_copies(planned), *describe_native(planned), describe_keys(planned)):
        if said:
            say(console, said)
    say(console, verdict(planned), style=style_of(planned))
    for one in headlines(planned, prices):
        said = f"{one.name}: {one.value} {one.unit} ({one.known}); {'; '.join(one.lines)}."
        say(console, said, style="bold", indent=2)
    for sentence in [*planned.choice.reasons, describe_growth(planned)]:
        if sentence:
            say(console, sentence, indent=2)
    quarantine = tables.quarantine_table(statistic)
    hops = tables.hop_table(planned.recommended.evaluation)
    moved = shadow_table(planned.choice.recommended.evaluation)
    shown = [
        *([] if quarantine is None else [quarantine]),
        tables.plans_table(planned),
        tables.rules_table(planned),
        costs.cost_table(planned, prices),
        tables.front_table(planned),
        tables.room_table(planned),
        *[table for table in (moved, hops) if table is not None],
        tables.prediction_table(tables.both(planned)),
    ]
    for table in shown:
        show_table(console, table)
    say(console, "")
    say(console, describe_limit(planned))
    if assumed:
        say(console, assumed)
