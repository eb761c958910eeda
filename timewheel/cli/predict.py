"""`timewheel predict` and `timewheel compare`: replay a history through plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from timewheel.cli.broker_profile import ProfileOptions
from timewheel.cli.options import with_options
from timewheel.cli.planning import (
    AsJson,
    MaybeHistory,
    PlannerOptions,
    console_for,
    growth_of,
    loaded_survey,
    need_one_source,
    note_of,
    progress_on,
    refused_requests,
    show_reading,
)
from timewheel.cli.terminal import say, show_table
from timewheel.core.plan import Plan
from timewheel.core.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from timewheel.core.broker_profile import BrokerProfile
    from timewheel.spark_planner import Prediction, Traffic


@with_options
def compare(
    plan_files: Annotated[list[Path], Argument(metavar="PLAN...", help="Plan files.", show_default=False)],
    history: MaybeHistory = None,
    *,
    asked: PlannerOptions,
    cluster: ProfileOptions,
    as_json: AsJson = False,
) -> None:
    """Predict the results of several plans on the same history, side by side."""
    _compare(plan_files, history, asked, cluster, as_json=as_json)


@with_options
def predict(
    plan_file: Annotated[Path, Argument(metavar="PLAN", help="A plan file.", show_default=False)],
    history: MaybeHistory = None,
    *,
    asked: PlannerOptions,
    cluster: ProfileOptions,
    as_json: AsJson = False,
) -> None:
    """Predict the result of a plan on a history, and replay every timer through it."""
    _compare([plan_file], history, asked, cluster, as_json=as_json)


def _compare(
    plan_files: list[Path], history: str | None, asked: PlannerOptions, cluster: ProfileOptions, *, as_json: bool
) -> None:
    if asked.stored is not None and history is not None:
        # With --from there is no history: the last word is also a plan.
        plan_files, history = [*plan_files, Path(history)], None
    need_one_source(history, asked, {})
    console = console_for(as_json=as_json)
    # An invalid plan is reported before any request to a broker and before Spark starts.
    plans, note = {str(path): Plan.load(path) for path in plan_files}, note_of(history)
    profile = cluster.shown(console, None if note is None else note.profile)
    if history is None:
        predict_from(asked, plans, profile, as_json=as_json)
        return
    with asked.session() as spark:
        from timewheel.spark_planner import compare as compared

        growth = growth_of(asked.growth, note, console)
        with progress_on(console) as on_progress:
            seen = asked.survey(spark, history, on_progress)
            wanted = seen.topic(asked.topic)
            found = compared(seen, wanted, plans, profile, growth=growth, as_is=asked.as_is, on_progress=on_progress)
    _print(console, found, growth)
    if as_json:
        print(json.dumps(_facts(found, growth), indent=1))


def _print(console: Console, found: Mapping[str, Prediction], growth: float) -> None:
    from timewheel.spark_planner.results import tables
    from timewheel.spark_planner.results.tables import shadow_table

    traffic = _traffic_of(found)
    show_reading(console, traffic.history.statistic, traffic.topic, traffic)
    for name, one in found.items():
        say(console, f"{name}: {tables.plan_label(one.grown.plan)}")
    show_table(console, tables.evaluations_table({name: one.grown for name, one in found.items()}, growth))
    show_table(console, tables.prediction_table(found))
    for name, one in found.items():
        hops = tables.hop_table(one.evaluation)
        if hops is not None and len(found) == 1:
            show_table(console, hops)
        moved = shadow_table(one.grown)
        if moved is not None:
            say(console, name)
            show_table(console, moved)
        if one.grown.gap_fraction > 1:
            say(console, f"{name}: more gaps than the broker keeps", style="bold red")


def _facts(found: Mapping[str, Prediction], growth: float) -> dict[str, Any]:
    from timewheel.spark_planner.results.facts import (
        evaluation_facts,
        extrapolation_facts,
        history_facts,
        prediction_facts,
    )

    traffic = _traffic_of(found)
    return {
        "history": history_facts(traffic.history),
        "topic": traffic.topic,
        "steady_state": extrapolation_facts(traffic),
        "growth": growth,
        "plans": {
            name: {**prediction_facts(one), "predicted_at_growth": evaluation_facts(one.grown)}
            for name, one in found.items()
        },
    }


def _traffic_of(found: Mapping[str, Prediction]) -> Traffic:
    """Return the traffic, which is the same for all predictions."""
    return next(iter(found.values())).traffic


def predict_from(asked: PlannerOptions, plans: Mapping[str, Plan], profile: BrokerProfile, *, as_json: bool) -> None:
    """Evaluate plans on a survey, without Spark, and report how far the gap law is off for native delays."""
    console = console_for(as_json=as_json)
    survey = loaded_survey(asked)
    from timewheel.spark_planner import evaluate
    from timewheel.spark_planner.estimating import native_found
    from timewheel.spark_planner.extrapolation import continued_from
    from timewheel.spark_planner.history.keys import EVEN
    from timewheel.spark_planner.results.facts import evaluation_facts
    from timewheel.spark_planner.results.tables import evaluations_table
    from timewheel.spark_planner.summary.survey import DailyGaps

    growth = growth_of(asked.growth, None, console)
    with refused_requests():
        wanted = survey.statistic.topic(asked.topic)
    alone = survey.statistic.cells[wanted]
    continued = continued_from(alone, as_is=asked.as_is)
    keys = survey.keys.get(wanted, EVEN)
    found = {name: evaluate(plan, continued.cells, profile, growth=growth, keys=keys) for name, plan in plans.items()}
    native = native_found(survey.gaps.get(wanted, DailyGaps.none()), alone, continued)
    show_reading(console, survey.statistic, wanted, continued)
    said = f"Native delays on one partition leave at most {counted(native.counted, 'gap')} in this history (counted)"
    if not native.independent:
        said += (
            f", {native.ratio:.2g} times what independent delays would: estimates of other plans may be as wrong. "
            "Count them: timewheel predict with the history itself"
        )
    say(console, f"{said}.", style="" if native.independent else "bold red")
    show_table(console, evaluations_table(found, growth))
    if as_json:
        facts = {
            "topic": wanted,
            "growth": growth,
            "native_peak_gaps": native.counted,
            "native_ratio": native.ratio,
            "plans": {name: evaluation_facts(one) for name, one in found.items()},
        }
        print(json.dumps(facts, indent=1))
