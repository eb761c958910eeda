"""The whole job: reads a history once into a statistic, chooses a plan from the statistic, and replays it exactly.

Every function takes and returns values, so that a notebook can stop between any two of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.plan import Plan
from timewheel.spark_planner.choice.assessed import Assessed, assess
from timewheel.spark_planner.choice.candidates import candidate_plans
from timewheel.spark_planner.choice.choose import Choice, Decided, Further, choose, coarse_cells
from timewheel.spark_planner.choice.constraints import TWICE, Constraints, at_growth, max_countable, times_until
from timewheel.spark_planner.choice.hindrance import Hindrance
from timewheel.spark_planner.choice.reasons import describe
from timewheel.spark_planner.deciding import Deciding
from timewheel.spark_planner.exact.replay import Replay
from timewheel.spark_planner.history.keys import KeyShares
from timewheel.spark_planner.pricing.evaluate import evaluate
from timewheel.spark_planner.pricing.evaluation import Evaluation
from timewheel.spark_planner.progress import ProgressCallback, no_report, told
from timewheel.spark_planner.replays import Replays
from timewheel.spark_planner.traffic import History, Traffic, traffic_of

__all__ = ["Planned", "Prediction", "compare", "plan_for", "predict"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prediction:
    """A plan on the traffic itself: the prediction from the statistic, and the exact replay of every timer.

    Args:
        traffic: The traffic.
        evaluation: Prediction from the cells.
        replay: Exact replay, entry by entry.
        grown: The evaluation at the volume of interest.
    """

    traffic: Traffic
    evaluation: Evaluation
    replay: Replay
    grown: Evaluation

    @property
    def peak_gaps_error(self) -> float:
        """Relative error of the predicted peak of all partitions together against the counted peak; 0 if both are 0."""
        exact = self.replay.peak_of_total.gap_count
        return (self.evaluation.peak_gaps - exact) / max(exact, 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Planned:
    """The planner's result, with its input.

    Args:
        profile: The broker.
        constraints: The user's limits, with the margin that the traffic requires.
        growth: Planned volume, as a multiple of the traffic's volume. Predictions are for the traffic itself.
        choice: The recommended plan among all candidates, at that volume.
        native: A single partition under the broker's delay: the plan that a user has today.
        recommended: The recommended plan.
        keys: The topic's heaviest keys.
        native_alone: A single partition under the broker's delay, in the history alone; None: the history is not
            continued.
        repeated: Rows of the history's topic that repeat another row in send time, due time and key, without an id to
            distinguish them; 0 for timers with ids.
        hindrance: The reason that the plan exceeds the gap limit; None: the plan keeps it.
    """

    profile: BrokerProfile
    constraints: Constraints
    growth: float
    choice: Choice
    native: Prediction
    recommended: Prediction
    keys: KeyShares
    native_alone: Replay | None = None
    repeated: int = 0
    hindrance: Hindrance | None = None

    @property
    def traffic(self) -> Traffic:
        """The traffic that the plan is made for."""
        return self.native.traffic

    @property
    def history(self) -> History:
        """The history of the traffic."""
        return self.traffic.history

    @property
    def topic(self) -> str:
        """The topic of the traffic."""
        return self.traffic.topic

    @property
    def plan(self) -> Plan:
        """The recommended plan, partitions included."""
        return self.choice.recommended.evaluation.plan

    @property
    def max_countable_gaps(self) -> int:
        """The most gaps that the replay may count in a partition of this traffic, see `max_countable`."""
        return max_countable(self.constraints.allowed_gaps(self.profile.gap_limit_ranges), self.growth)

    @property
    def is_borne_out(self) -> bool:
        """True if the exact replay counted at most `max_countable_gaps`."""
        return self.hindrance is None

    @property
    def keeps_limits(self) -> bool:
        """True if the plan breaks no constraint, and the exact count of gaps is within `max_countable_gaps`."""
        return not self.choice.recommended.broken and self.is_borne_out

    @property
    def counted_gaps(self) -> float:
        """The gaps that decide: those of the count, at the planned volume."""
        return at_growth(self.recommended.replay.peak_per_partition.gap_count, self.growth)

    @property
    def gap_room(self) -> float:
        """Multiple of the traffic's volume at which the plan's gaps reach the broker's limit, by the count."""
        return times_until(self.recommended.replay.peak_per_partition.gap_count, self.profile.gap_limit_ranges)

    @property
    def is_short_of_room(self) -> bool:
        """True if the history is too short to be continued, and `TWICE` as many timers would break the gap limit."""
        return self.traffic.is_short and self.gap_room < TWICE


def compare(
    history: History,
    topic: str,
    plans: Mapping[str, Plan],
    profile: BrokerProfile,
    *,
    growth: float = 1.0,
    as_is: bool = False,
    on_progress: ProgressCallback = no_report,
) -> dict[str, Prediction]:
    """Evaluate plans on a history, and replay the history through each plan.

    Args:
        history: Result of `survey`.
        topic: Topic of the history.
        plans: Any plans, with their partitions, by names of your choice.
        profile: The broker.
        growth: Volume for `Prediction.grown`, as a multiple of the history's volume; all other figures are for the
            volume itself.
        as_is: See `traffic.traffic_of`.
        on_progress: Receives the progress.

    Returns:
        The prediction of each plan, by the same names.
    """
    with Replays(traffic_of(history, topic, as_is=as_is), on_progress) as replays:
        replays.play(list(dict.fromkeys(plans.values())), f"replaying {_listed(plans)}")
        return {name: _prediction(replays, plan, profile, growth) for name, plan in plans.items()}


def predict(
    history: History,
    topic: str,
    plan: Plan,
    profile: BrokerProfile,
    *,
    growth: float = 1.0,
    as_is: bool = False,
    on_progress: ProgressCallback = no_report,
) -> Prediction:
    """Evaluate and replay a single plan, as `compare` does."""
    return compare(history, topic, {"plan": plan}, profile, growth=growth, as_is=as_is, on_progress=on_progress)["plan"]


def plan_for(
    history: History,
    topic: str,
    base: Plan,
    profile: BrokerProfile,
    constraints: Constraints | None = None,
    *,
    candidates: Sequence[Plan] | None = None,
    max_delay_ms: int | None = None,
    growth: float = 1.0,
    as_is: bool = False,
    on_progress: ProgressCallback = no_report,
) -> Planned:
    """Choose a plan for a topic of a history, and verify it by an exact replay of that history.

    Args:
        history: Result of `survey`.
        topic: Topic of the history.
        base: Names, subscriptions, guard; see `candidates.candidate_plans`.
        profile: The broker.
        constraints: The user's limits and prices; None: the defaults.
        candidates: Plans to use instead of `candidates.candidate_plans`.
        max_delay_ms: The longest delay that candidates accept; None: the history's longest delay, rounded up.
        growth: Volume to plan for, as a multiple of the history's volume.
        as_is: See `traffic.traffic_of`.
        on_progress: Receives the progress.
    """
    spark = history.rows.sparkSession
    with Replays(traffic_of(history, topic, as_is=as_is), on_progress) as replays:
        traffic = replays.traffic
        asked = constraints or Constraints()
        # Uncertain gaps are compared with the limit at the upper end of the confidence interval.
        limits = replace(asked, gap_margin=asked.gap_margin * traffic.upper)
        keys = replays.keys()
        longest_ms = int(traffic.cells.delay_max_ms.max())
        plans = candidate_plans(base, longest_ms, max_delay_ms) if candidates is None else tuple(candidates)
        closely = partial(
            assess,
            cells=coarse_cells(traffic.cells),
            profile=profile,
            constraints=limits,
            growth=growth,
            keys=keys,
            as_it_is=True,
        )
        deciding = Deciding(replays, plans, limits, growth, profile.gap_limit_ranges, closely)
        with ExitStack() as pricing:
            pricing.enter_context(told(spark, "pricing candidates", on_progress, one_job=False))

            def settle(priced: Sequence[Assessed], further: Further) -> Decided:
                pricing.close()
                return deciding.decided(priced, further)

            def count(plans: Sequence[Plan], stage: str, refuted_above: float) -> list[int]:
                replays.play(plans, stage, refuted_above=refuted_above)
                found = replays.counted(plans)
                return [found[plan] for plan in plans]

            choice = choose(
                traffic.cells,
                base,
                profile,
                limits,
                candidates=plans,
                max_delay_ms=max_delay_ms,
                growth=growth,
                keys=keys,
                settle=settle,
                count=count,
            )
        plan = choice.recommended.evaluation.plan
        native_plan = choice.native.plan
        native = _prediction(replays, native_plan, profile)
        return Planned(
            profile=profile,
            constraints=limits,
            growth=growth,
            choice=replace(choice, counted=replays.counted(choice.counted)),
            native=native,
            recommended=native if plan == native_plan else _prediction(replays, plan, profile),
            keys=keys,
            native_alone=None if traffic.continuation is None else replays.alone(native_plan),
            repeated=0 if history.has_ids else history.cached.repeated(topic),
            hindrance=deciding.hindrance(plan, native_plan),
        )


def _listed(plans: Mapping[str, Plan]) -> str:
    return next(map(describe, plans.values())) if len(plans) == 1 else f"{len(plans)} plans"


def _prediction(replays: Replays, plan: Plan, profile: BrokerProfile, growth: float = 1.0) -> Prediction:
    """Evaluate a plan that was replayed."""
    cells, keys = replays.traffic.cells, replays.keys()
    evaluation = evaluate(plan, cells, profile, keys=keys)
    grown = evaluation if growth == 1 else evaluate(plan, cells, profile, growth=growth, keys=keys)
    return Prediction(traffic=replays.traffic, evaluation=evaluation, replay=replays.of(plan), grown=grown)
