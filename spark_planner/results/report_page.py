"""The report of a plan: a self-contained page with the plan, the reasons, charts and sliders; the page of a fleet.

The sliders ask for the cheapest candidate at another volume, another limit or another price. A compact statistic of all
candidates goes into the page, whose JavaScript (`_report/templates/what_if.js`) computes the answer from it, by the
formulas of `Constraints`, with gaps, waiting messages and entries in proportion to the volume.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np

from timewheel._report.choices import Bar, BarChart, Choices, Named, bar_chart, choice_chart
from timewheel._report.choices import Choice as Dot
from timewheel._report.gap_chart import GapChart, Mark, Series, gap_chart
from timewheel._report.page import Figure, Fold, Headline, Page, Section, Slider, Sliders, Table
from timewheel._report.render import render_page
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, format_duration, rounded_up
from timewheel.core.escapes import timewheel_command
from timewheel.core.plan import MAX_PARTITIONS, Plan, Tiered
from timewheel.core.planfile import dump_plan
from timewheel.core.plurals import counted

from ..choice.choose import HELPED, Assessed, Choice
from ..choice.constraints import Constraints, at_growth
from ..choice.reasons import Alternative, describe
from ..exact.replay import Replay
from ..fleet import Fleet, NativeFit
from ..job import Planned
from ..pricing.evaluate import Evaluation
from . import facts, tables
from .facts import Prices

MAX_POINTS = 800
"""Most points of a line in a picture of width 700. Of neighbouring moments the highest is drawn, so that peaks remain.
"""
GAPS_CAPTION = (
    "Gap ranges of the fullest partition, every timer of this history replayed. Dashed: what the broker keeps for a "
    "subscription; an unload while a line is above it delivers messages again. A gap is a range of acknowledged "
    "messages behind one that still waits."
)
FRONT_CAPTION = (
    "Each dot is a plan with the partitions it needs; down and to the left is better. The line joins those that no "
    "other beats in both. Gaps: the most in any partition, counted where the plan was counted. Cost: "
)


def gaps_over_time(planned: Planned) -> GapChart:
    cells = planned.history.cells(planned.topic)
    first_ms = int(cells.publish_min_ms.min())
    native, recommended = planned.native.replay, planned.recommended.replay
    last_ms = max(int(played.gaps.grid.points_ms[-1]) for played in (native, recommended))
    units = (("days", DAY_MS), ("hours", HOUR_MS), ("minutes", MINUTE_MS))
    unit, unit_ms = next((pair for pair in units if last_ms - first_ms >= 2 * pair[1]), units[-1])
    partitions = planned.plan.own_partitions
    growth = planned.growth
    volume = "" if growth == 1 else f" Counted at this volume, and grown to {growth:g} times of it."
    end = "last timer sent" if planned.traffic.continuation is None else "continued from here"
    line = partial(_line, first_ms=first_ms, unit_ms=unit_ms, growth=growth)
    series = [Series(name="native, 1 partition", points=line(native))]
    if planned.recommended is not planned.native:
        name = "this plan" if partitions == 1 else f"this plan, of {partitions}"
        series.append(Series(name=name, points=line(recommended)))
    return GapChart(
        title="Gap ranges over time",
        caption=GAPS_CAPTION + volume,
        series=series,
        limit=planned.profile.gap_limit_ranges,
        marks=[Mark(at=(int(cells.publish_max_ms.max()) - first_ms) / unit_ms, name=end)],
        time_unit=f"{unit} since the first timer was sent",
    )


def _line(played: Replay, first_ms: int, unit_ms: int, growth: float) -> list[tuple[float, float]]:
    times_ms = played.gaps.grid.points_ms
    counts = played.gaps.most
    per_point = -(-len(counts) // MAX_POINTS)
    # The exact peak is included, which may be between two moments of the grid.
    peak = played.peak_per_partition
    found = [(float(peak.at_ms), peak.gap_count)]
    for begin in range(0, len(counts), per_point):
        at = begin + int(np.argmax(counts[begin : begin + per_point]))
        found.append((float(times_ms[at]), int(counts[at])))
    points = [(max(at_ms - first_ms, 0.0) / unit_ms, at_growth(count, growth)) for at_ms, count in found]
    return sorted([(0.0, 0.0), *points])


def delays_figure(planned: Planned) -> Figure:
    cells = planned.history.cells(planned.topic)
    bars = [
        Bar(name=name, share=timers / cells.timers, note=f"({timers:,.0f})")
        for name, timers in facts.delay_spans(cells).items()
    ]
    half, most = (rounded_up(facts.delay_quantile_ms(cells, share)) for share in (0.5, 0.99))
    caption = (
        f"From send to due: half of the timers wait at most {half}, 99 % at most {most}, none more than "
        f"{rounded_up(int(cells.delay_max_ms.max()))}. Gaps come from delays that differ: with one fixed delay there "
        "are none."
    )
    return bar_chart(
        BarChart(title="Distribution of delays", caption=caption, bars=bars, axis="share of timers by delay")
    )


def front_figure(planned: Planned) -> Figure:
    """Draw all candidates; those with a name are larger."""

    def label(plan: Plan, known: str) -> str:
        return f"{tables.plan_label(plan)}: {known}"

    def dot(one: Evaluation) -> Dot:
        found = facts.gaps(planned, one)
        cost = planned.constraints.cost_of(one).writes_per_second
        return Dot(plan=label(one.plan, found.known), at=(cost, found.value))

    def dots(found: Iterable[Alternative]) -> list[Dot]:
        return [Dot(plan=label(one.plan, one.gaps.known), at=(one.cost, one.gaps.value)) for one in found]

    choice, limit = planned.choice, planned.profile.gap_limit_ranges
    named = [
        Named(name="today: native, 1 partition", choice=dot(choice.native)),
        *(Named(name=f'rule "{name}"', choice=dot(one.evaluation)) for name, one in choice.article),
        *(Named(name=tables.TIED, choice=one) for one in dots(choice.ties[:1])),
        Named(name="recommended", choice=dot(choice.recommended.evaluation), stands_out=True),
    ]
    return choice_chart(
        Choices(
            title="Candidates by cost and gaps",
            caption=FRONT_CAPTION + tables.prices(planned.constraints),
            points=dots(facts.alternatives_of(planned)),
            front=dots(facts.front(planned)),
            named=named,
            limit=limit,
            limit_name=f"the broker keeps {limit:,} ranges a partition",
            x_name="cost, entries a second (logarithmic)",
            y_name="gap ranges of the fullest partition (logarithmic)",
        )
    )


BY_SLIDERS = frozenset(
    {"gap_fraction", "silence_seconds", "partition_topics", "lateness_seconds", "storage_bytes", "cursor_frame"}
)
"""Limits that depend on the setting; the other limits are kept at all settings or at none."""
SLACK = 1e-9  # tolerance for rounding errors of floats
MORE = 1 + 1e-6  # factor just above a limit
SAME = 1.001
"""The recommended plan stays unless another is cheaper by a thousandth, the accuracy of the partitions' price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A candidate at the planned volume, in numbers that do not depend on its partitions."""

    name: str  # the scheme in words
    window_ms: int  # window of a tiered plan; 0 for other plans
    written: float  # entries a second
    gaps: float  # gaps at the peak of a due topic, its partitions together; counted, if the candidate was counted
    share: float  # part of these that a count found in the fullest partition, if gaps do not divide as timers do
    stuck: float  # gaps of a partition that more partitions do not reduce; 0: more partitions help
    margin: float  # safety factor on the gaps, see `Allowance`
    silence: float  # seconds after an unload, if a single partition had all waiting entries
    cursor_bytes: float  # bytes of a persisted cursor, if a single partition had all entries
    topics: int  # partition topics for each partition
    dead_letters: int  # partition topics of dead letters
    relay: int  # 1 if the plan needs a relay, else 0
    late_above: float | None  # multiple of the volume above which a relay adds more lateness than allowed; None: never
    # multiple of the volume above which the plan needs more bytes on disk than allowed; None: never
    full_above: float | None
    broken: int  # number of broken limits that no slider changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The positions of the sliders."""

    growth: float  # multiple of the planned volume
    gap_fraction: float  # see `Constraints`
    window_ms: int  # only tiered plans of this window; 0: all candidates
    topic_price: float  # price of a partition topic, entries written a second


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The statistic of all candidates, for the page."""

    options: tuple[Option, ...]  # all candidates, in their fixed order
    recommended: int  # index of the recommended candidate
    start: Setting  # start of the sliders: the planned values
    limit_ranges: int  # see `BrokerProfile.gap_limit_ranges`
    silence_seconds: float | None  # see `Constraints`, as for the next two; none: no limit
    partition_topics: int | None  # none: no limit
    relay_price: float  # entries written a second
    frame_bytes: int  # the largest persisted cursor
    max_partitions: int = MAX_PARTITIONS  # the most partitions of a plan

    def as_json(self) -> dict[str, Any]:
        """Return the statistic in the format of the page: a row of numbers for each candidate."""
        names = [field.name for field in fields(Option)]
        own = {
            field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("options", "start")
        }
        rows = [[getattr(one, name) for name in names] for one in self.options]
        return {**own, "start": asdict(self.start), "slack": SLACK, "same": SAME, "fields": names, "options": rows}


def what_if(planned: Planned) -> WhatIf:
    return statistic_of(planned.choice, planned.profile)


def statistic_of(choice: Choice, profile: BrokerProfile) -> WhatIf:
    allowance, limits, options = choice.allowance, choice.allowance.constraints, []
    for one in choice.candidates:
        plan = one.evaluation.plan
        counts = {known.own_partitions: gaps for known, gaps in choice.counted.items() if known.scheme == plan.scheme}
        # A plan that was not counted was priced with the interval of native delays.
        judged = plan if counts else choice.native.plan
        own = allowance.constraints_for(judged)
        gaps, stuck, share = calibrated(
            one.evaluation.peak_gaps_per_topic,
            counts,
            allowance.growth,
            own.allowed_gaps(profile.gap_limit_ranges),
            min((number for number in counts if not choice.broken_by(plan.with_partitions(number))), default=None),
        )
        option = _option(one, limits, profile)
        options.append(replace(option, gaps=gaps, stuck=stuck, share=share, margin=own.gap_margin))
    return WhatIf(
        options=tuple(options),
        recommended=choice.candidates.index(choice.recommended),
        start=Setting(
            growth=1.0, gap_fraction=limits.gap_fraction, window_ms=0, topic_price=limits.topic_writes_per_second
        ),
        limit_ranges=profile.gap_limit_ranges,
        silence_seconds=limits.silence_seconds,
        partition_topics=limits.partition_topics,
        relay_price=limits.relay_writes_per_second,
        frame_bytes=profile.frame_limit_bytes,
        max_partitions=choice.recommended.evaluation.plan.max_partitions,
    )


def _option(one: Assessed, limits: Constraints, profile: BrokerProfile) -> Option:
    evaluation, lateness, storage = one.evaluation, limits.lateness_seconds, limits.storage_bytes
    plan, partitions = evaluation.plan, evaluation.plan.own_partitions
    hops, late_above = evaluation.relay_hops_per_second, None
    if lateness is not None and hops:
        # A relay that keeps up at its busiest adds no lateness; beyond that, lateness is not proportional to the
        # volume.
        keeps_up, is_late = float(profile.relay_hops_per_second) / hops, "lateness_seconds" in one.broken
        late_above = min(keeps_up, 1 - SLACK) if is_late else max(keeps_up, 1.0)
    return Option(
        name=describe(plan),
        window_ms=plan.scheme.window_ms if isinstance(plan.scheme, Tiered) else 0,
        written=limits.cost_of(evaluation).written,
        gaps=evaluation.peak_gaps_per_topic,
        share=1.0,
        stuck=0.0,
        margin=1.0,
        silence=evaluation.silence_seconds * partitions,
        cursor_bytes=evaluation.cursor_bytes * partitions,
        topics=evaluation.topics_of_a_partition,
        dead_letters=evaluation.dead_letter_topics,
        relay=int(evaluation.needs_relay),
        late_above=late_above,
        full_above=None if storage is None or not evaluation.storage_bytes else storage / evaluation.storage_bytes,
        broken=sum(name not in BY_SLIDERS for name in one.broken),
    )


def calibrated(
    estimate: float, counts: Mapping[int, int], growth: float, allowed: float, fits: int | None
) -> tuple[float, float, float]:
    """Correct the estimated gaps of a due topic at the peak by the counts, so that the sliders start at the verdict."""
    # Returns the gaps, the gaps of a partition that more partitions do not reduce, and the share that was counted.
    # Counts are by the number of partitions, in the traffic itself; the rest is at the planned volume. ``fits``: the
    # fewest partitions that are enough by their count; None: none is.
    if not counts:
        return estimate, 0.0, 1.0
    if fits is not None:
        # Gaps need not divide: the result must still be too high for the largest number of partitions that was too few.
        too_few = max((partitions for partitions in counts if partitions < fits), default=0)
        own = at_growth(counts[fits], growth) * fits
        gaps = min(max(own, allowed * too_few * MORE), allowed * fits)
        return gaps, 0.0, min(own / gaps, 1.0) if gaps else 1.0
    *_, before, last = [0, *sorted(counts)]
    stuck = before and counts[last] > HELPED * counts[before]
    gaps = at_growth(counts[last], growth)
    return gaps * last, gaps if stuck else 0.0, 1.0


def windows_ms(options: Sequence[Option]) -> list[int]:
    return sorted({one.window_ms for one in options if one.window_ms})


GROWTHS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 20.0)
GAP_FRACTIONS = tuple(percent / 100 for percent in range(5, 101, 5))
TOPIC_PRICES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
ROWS = (
    ("plan", "plan"),
    ("partitions", "partitions"),
    ("gaps", "gaps in the fullest partition"),
    ("topics", "partition topics, all"),
    ("cost", "cost, entries a second"),
    ("broken", "limits broken"),
)


def sliders(statistic: WhatIf) -> Sliders:
    start = statistic.start
    windows = [0, *windows_ms(statistic.options)]
    found: list[tuple[str, str, Sequence[float], Callable[[float], str]]] = [
        ("growth", "Volume", GROWTHS, lambda times: f"{times:g} x"),
        ("gap_fraction", "Of the broker's gap limit", GAP_FRACTIONS, lambda part: f"{100 * part:.3g} %"),
        ("window_ms", "Window", windows, lambda ms: format_duration(int(ms)) if ms else "any plan"),
        ("topic_price", "Price of a topic", TOPIC_PRICES, lambda price: f"{price:g} entries/s"),
    ]
    return Sliders(
        sliders=[_slider(name, label, usual, getattr(start, name), written) for name, label, usual, written in found],
        statistic=statistic.as_json(),
        rows=ROWS,
        columns=("cheapest here", "recommended plan"),
    )


def _slider(name: str, label: str, usual: Iterable[float], start: float, written: Callable[[float], str]) -> Slider:
    stops = sorted({*usual, start})
    return Slider(
        name=name, label=label, stops=stops, texts=[written(stop) for stop in stops], start=stops.index(start)
    )


CERTAINTY = "with 95% confidence"


def headlines(planned: Planned, prices: Prices | None = None) -> list[Headline]:
    partitions = planned.plan.own_partitions
    where = "one partition" if partitions == 1 else f"the fullest of {partitions} partitions"
    return [
        _gaps("Gaps now", planned, planned.choice.native, "native delays, one partition"),
        _gaps("Gaps then", planned, planned.choice.recommended.evaluation, f"this plan, {where}"),
        _cost(planned, prices),
    ]


def _gaps(name: str, planned: Planned, evaluation: Evaluation, where: str) -> Headline:
    gaps = facts.gaps(planned, evaluation)
    limit, value = planned.profile.gap_limit_ranges, gaps.value
    band = facts.describe_band(planned, evaluation.plan, gaps)
    band = band and f"{band} {CERTAINTY}"
    lines = [f"{where}: {value / max(limit, 1):.0%} of the {limit:,} that the broker keeps", *filter(None, [band])]
    # Gaps above the requested fraction, but within the broker's limit, are neither good nor bad.
    good = True if value <= planned.constraints.gap_fraction * limit else False if value > limit else None
    return Headline(name=name, value=str(gaps), unit="gaps at the peak", known=gaps.known, lines=lines, good=good)


def _cost(planned: Planned, prices: Prices | None) -> Headline:
    choice, limits = planned.choice, planned.constraints
    chosen, native = choice.recommended.evaluation, limits.cost_of(choice.native)
    plan = limits.cost_of(chosen)
    times = plan.written / native.written if native.written else 1.0
    own = f"{plan.topics:,.1f} for {counted(chosen.partition_topics, 'partition topic')} (--topic-cost)"
    own += f" and {plan.relay:,.1f} for a relay (--relay-cost)" if plan.relay else ""
    lines = [
        f"{times:.2f} times the {native.written:,.2f} of native delays",
        f"plans are compared with the planner's own prices: {own}, {plan.writes_per_second:,.1f} in all; native "
        f"{native.writes_per_second:,.1f}",
    ]
    if choice.native.history_ms < MINUTE_MS:
        lines.append("the mean of a minute, though this history is shorter")
    bill, today = facts.monthly(chosen, prices), facts.monthly(choice.native, prices)
    if bill is not None and today is not None:
        lines.insert(0, f"{bill.said(bill.total)} a month, native {today.said(today.total)}")
    value, unit = f"{plan.written:,.2f}", "entries written a second"
    return Headline(name="What it costs", value=value, unit=unit, known="estimated", lines=lines)


HOW_KNOWN = (
    "Predictions come from a statistic of the history; counts from a replay of every timer that takes each message as "
    "handled when it is due and its relay as always up. Neither was measured on a broker."
)
WHAT_IF = (
    "These figures are estimated: gaps, waiting messages and entries grow with the volume, and each plan gets the "
    "partitions that it needs. The plan above was chosen by counts. A candidate that was counted starts from its "
    "count here, so the sliders begin at that decision. The volume is in times of what was planned for."
)


def report_page(
    planned: Planned,
    *,
    plan_file: str = "plan.toml",
    prices: Prices | None = None,
    steps: Sequence[tuple[str, Sequence[str]]] | None = None,
) -> str:
    """Render the page as HTML.

    Args:
        planned: The result of the planner.
        plan_file: File of the plan, for the commands.
        prices: Prices for a month's cost; None: the cost is left out.
        steps: What to do next, as pairs of a purpose and the words of a command; None: see `next_steps`.
    """
    growth, statistic = [said for said in (facts.describe_growth(planned),) if said], planned.history.statistic
    notices = facts.describe_traffic(planned.traffic)
    if left_out := sum(statistic.quarantined.values()):
        notices.append(
            f"{left_out:,} of {counted(statistic.rows, 'row')} of the history could not be used (see Quarantine)."
        )
    page = Page(
        title=f"timewheel plan: {planned.plan.due_topic}",
        verdict=facts.consequence(planned),
        good=planned.keeps_limits and not statistic.too_few,
        answer=[facts.verdict(planned), facts.in_words(planned.plan)],
        steps=[
            (purpose, timewheel_command(*words))
            for purpose, words in (facts.next_steps(planned.plan, plan_file) if steps is None else steps)
        ],
        headlines=headlines(planned, prices),
        notices=[*notices, *filter(None, [facts.describe_copies(planned), facts.describe_keys(planned)])],
        figure=gap_chart(gaps_over_time(planned)),
        sections=[
            Section(
                heading="Why",
                sentences=planned.choice.reasons,
                ranked=True,
                tables=[tables.plans_table(planned)],
                folds=[Fold(name="Simple rules, for comparison", table=tables.rules_table(planned))],
            ),
            _costs(planned, prices),
            Section(heading="Room to the limits", sentences=growth, tables=[tables.room_table(planned)]),
            Section(heading="What if", sentences=[facts.WITHOUT_SLIDERS])
            if planned.plan.intake
            else Section(heading="What if", sentences=[WHAT_IF], sliders=sliders(what_if(planned))),
            Section(
                heading="Alternatives",
                figure=front_figure(planned),
                folds=[Fold(name="The candidates that no other beats", table=tables.front_table(planned))],
            ),
            Section(heading="Delays", figure=delays_figure(planned)),
            _made_from(planned),
        ],
        notes=[HOW_KNOWN],
        commands=[(f"The plan, {plan_file}:", dump_plan(planned.plan))],
    )
    return render_page(page)


def _costs(planned: Planned, prices: Prices | None) -> Section:
    shadow = tables.shadow_table(planned.choice.recommended.evaluation)
    needs, hops = tables.needs_table(planned), tables.hop_table(planned.recommended.evaluation)
    return Section(
        heading="Costs",
        tables=[tables.cost_table(planned, prices), *([] if shadow is None else [shadow])],
        folds=_folds({"What else it needs": needs, "Hops": hops}),
    )


def _folds(found: Mapping[str, Table | None]) -> list[Fold]:
    return [Fold(name=name, table=table) for name, table in found.items() if table is not None]


def _made_from(planned: Planned) -> Section:
    quarantine = tables.quarantine_table(planned.history.statistic)
    predictions = tables.prediction_table(tables.both(planned))
    return Section(
        heading="What this is made from",
        sentences=facts.describe_native(planned),
        facts=_facts(planned),
        folds=_folds({"How good the prediction is": predictions, "Quarantine": quarantine}),
    )


def _facts(planned: Planned) -> list[tuple[str, str]]:
    statistic, cells = planned.history.statistic, planned.history.cells(planned.topic)
    volume, continued = planned.recommended.evaluation.timers_per_day, planned.traffic.continuation
    planned_for = "this volume" if planned.growth == 1 else f"{planned.growth:g} times this volume"
    if continued is None:
        planned_for += ", in the time of the history"
    else:
        until = datetime.fromtimestamp((continued.days.end_ms + len(continued.sources) * DAY_MS) / 1_000, UTC)
        further = counted(len(continued.sources), "day")
        planned_for += f", and the history continued by {further}, until {until:%Y-%m-%d}"
    return [
        ("History", planned.history.source + (f", topic {planned.topic}" if planned.topic else "")),
        ("As read", f"{facts.reading(cells).removeprefix('As read: ')} {volume:,.0f} a day."),
        ("Not used", f"{sum(statistic.quarantined.values()):,} of {counted(statistic.rows, 'row')}"),
        ("Planned for", planned_for),
        (
            "Broker",
            f"profile {planned.profile.name}: keeps {planned.profile.gap_limit_ranges:,} gap ranges a partition "
            f"({planned.profile.ack_format}); at most {planned.constraints.gap_fraction:.0%} of that was allowed",
        ),
        ("Prediction", f"{planned.recommended.peak_gaps_error:+.1%} off the exact count of the peak"),
    ]


FLEET_KNOWN = (
    "Gaps now are counted: every timer of the history under native delays on one partition, at 1,024 moments. Again: "
    "messages that an unload at the worst moment delivers a second time; this and the cost (entries written a second, "
    "topics and relay included) are estimated. A topic that stays needs no other plan: none would be cheaper."
)


def fleet_page(fleet: Fleet, pages: Mapping[str, str]) -> str:
    matter = [one for one in fleet.topics if one.native_fit != NativeFit.FINE]
    others = [one for one in fleet.topics if one.native_fit == NativeFit.FINE]
    rest = tables.fleet_table(fleet, others, "Topics that stay, the one nearest to its limit first")
    sections = [
        Section(
            heading="Topics that matter",
            sentences=[] if matter else ["None: every topic stays as it is."],
            links=[(topic, name) for topic, name in pages.items()],
            tables=[tables.fleet_table(fleet, matter, "The one furthest beyond its limit first")] if matter else [],
        ),
        Section(
            heading="All others",
            folds=[Fold(name=counted(len(others), "topic that stays", "topics that stay"), table=rest)],
        ),
    ]
    limit = fleet.profile.gap_limit_ranges
    worst = max(fleet.topics, key=lambda one: one.peak.gap_count)
    now = sum(facts.fleet_again(one).value for one in fleet.topics)
    plans = {topic: facts.again(one, one.choice.recommended.evaluation) for topic, one in fleet.planned.items()}
    then = sum(plans.get(one.topic, facts.fleet_again(one)).value for one in fleet.topics)
    cards = [
        Headline(
            name="Topics at risk",
            value=f"{len(matter):,}",
            unit=f"of {len(fleet.topics):,}",
            known="counted",
            lines=[f"{counted(fleet.history.statistic.timers, 'timer')} in all"],
            good=not matter,
        ),
        Headline(
            name="Most gaps now",
            value=f"{worst.peak.gap_count:,}",
            unit="gaps at the peak",
            known="counted",
            lines=[f"{worst.topic}: {worst.gap_fraction:.0%} of the {limit:,} that the broker keeps"],
            good=worst.peak.gap_count <= limit,
        ),
        Headline(
            name="Delivered again",
            value=f"{now:,.0f}",
            unit="messages, if each topic is unloaded at its worst moment",
            known="estimated",
            lines=[f"with these plans {then:,.0f}"],
            good=now < 1,
        ),
    ]
    page = Page(
        title=f"timewheel plan: {counted(len(fleet.topics), 'topic')}",
        verdict=facts.fleet_verdict(fleet),
        good=fleet.keeps_limits and not fleet.history.statistic.too_few,
        headlines=cards,
        notices=[f"No plan yet, since more topics matter than were to be planned for: {', '.join(fleet.waiting)}."]
        if fleet.waiting
        else [],
        sections=sections,
        notes=[FLEET_KNOWN],
        commands=[("Of one topic:", dump_plan(planned.plan)) for planned in list(fleet.planned.values())[:1]],
    )
    return render_page(page)
