"""The report of a plan: a self-contained page with the plan, the reasons, and the accuracy of the prediction."""

from __future__ import annotations

from datetime import UTC, datetime

from timewheel._report.gap_chart import gap_chart
from timewheel._report.page import Fold, Page, Section
from timewheel._report.render import render_page
from timewheel.core.durations import DAY_MS
from timewheel.core.escapes import timewheel_command
from timewheel.core.planfile import dump_plan
from timewheel.core.plurals import counted
from timewheel.spark_planner.job import Planned
from timewheel.spark_planner.results import costs, tables
from timewheel.spark_planner.results.charts import delays_figure, front_figure, gaps_over_time
from timewheel.spark_planner.results.copies import describe_copies
from timewheel.spark_planner.results.delays import reading
from timewheel.spark_planner.results.growth import describe_growth
from timewheel.spark_planner.results.headlines import headlines
from timewheel.spark_planner.results.money import Prices
from timewheel.spark_planner.results.shadow import WITHOUT_SLIDERS, shadow_table
from timewheel.spark_planner.results.skew import describe_keys
from timewheel.spark_planner.results.sliders import sliders
from timewheel.spark_planner.results.steady import describe_native, describe_traffic
from timewheel.spark_planner.results.verdict import verdict
from timewheel.spark_planner.results.what_if import what_if

__all__ = ["page_of", "report_page"]

HOW_KNOWN = (
    "Predictions come from a statistic of the history; counts from a replay of every timer that takes each message as "
    "handled when it is due and its relay as always up. Neither was measured on a broker."
)
WHAT_IF = (
    "These figures are estimated: gaps, waiting messages and entries grow with the volume, and each plan gets the "
    "partitions that it needs. The plan above was chosen by counts. A candidate that was counted starts from its "
    "count here, so the sliders begin at that decision. The volume is in times of what was planned for."
)


def report_page(planned: Planned, *, plan_file: str = "plan.toml", prices: Prices | None = None) -> str:
    """Render the page as HTML.

    Args:
        planned: The result of the planner.
        plan_file: File of the plan, for the commands at the end.
        prices: Prices for a month's cost; None: the cost is left out.
    """
    return render_page(page_of(planned, plan_file=plan_file, prices=prices))


def page_of(planned: Planned, *, plan_file: str = "plan.toml", prices: Prices | None = None) -> Page:
    """Build the page as values, see `report_page`."""
    return Page(
        title=f"timewheel plan: {planned.plan.due_topic}",
        verdict=verdict(planned),
        good=planned.keeps_limits,
        headlines=headlines(planned, prices),
        notices=_notices(planned),
        figure=gap_chart(gaps_over_time(planned)),
        sections=[
            _why(planned),
            _costs(planned, prices),
            _room(planned),
            _what_if(planned),
            Section(
                heading="Alternatives",
                figure=front_figure(planned),
                folds=[Fold(name="The candidates that no other beats", table=tables.front_table(planned))],
            ),
            Section(heading="Delays", figure=delays_figure(planned)),
            _made_from(planned),
        ],
        notes=[HOW_KNOWN],
        commands=[
            ("The plan:", dump_plan(planned.plan)),
            ("Make its topics:", timewheel_command("topics", "ensure", plan_file, "--dry-run")),
            *([("Run the shadow:", timewheel_command("shadow", "run", plan_file))] if planned.plan.intake else []),
        ],
    )


def _what_if(planned: Planned) -> Section:
    if planned.plan.intake:
        return Section(heading="What if", sentences=[WITHOUT_SLIDERS])
    return Section(heading="What if", sentences=[WHAT_IF], sliders=sliders(what_if(planned)))


def _notices(planned: Planned) -> list[str]:
    statistic = planned.history.statistic
    said = describe_traffic(planned.traffic)
    left_out = sum(statistic.quarantined.values())
    if left_out:
        said.append(
            f"{left_out:,} of {counted(statistic.rows, 'row')} of the history could not be used (see Quarantine)."
        )
    return [*said, *filter(None, [describe_copies(planned), describe_keys(planned)])]


def _why(planned: Planned) -> Section:
    return Section(
        heading="Why",
        sentences=planned.choice.reasons,
        ranked=True,
        tables=[tables.plans_table(planned)],
        folds=[Fold(name="Simple rules, for comparison", table=tables.rules_table(planned))],
    )


def _costs(planned: Planned, prices: Prices | None) -> Section:
    hops = tables.hop_table(planned.recommended.evaluation)
    shadow = shadow_table(planned.choice.recommended.evaluation)
    return Section(
        heading="Costs",
        tables=[costs.cost_table(planned, prices), *([] if shadow is None else [shadow])],
        folds=[
            Fold(name="What else it needs", table=costs.needs_table(planned)),
            *([] if hops is None else [Fold(name="Hops", table=hops)]),
        ],
    )


def _room(planned: Planned) -> Section:
    said = describe_growth(planned)
    return Section(heading="Room to the limits", sentences=[said] if said else [], tables=[tables.room_table(planned)])


def _made_from(planned: Planned) -> Section:
    quarantine = tables.quarantine_table(planned.history.statistic)
    predictions = tables.prediction_table(tables.both(planned))
    return Section(
        heading="What this is made from",
        sentences=describe_native(planned),
        facts=_facts(planned),
        folds=[
            Fold(name="How good the prediction is", table=predictions),
            *([] if quarantine is None else [Fold(name="Quarantine", table=quarantine)]),
        ],
    )


def _facts(planned: Planned) -> list[tuple[str, str]]:
    statistic, cells = planned.history.statistic, planned.history.cells(planned.topic)
    volume = planned.recommended.evaluation.timers_per_day
    return [
        ("History", planned.history.source + (f", topic {planned.topic}" if planned.topic else "")),
        ("As read", f"{reading(cells).removeprefix('As read: ')} {volume:,.0f} a day."),
        ("Not used", f"{sum(statistic.quarantined.values()):,} of {counted(statistic.rows, 'row')}"),
        ("Planned for", _planned_for(planned)),
        (
            "Broker",
            f"profile {planned.profile.name}: keeps {planned.profile.gap_limit_ranges:,} gap ranges a partition "
            f"({planned.profile.ack_format}); at most {planned.constraints.gap_fraction:.0%} of that was allowed",
        ),
        ("Prediction", f"{planned.recommended.peak_gaps_error:+.1%} off the exact count of the peak"),
    ]


def _planned_for(planned: Planned) -> str:
    volume = "this volume" if planned.growth == 1 else f"{planned.growth:g} times this volume"
    continued = planned.traffic.continuation
    if continued is None:
        return f"{volume}, in the time of the history"
    until_ms = continued.days.end_ms + len(continued.sources) * DAY_MS
    until = datetime.fromtimestamp(until_ms / 1_000, UTC)
    return f"{volume}, and the history continued by {counted(len(continued.sources), 'day')}, until {until:%Y-%m-%d}"
