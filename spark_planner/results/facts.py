"""The planner's results as JSON: every number under a name with its unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from timewheel.core.planfile import dump_plan
from timewheel.spark_planner.choice.assessed import Assessed
from timewheel.spark_planner.choice.constraints import Cost
from timewheel.spark_planner.choice.reasons import describe
from timewheel.spark_planner.exact.replay_result import Peak
from timewheel.spark_planner.job import Planned, Prediction
from timewheel.spark_planner.pricing.evaluation import Evaluation
from timewheel.spark_planner.results.copies import copies_facts
from timewheel.spark_planner.results.growth import growth_facts
from timewheel.spark_planner.results.money import Prices, monthly
from timewheel.spark_planner.results.skew import key_facts
from timewheel.spark_planner.results.steady import extrapolation_facts
from timewheel.spark_planner.traffic import History

__all__ = ["assessed_facts", "evaluation_facts", "history_facts", "planned_facts", "prediction_facts"]

_CURVES = ("gaps_at_ms", "gaps")
"""Arrays of thousands of numbers, for charts."""


def planned_facts(planned: Planned, prices: Prices | None = None) -> dict[str, Any]:
    """Return the output of `timewheel plan` as JSON, without the curves.

    Args:
        planned: The result of the planner.
        prices: Prices for a month's cost; None: the cost is left out.
    """
    choice, alone = planned.choice, planned.native_alone
    return {
        "history": history_facts(planned.history),
        "topic": planned.topic,
        "profile": asdict(planned.profile),
        "constraints": asdict(planned.constraints),
        "growth": planned.growth,
        "keeps_limits": planned.keeps_limits,
        "gap_room": planned.gap_room,
        "is_short_of_room": planned.is_short_of_room,
        "plan": dump_plan(planned.plan),
        "reasons": list(choice.reasons),
        "recommended": {**assessed_facts(choice.recommended), "on_this_traffic": prediction_facts(planned.recommended)},
        "native": {
            **evaluation_facts(choice.native),
            **_cost(planned.constraints.cost_of(choice.native)),
            "on_this_traffic": prediction_facts(planned.native),
        },
        "native_alone": None if alone is None else {"peak_gaps": _peak(alone.peak_of_total)},
        "steady_state": extrapolation_facts(planned.traffic),
        "keys": key_facts(planned),
        "copies": copies_facts(planned),
        "candidate_count": choice.considered,
        "priced_count": len(choice.candidates),
        "front": [assessed_facts(one) for one in choice.front],
        "article_rules": {name: assessed_facts(one) for name, one in choice.article},
        "rooms": [asdict(room) for room in choice.rooms],
        "growth_seen": growth_facts(planned),
        "ties": [{**evaluation_facts(one), **_cost(planned.constraints.cost_of(one))} for one in choice.ties],
        "money_a_month": None
        if prices is None or not prices.is_given
        else {
            "prices": asdict(prices),
            "native": _bill(choice.native, prices),
            "recommended": _bill(choice.recommended.evaluation, prices),
        },
    }


def history_facts(history: History) -> dict[str, Any]:
    """Return the facts about the history, quarantine included."""
    statistic = history.statistic
    return {
        "source": history.source,
        "rows": statistic.rows,
        "timers": statistic.timers,
        "timers_by_topic": {topic: cells.timers for topic, cells in statistic.cells.items()},
        "quarantined_by_reason": dict(statistic.quarantined),
        "remarked_by_remark": dict(statistic.remarked),
        "quarantine_samples": {reason: list(texts) for reason, texts in statistic.samples.items()},
        "first_publish_ms": statistic.first_publish_ms,
        "last_publish_ms": statistic.last_publish_ms,
        "cell_count": len(statistic),
        "cell_slot_ms": statistic.slot_ms,
    }


def prediction_facts(prediction: Prediction) -> dict[str, Any]:
    """Return a prediction with the counts of the replay."""
    replay = prediction.replay
    return {
        "predicted": evaluation_facts(prediction.evaluation),
        "counted": {
            "entries": replay.entries,
            "hop_count": replay.hop_count,
            "hop_count_max": replay.hop_count_max,
            "peak_gaps": _peak(replay.peak_of_total),
            "peak_gaps_per_partition": _peak(replay.peak_per_partition),
        },
        "peak_gaps_error": prediction.peak_gaps_error,
    }


def _bill(evaluation: Evaluation, prices: Prices) -> dict[str, float]:
    bill = monthly(evaluation, prices)
    return (
        {}
        if bill is None
        else {name.replace(" ", "_"): amount for name, amount in [*bill.parts, ("total", bill.total)]}
    )


def assessed_facts(one: Assessed) -> dict[str, Any]:
    """Return the facts about a candidate, with its cost and the constraints that it breaks."""
    return {
        **evaluation_facts(one.evaluation),
        **_cost(one.cost),
        "broken_constraints": list(one.broken),
    }


def _cost(cost: Cost) -> dict[str, float]:
    return {
        "cost_writes_per_second": cost.writes_per_second,
        "entries_written_per_second": cost.written,
        "cost_of_topics_writes_per_second": cost.topics,
        "cost_of_relay_writes_per_second": cost.relay,
    }


def evaluation_facts(evaluation: Evaluation) -> dict[str, Any]:
    """Return the facts of an evaluation, without the curves."""
    numbers = {
        field.name: getattr(evaluation, field.name)
        for field in fields(evaluation)
        if field.name not in ("plan", *_CURVES)
    }
    redelivered = {
        name: asdict(numbers[name]) for name in ("redelivered", "redelivered_as_ranges", "redelivered_as_bitmap")
    }
    numbers["shadow"] = None if evaluation.shadow is None else asdict(evaluation.shadow)
    derived: Mapping[str, Any] = {
        "gap_fraction": evaluation.gap_fraction,
        "timers_per_day": evaluation.timers_per_day,
        "writes_per_timer": evaluation.writes_per_timer,
    }
    shape = {"scheme": describe(evaluation.plan), "partitions": evaluation.plan.partitions}
    return {**shape, **numbers, **redelivered, **derived, "step_entries": list(evaluation.step_entries)}


def _peak(peak: Peak) -> dict[str, Any]:
    return {"gap_count": peak.gap_count, "gap_count_limit": peak.gap_count_limit, "at_ms": peak.at_ms}
