"""`timewheel plan`, `predict`, `compare`: make and evaluate plans from a history or a survey."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer import Argument, Option

from timewheel.cli import planning
from timewheel.cli.connecting import typed_again
from timewheel.cli.options import ATTENTION, FAILED, need_folders
from timewheel.cli.planning import PlannerOptions, ProfileOptions
from timewheel.cli.terminal import say, show_line, show_table
from timewheel.core.durations import parse_duration
from timewheel.core.escapes import timewheel_command
from timewheel.core.extras import need_extras
from timewheel.core.gap_law import WATCH_SHARE
from timewheel.core.plan import Native, Plan
from timewheel.core.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from timewheel.core.broker_profile import BrokerProfile
    from timewheel.spark_planner import Constraints, Fleet, Planned, Prediction, Prices, Statistic
    from timewheel.spark_planner.estimating import Estimated
    from timewheel.spark_planner.history.sampled import SampleNote

SHADOW_FILE = "shadow.toml"
DEFAULT_FILE = "plan.toml"
NEW_TOPIC = "-timers"  # suffix for a new topic beside a full topic, and for the files of the new topic's plan


def write_planned(
    context: typer.Context,
    reached_by: Sequence[str],
    console: Console,
    planned: Planned,
    out: Path | None,
    report: Path | None,
    prices: Prices,
    note: SampleNote | None,
) -> None:
    """Write the plan and the report to the given paths, and print these paths and the next command."""
    from timewheel.core.planfile import save_plan

    steps = steps_of(context, reached_by, planned.plan, out, report, note)
    if out is not None:
        save_plan(planned.plan, out)
        show_line(console, f"plan    {out}")
    if report is not None:
        from timewheel.spark_planner import report_page

        plan_file = str(out) if out else DEFAULT_FILE
        page = report_page(planned, plan_file=plan_file, prices=prices, steps=[step[1:] for step in steps])
        report.write_text(page, encoding="utf-8")
        show_line(console, f"report  {report}")
    if out is None and report is None:
        _show_line(console, "nothing written: ", typed_again(context, out=DEFAULT_FILE, report="report.html"))
    elif out is not None:
        for name, purpose, words in steps:
            if name == "shadow":
                say(console, f"FIRST   {purpose}", style="bold red")
            _show_line(console, name, words)
    if planned.is_short_of_room:
        show_with_room(context, console)


def show_with_room(context: typer.Context, console: Console) -> None:
    """Print the command again, for a plan with room for a second burst."""
    from timewheel.spark_planner.choice.constraints import TWICE

    _show_line(console, "room", typed_again(context, growth=f"{TWICE:g}"))


def style_of(planned: Planned | Estimated, statistic: Statistic) -> str:
    color = (
        "red" if not planned.keeps_limits or statistic.too_few else "yellow" if planned.is_short_of_room else "green"
    )
    return f"bold {color}"


def status_of(planned: Planned | Estimated, statistic: Statistic) -> int:
    if not planned.keeps_limits or statistic.too_few:
        return FAILED
    return ATTENTION if planned.is_short_of_room else 0


def steps_of(
    context: typer.Context,
    reached_by: Sequence[str],
    plan: Plan,
    file: Path | None,
    report: Path | None,
    note: SampleNote | None,
) -> list[tuple[str, str, list[str]]]:
    """Return what to do next: a label, a purpose and the words of a command that works as it is printed."""
    from timewheel.spark_planner.results import facts

    is_there = note is not None and note.topic == plan.due_topic
    partitions = max(note.partitions, 1) if note is not None and is_there else None
    stays = isinstance(plan.scheme, Native) and plan.own_partitions == partitions
    reached = [*(note.reached_by if note else ()), *reached_by]
    if not (stays or plan.intake) and note is not None and is_there and note.native and note.shadow is None:
        assert note.native_until_ms is not None, "some wait"
        until = dt.datetime.fromtimestamp(note.native_until_ms / 1_000, dt.UTC)
        held = ("about " if note.scale > 1 else "") + counted(note.native, "timer")
        first = (
            f"{note.topic} holds {held} under the broker's own delay. This plan moves none of them: their gaps stay "
            f"until the last is due, {until:%Y-%m-%d %H:%M} UTC. So begin with a shadow, which takes them out of the "
            "topic; or plan for a new topic, and let consumers of the old one go on until then."
        )
        written = {"out": file, "report": report}
        files = {name: _beside(path) for name, path in written.items() if path is not None}
        return [
            ("shadow", first, ["shadow", "start", note.topic, "-o", SHADOW_FILE, "--dry-run", *reached]),
            ("new", "Or plan for a new topic", typed_again(context, due_topic=note.topic + NEW_TOPIC, **files)),
        ]
    steps = facts.next_steps(plan, str(file or DEFAULT_FILE), reached, partitions)
    if file is None:
        write = typed_again(context, out=DEFAULT_FILE, report=str(report or "report.html"))
        steps = [("Write the plan", write), *steps[:2]]
    return [("then" if number else "next", purpose, words) for number, (purpose, words) in enumerate(steps)]


def _beside(file: Path) -> Path:
    """Return the file name for the new topic's plan, so that the old topic's plan stays."""
    return file.with_stem(f"{file.stem}{NEW_TOPIC}")


def _show_line(console: Console, name: str, words: list[str]) -> None:
    show_line(console, f"{name:8}{timewheel_command(*words)}")


MAX_SHOWN = 40
INDEX = "index.html"


def need_folder(folder: Path | None, of_one_topic: Mapping[str, object]) -> None:
    """Refuse an impossible folder for the plans, and options (by name) for a single topic, before any work."""
    for option, given in of_one_topic.items():
        if given is not None:
            raise typer.BadParameter("it is of one topic, --all-topics of all", param_hint=option)
    if folder is None:
        raise typer.BadParameter("--all-topics writes a plan for each topic: give a folder", param_hint="--out")
    planning.need_new_folder(folder, "with --all-topics it is a folder")


def file_names(topics: Iterable[str]) -> dict[str, str]:
    """Return a file name without ending for each topic: its own name, as far as every file system accepts it."""
    found: dict[str, str] = {}
    taken = {INDEX.removesuffix(".html")}
    for topic in topics:
        short = re.sub(r"[^\w.-]+", "-", topic.removeprefix("persistent://"), flags=re.ASCII).strip("-.")[:120]
        name, number = short or "timers", 1
        while name.casefold() in taken:
            number += 1
            name = f"{short or 'timers'}-{number}"
        taken.add(name.casefold())
        found[topic] = name
    return found


def answer_fleet(
    console: Console,
    fleet: Fleet,
    folder: Path | None,
    base_of: Callable[[str], Plan],
    prices: Prices,
    *,
    as_json: bool,
) -> NoReturn:
    """Print and write the answer, and end the command: status 1 if a topic has no plan that keeps every limit."""
    from timewheel.core.planfile import save_plan
    from timewheel.spark_planner import report_page
    from timewheel.spark_planner.results import facts
    from timewheel.spark_planner.results.report_page import fleet_page
    from timewheel.spark_planner.results.tables import fleet_table

    assert folder is not None  # need_folder
    planning.show_lost(console, fleet.history.statistic)
    is_good = fleet.keeps_limits and not fleet.history.statistic.too_few
    say(console, facts.fleet_verdict(fleet), style="bold green" if is_good else "bold red")
    shown = fleet.topics[:MAX_SHOWN]
    is_cut = len(fleet.topics) > len(shown)
    caption = f"The {len(shown)} topics nearest to their limit" if is_cut else "All topics"
    show_table(console, fleet_table(fleet, shown, caption))

    folder.mkdir(exist_ok=True)
    names = file_names(one.topic for one in fleet.topics)
    files: dict[str, str] = {}
    for one in fleet.topics:
        plan = fleet.plan_of(one.topic, base_of)
        if plan is not None:
            files[one.topic] = f"{names[one.topic]}.toml"
            save_plan(plan, folder / files[one.topic])
    pages: dict[str, str] = {}
    for topic, planned in fleet.planned.items():
        pages[topic] = f"{names[topic]}.html"
        page = report_page(planned, plan_file=str(folder / files[topic]), prices=prices)
        (folder / pages[topic]).write_text(page, encoding="utf-8")
    (folder / INDEX).write_text(fleet_page(fleet, pages), encoding="utf-8")
    say(console, f"plans   {len(files):,} in {folder}")
    say(console, f"report  {folder / INDEX}")
    if as_json:
        print(json.dumps(facts.fleet_facts(fleet, files, prices), indent=1))
    raise typer.Exit(0 if is_good else FAILED)


DEFAULT_NAMESPACE = "persistent://public/default/"
DEFAULT_SUBSCRIPTION = "timers"


def plan(
    context: typer.Context,
    history: planning.MaybeHistory = None,
    *,
    out: Annotated[
        Path | None, Option("-o", "--out", help="Write the recommended plan here; with --all-topics a folder of plans.")
    ] = None,
    report: Annotated[Path | None, Option(help="Write the reasons here, as one HTML page.")] = None,
    due_topic: Annotated[
        str | None, Option(help="persistent://tenant/namespace/topic; else the history's topic, or its file name.")
    ] = None,
    subscriptions: Annotated[
        list[str] | None, Option("--subscription", help="A subscription of the due topic; may be given again.")
    ] = None,
    unpartitioned: Annotated[
        bool,
        Option(
            "--unpartitioned",
            help="The due topic is not partitioned, as Pulsar makes topics by default, and so cannot get partitions.",
        ),
    ] = False,
    shadow: planning.Shadow = False,
    all_topics: Annotated[
        bool, Option("--all-topics", help="Plan for every topic of the history that needs it, in one pass.")
    ] = False,
    max_plans: Annotated[
        int, Option(min=0, help="With --all-topics: number of topics to plan for, those at most risk first.")
    ] = 20,
    asked: PlannerOptions,
    cluster: ProfileOptions,
    max_delay: Annotated[
        str | None,
        Option(
            show_default="the history's longest, rounded up",
            help="The plan's max_delay, such as 90d: sends with a longer delay are refused.",
        ),
    ] = None,
    gap_fraction: planning.GapFraction = WATCH_SHARE,
    max_silence: planning.MaxSilence = "10s",
    max_hops: Annotated[int | None, Option(min=0, help="Most hops of any timer.")] = None,
    max_topics: Annotated[int | None, Option(min=1, help="Most topics; each partition counts.")] = None,
    max_lateness: Annotated[
        str, Option(help="Most lateness from a relay that cannot keep up: 1s; none: no limit.")
    ] = "1s",
    topic_cost: Annotated[float, Option(min=0.0, help="Cost of a partition topic, in entries written a second.")] = 0.5,
    relay_cost: Annotated[float, Option(min=0.0, help="Cost of running a relay, in entries written a second.")] = 2.0,
    price_million_writes: Annotated[
        float | None,
        Option(
            min=0.0,
            help="Price of a million entries written: the answer then has a month's cost. No price changes the choice.",
        ),
    ] = None,
    price_gb_month: Annotated[
        float | None, Option(min=0.0, help="Price of a gigabyte on disk for a month, for each copy.")
    ] = None,
    price_topic_month: Annotated[float | None, Option(min=0.0, help="Price of a partition topic for a month.")] = None,
    price_relay_month: Annotated[float | None, Option(min=0.0, help="Price of a running relay for a month.")] = None,
    currency: Annotated[str, Option(help="Currency of these prices, written after an amount.")] = "EUR",
    as_json: planning.PlannerJson = False,
) -> None:
    """Choose a plan from a history of delays: price some 300 plans, explain the best, and replay every timer through
    it.

    Exit status: 1 if no plan keeps every limit, or over 5 % of the rows cannot be used; the plan that breaks the fewest
    limits is written nevertheless. 3 if the history is a burst, and twice as many timers would break the broker's gap
    limit. Once the plan is live, `timewheel plan check` monitors whether it still holds.
    """
    planning.need_one_source(history, asked, {"--report": report, "--all-topics": all_topics})
    if all_topics:
        need_folder(
            out, {"--topic": asked.topic, "--due-topic": due_topic, "--report": report, "--max-delay": max_delay}
        )
    else:
        need_folders({"--out": out, "--report": report})
    if report is not None or all_topics:
        need_extras("a plan with a report", "planner", "report", java=True)
    silence_s, lateness_s = planning.limit_s(max_silence), planning.limit_s(max_lateness, "--max-lateness")
    max_delay_ms = None if max_delay is None else parse_duration(max_delay)
    note = planning.note_of(history)
    console = planning.console_for(as_json=as_json)
    evaluated_by = cluster.shown(console, None if note is None else note.profile)
    subscriptions, unpartitioned, partitions_min = planning.as_sampled(
        note, due_topic, subscriptions, unpartitioned=unpartitioned
    )

    def constraints_of() -> Constraints:
        from timewheel.spark_planner import Constraints

        return Constraints(
            gap_fraction=gap_fraction,
            silence_seconds=silence_s,
            hops_max=max_hops,
            partition_topics=max_topics,
            partitions_min=partitions_min,
            lateness_seconds=lateness_s,
            topic_writes_per_second=topic_cost,
            relay_writes_per_second=relay_cost,
        )

    def base_of(name: str) -> Plan:
        from timewheel.spark_planner.choice.candidates import as_shadow

        base = _base(due_topic, subscriptions, name, history or str(asked.stored), evaluated_by.tick_ms)
        base = replace(base, partitions=0) if unpartitioned else base
        return as_shadow(base) if shadow else base

    if asked.stored is not None:
        plan_from(
            context, asked, base_of, evaluated_by, constraints_of, max_delay_ms=max_delay_ms, out=out, as_json=as_json
        )
    assert history is not None  # need_one_source
    with asked.session() as spark:
        from timewheel.spark_planner import Prices, plan_all, plan_for
        from timewheel.spark_planner.results import facts

        constraints = constraints_of()
        prices = Prices(
            currency=currency,
            million_writes=price_million_writes,
            gb_month=price_gb_month,
            topic_month=price_topic_month,
            relay_month=price_relay_month,
        )
        volume = planning.growth_of(asked.growth, note, console)
        how: dict[str, Any] = {"growth": volume, "as_is": asked.as_is}
        if all_topics:
            with planning.progress_on(console) as how["on_progress"]:
                seen = asked.survey(spark, history, how["on_progress"], all_topics=True)
                fleet = plan_all(seen, base_of, evaluated_by, constraints, most=max_plans, **how)
            answer_fleet(console, fleet, out, base_of, prices, as_json=as_json)
        with planning.progress_on(console) as how["on_progress"]:
            seen = asked.survey(spark, history, how["on_progress"])
            wanted = seen.topic(asked.topic)
            base = base_of(wanted)
            planned = plan_for(seen, wanted, base, evaluated_by, constraints, max_delay_ms=max_delay_ms, **how)
    assumed = _assumed(base, named=due_topic is not None, subscribed=bool(subscriptions), wanted=wanted)
    show_planned(console, planned, assumed, prices)
    write_planned(context, cluster.words, console, planned, out, report, prices, note)
    if as_json:
        print(json.dumps(facts.planned_facts(planned, prices), indent=1))
    raise typer.Exit(status_of(planned, seen.statistic))


def _base(due_topic: str | None, subscriptions: list[str] | None, topic: str, source: str, tick_ms: int) -> Plan:
    """Return a plan without a scheme: the settings of the user and the broker, and a name if the user gives none."""
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
    """Print the answer on a terminal."""
    from timewheel.spark_planner import verdict
    from timewheel.spark_planner.results import facts, tables
    from timewheel.spark_planner.results.report_page import headlines

    statistic = planned.history.statistic
    for said in (facts.consequence(planned), verdict(planned), facts.in_words(planned.plan)):
        say(console, said, style=style_of(planned, statistic))
    for one in headlines(planned, prices):
        said = f"{one.name}: {one.value} {one.unit} ({one.known}); {'; '.join(one.lines)}."
        say(console, said, style="bold", indent=2)
    planning.show_reading(console, statistic, planned.topic, planned.traffic)
    for said in (facts.describe_copies(planned), *facts.describe_native(planned), facts.describe_keys(planned)):
        if said:
            say(console, said)
    for sentence in [*planned.choice.reasons, facts.describe_growth(planned)]:
        if sentence:
            say(console, sentence, indent=2)
    shown = [
        tables.quarantine_table(statistic),
        tables.plans_table(planned),
        tables.rules_table(planned),
        tables.cost_table(planned, prices),
        tables.front_table(planned),
        tables.room_table(planned),
        tables.shadow_table(planned.choice.recommended.evaluation),
        tables.hop_table(planned.recommended.evaluation),
        tables.prediction_table(tables.both(planned)),
    ]
    for table in shown:
        if table is not None:
            show_table(console, table)
    say(console, "")
    say(console, facts.describe_limit(planned))
    if assumed:
        say(console, assumed)


def plan_from(
    context: typer.Context,
    asked: PlannerOptions,
    base_of: Callable[[str], Plan],
    profile: BrokerProfile,
    constraints_of: Callable[[], Constraints],
    *,
    max_delay_ms: int | None,
    out: Path | None,
    as_json: bool,
) -> NoReturn:
    """Answer, write the plan, and end the command, with the status of a plan from a history; 1 if it is not certain."""
    console = planning.console_for(as_json=as_json)
    survey = planning.loaded_survey(asked)
    from timewheel.core.planfile import save_plan
    from timewheel.spark_planner import estimate
    from timewheel.spark_planner.results import facts
    from timewheel.spark_planner.results.tables import estimated_tables

    with planning.refused_requests():
        wanted = survey.statistic.topic(asked.topic)
        found = estimate(
            survey,
            wanted,
            base_of(wanted),
            profile,
            constraints_of(),
            max_delay_ms=max_delay_ms,
            growth=planning.growth_of(asked.growth, None, console),
            as_is=asked.as_is,
        )
    if found.is_certain:
        say(console, facts.consequence(found), style=style_of(found, survey.statistic))
    say(console, facts.estimated_verdict(found), style=style_of(found, survey.statistic))
    planning.show_reading(console, survey.statistic, wanted, found.continued)
    if keys := facts.describe_keys(found):
        say(console, keys)
    # Of a continued survey native gaps are known better than by the law that the reasons go by.
    for reason in found.choice.reasons if found.is_certain and found.continued.continuation is None else ():
        say(console, reason, indent=2)
    for table in estimated_tables(found):
        show_table(console, table)
    if out is not None:
        save_plan(found.plan, out)
        show_line(console, f"plan    {out}")
    if found.is_short_of_room:
        show_with_room(context, console)
    if as_json:
        print(json.dumps(facts.estimated_facts(found), indent=1))
    raise typer.Exit(status_of(found, survey.statistic))


def compare(
    plan_files: Annotated[list[Path], Argument(metavar="PLAN...", help="Plan files.", show_default=False)],
    history: planning.MaybeHistory = None,
    *,
    asked: PlannerOptions,
    cluster: ProfileOptions,
    as_json: planning.PlannerJson = False,
) -> None:
    """Predict the results of several plans on the same history, side by side."""
    _compare(plan_files, history, asked, cluster, as_json=as_json)


def predict(
    plan_file: Annotated[Path, Argument(metavar="PLAN", help="A plan file.", show_default=False)],
    history: planning.MaybeHistory = None,
    *,
    asked: PlannerOptions,
    cluster: ProfileOptions,
    as_json: planning.PlannerJson = False,
) -> None:
    """Predict the result of a plan on a history, and replay every timer through it."""
    _compare([plan_file], history, asked, cluster, as_json=as_json)


def _compare(
    plan_files: list[Path], history: str | None, asked: PlannerOptions, cluster: ProfileOptions, *, as_json: bool
) -> None:
    if asked.stored is not None and history is not None:
        # With --from there is no history: the last word is also a plan.
        plan_files, history = [*plan_files, Path(history)], None
    planning.need_one_source(history, asked, {})
    console = planning.console_for(as_json=as_json)
    # An invalid plan is reported before any request to a broker and before Spark starts.
    plans, note = {str(path): Plan.load(path) for path in plan_files}, planning.note_of(history)
    profile = cluster.shown(console, None if note is None else note.profile)
    if history is None:
        predict_from(asked, plans, profile, as_json=as_json)
        return
    with asked.session() as spark:
        from timewheel.spark_planner import compare as compared

        growth = planning.growth_of(asked.growth, note, console)
        with planning.progress_on(console) as on_progress:
            seen = asked.survey(spark, history, on_progress)
            wanted = seen.topic(asked.topic)
            found = compared(seen, wanted, plans, profile, growth=growth, as_is=asked.as_is, on_progress=on_progress)
    _print(console, found, growth)
    if as_json:
        print(json.dumps(_facts(found, growth), indent=1))
    end_on_enough(console, seen.statistic)


def end_on_enough(console: Console, statistic: Statistic) -> None:
    """End the command with an error if too few rows of the history were used."""
    if statistic.too_few:
        say(console, f"{statistic.too_few}all figures above.", style="bold red")
        raise typer.Exit(FAILED)


def _print(console: Console, found: Mapping[str, Prediction], growth: float) -> None:
    from timewheel.spark_planner.results import tables

    traffic = next(iter(found.values())).traffic  # the same for all
    planning.show_reading(console, traffic.history.statistic, traffic.topic, traffic)
    for name, one in found.items():
        say(console, f"{name}: {tables.plan_label(one.grown.plan)}")
    show_table(console, tables.evaluations_table({name: one.grown for name, one in found.items()}, growth, found))
    show_table(console, tables.prediction_table(found))
    for name, one in found.items():
        hops = tables.hop_table(one.evaluation)
        if hops is not None and len(found) == 1:
            show_table(console, hops)
        moved = tables.shadow_table(one.grown)
        if moved is not None:
            say(console, name)
            show_table(console, moved)
        if tables.replayed_gaps(one.grown, growth, one).value > one.grown.gap_limit_ranges:
            say(console, f"{name}: more gaps than the broker keeps", style="bold red")


def _facts(found: Mapping[str, Prediction], growth: float) -> dict[str, Any]:
    from timewheel.spark_planner.results import facts

    traffic = next(iter(found.values())).traffic  # the same for all
    return {
        "history": facts.history_facts(traffic.history),
        "topic": traffic.topic,
        "steady_state": facts.extrapolation_facts(traffic),
        "growth": growth,
        "plans": {
            name: {**facts.prediction_facts(one), "predicted_at_growth": facts.evaluation_facts(one.grown)}
            for name, one in found.items()
        },
    }


def predict_from(asked: PlannerOptions, plans: Mapping[str, Plan], profile: BrokerProfile, *, as_json: bool) -> None:
    """Evaluate plans on a survey, without Spark, and report how far the gap law is off for native delays."""
    console = planning.console_for(as_json=as_json)
    survey = planning.loaded_survey(asked)
    from timewheel.spark_planner.estimating import native_found
    from timewheel.spark_planner.extrapolation import continued_from
    from timewheel.spark_planner.history.keys import EVEN
    from timewheel.spark_planner.pricing.evaluate import evaluate
    from timewheel.spark_planner.results import facts
    from timewheel.spark_planner.results.tables import evaluations_table
    from timewheel.spark_planner.summary.survey import DailyGaps

    growth = planning.growth_of(asked.growth, None, console)
    with planning.refused_requests():
        wanted = survey.statistic.topic(asked.topic)
    alone = survey.statistic.cells[wanted]
    continued = continued_from(alone, as_is=asked.as_is)
    keys = survey.keys.get(wanted, EVEN)
    found = {name: evaluate(plan, continued.cells, profile, growth=growth, keys=keys) for name, plan in plans.items()}
    native = native_found(survey.gaps.get(wanted, DailyGaps.none()), alone, continued)
    planning.show_reading(console, survey.statistic, wanted, continued)
    said = f"Native delays on one partition leave at most {counted(native.counted, 'gap')} in this history (counted)"
    if not native.independent:
        said += (
            f", {native.ratio:.2g} times what independent delays would: estimates of other plans may be as wrong. "
            "Count them: timewheel predict with the history itself"
        )
    say(console, f"{said}.", style="" if native.independent else "bold red")
    show_table(console, evaluations_table(found, growth))
    if as_json:
        told = {"topic": wanted, "growth": growth, "native_peak_gaps": native.counted, "native_ratio": native.ratio}
        evaluated = {name: facts.evaluation_facts(one) for name, one in found.items()}
        print(json.dumps({**told, "plans": evaluated}, indent=1))
    end_on_enough(console, survey.statistic)
