"""`timewheel plan --from` and `timewheel predict --from`: answers from a survey, without starting Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from timewheel.cli.plan_next import show_with_room, status_of, style_of
from timewheel.cli.planning import PlannerOptions, console_for, growth_of, refused_requests, show_reading
from timewheel.cli.terminal import say, show_line, show_table
from timewheel.core.extras import need_extras
from timewheel.core.plurals import counted

if TYPE_CHECKING:
    from timewheel.core.broker_profile import BrokerProfile
    from timewheel.core.plan import Plan
    from timewheel.spark_planner import Constraints, Survey

__all__ = ["need_one_source", "plan_from", "predict_from"]


def need_one_source(history: str | None, asked: PlannerOptions, of_history: Mapping[str, object]) -> None:
    """Require either a history or a survey, and refuse options (by name) of a history together with a survey."""
    if (history is None) == (asked.stored is None):
        raise typer.BadParameter("give a history or a survey (--from), not both", param_hint="HISTORY")
    if asked.stored is not None:
        columns = {"--timer-id": asked.timer_id, "--due": asked.due, "--delay": asked.delay}
        for option, given in (*of_history.items(), *columns.items()):
            if given:
                raise typer.BadParameter("it applies to a history, not to --from", param_hint=option)


def _loaded(asked: PlannerOptions) -> Survey:
    assert asked.stored is not None  # need_one_source
    need_extras("the planner", "planner")
    from timewheel.spark_planner import load_survey

    return load_survey(asked.stored)


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
    """Answer, write the plan, and end the command: status 1 if the answer is not certain or the plan breaks a limit, 3
    as for a plan from a history.
    """
    console = console_for(as_json=as_json)
    survey = _loaded(asked)
    from timewheel.core.planfile import save_plan
    from timewheel.spark_planner import estimate, estimated_facts, estimated_verdict
    from timewheel.spark_planner.results.facts import describe_keys
    from timewheel.spark_planner.results.tables import estimated_tables

    with refused_requests():
        wanted = survey.statistic.topic(asked.topic)
        found = estimate(
            survey,
            wanted,
            base_of(wanted),
            profile,
            constraints_of(),
            max_delay_ms=max_delay_ms,
            growth=growth_of(asked.growth, None, console),
            as_is=asked.as_is,
        )
    show_reading(console, survey.statistic, wanted, found.continued)
    if keys := describe_keys(found):
        say(console, keys)
    say(console, estimated_verdict(found), style=style_of(found))
    for reason in found.choice.reasons if found.is_certain else ():
        say(console, reason, indent=2)
    for table in estimated_tables(found):
        show_table(console, table)
    if out is not None:
        save_plan(found.plan, out)
        show_line(console, f"plan    {out}")
    if found.is_short_of_room:
        show_with_room(context, console)
    if as_json:
        print(json.dumps(estimated_facts(found), indent=1))
    raise typer.Exit(status_of(found))


def predict_from(asked: PlannerOptions, plans: Mapping[str, Plan], profile: BrokerProfile, *, as_json: bool) -> None:
    """Evaluate plans, and report how far the gap law is off for native delays."""
    console = console_for(as_json=as_json)
    survey = _loaded(asked)
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
