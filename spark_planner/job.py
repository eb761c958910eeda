"""The whole job: a history is read once into a statistic, a plan is chosen from that, and played through exactly.

Every function takes and gives values, so that a notebook can stop between any two of them.
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
from timewheel.spark_planner.choice.constraints import Constraints, most_countable
from timewheel.spark_planner.choice.hindrance import Hindrance
from timewheel.spark_planner.choice.reasons import describe
from timewheel.spark_planner.deciding import Deciding
from timewheel.spark_planner.exact.replay import Replay
from timewheel.spark_planner.history.keys import KeyShares
from timewheel.spark_planner.pricing.evaluate import evaluate
from timewheel.spark_planner.pricing.evaluation import Evaluation
from timewheel.spark_planner.progress import Tell, told, untold
from timewheel.spark_planner.replays import Replays
from timewheel.spark_planner.traffic import History, Traffic, traffic_of

__all__ = ["Planned", "Prediction", "compare", "plan_for", "predict"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prediction:
    """One plan on the traffic as it is: what the statistic says, and what every timer's own way says.

    Args:
        traffic: That.
        evaluation: From the cells.
        replay: Entry by entry.
        grown: The evaluation at the volume that was asked about.
    """

    traffic: Traffic
    evaluation: Evaluation
    replay: Replay
    grown: Evaluation

    @property
    def peak_gaps_error(self) -> float:
        """The predicted peak of all partitions together less the counted one, in parts of that; 0 if both are none."""
        exact = self.replay.peak_of_total.gap_count
        return (self.evaluation.peak_gaps - exact) / max(exact, 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Planned:
    """What a plan was chosen from, and what came of it.

    Args:
        profile: The broker.
        constraints: What was asked; its margin as the traffic wants it.
        growth: How many times its volume was planned for. Predictions are of the traffic as it is.
        choice: The recommended plan among all candidates, at that volume.
        native: One partition under the broker's delay: what a user has today.
        recommended: The plan.
        keys: The topic's keys that weigh most.
        native_alone: One partition under the broker's delay, in the history alone; None: the traffic is the history's.
        repeated: Rows of the history's topic that repeat another one in send time, due time and key, though nothing
            tells them apart; 0 where timers have ids.
        hindrance: Why the plan is not within the gap limit; None: it is.
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
        """What it is made for."""
        return self.native.traffic

    @property
    def history(self) -> History:
        """As it was looked at."""
        return self.traffic.history

    @property
    def topic(self) -> str:
        """Of the history."""
        return self.traffic.topic

    @property
    def plan(self) -> Plan:
        """The recommended plan, its partitions included."""
        return self.choice.recommended.evaluation.plan

    @property
    def most_countable_gaps(self) -> int:
        """The most that the replay may count in a partition of this traffic, see `most_countable`."""
        return most_countable(self.constraints.allowed_gaps(self.profile.gap_limit_ranges), self.growth)

    @property
    def is_borne_out(self) -> bool:
        """Whether the exact replay counted no more than `most_countable_gaps`."""
        return self.hindrance is None

    @property
    def keeps_limits(self) -> bool:
        """Whether it breaks no constraint, and the exact count of gaps, grown, does not either."""
        return not self.choice.recommended.broken and self.is_borne_out


def compare(
    history: History,
    topic: str,
    plans: Mapping[str, Plan],
    profile: BrokerProfile,
    *,
    growth: float = 1.0,
    as_is: bool = False,
    tell: Tell = untold,
) -> dict[str, Prediction]:
    """Evaluate plans on one history, and play it through each.

    Args:
        history: As `survey` gives it.
        topic: Of the history.
        plans: Any, with their partitions, by names of yours.
        profile: The broker.
        growth: As many times the history's volume, for `Prediction.grown`; all else is of the volume as it is.
        as_is: See `traffic.traffic_of`.
        tell: Told of the progress.

    Returns:
        What each does, by the same names.
    """
    with Replays(traffic_of(history, topic, as_is=as_is), tell) as replays:
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
    tell: Tell = untold,
) -> Prediction:
    """`compare` of one plan."""
    return compare(history, topic, {"plan": plan}, profile, growth=growth, as_is=as_is, tell=tell)["plan"]


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
    tell: Tell = untold,
) -> Planned:
    """Choose a plan for one topic of a history, and prove it on that history.

    Args:
        history: As `survey` gives it.
        topic: Of the history.
        base: Names, subscriptions, guard; see `candidates.candidate_plans`.
        profile: The broker.
        constraints: What is asked; None: the defaults.
        candidates: Instead of those of `candidates.candidate_plans`.
        max_delay_ms: Of the candidates; None: the history's longest delay, rounded up.
        growth: Plan for as many times the history's volume.
        as_is: See `traffic.traffic_of`.
        tell: Told of the progress.
    """
    spark = history.rows.sparkSession
    with Replays(traffic_of(history, topic, as_is=as_is), tell) as replays:
        traffic = replays.traffic
        asked = constraints or Constraints()
        # What is not known for certain is held to the limit at its upper end.
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
            pricing.enter_context(told(spark, "pricing candidates", tell, one_job=False))

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
            repeated=0 if history.has_ids else history.kept.repeated(topic),
            hindrance=deciding.hindrance(plan, native_plan),
        )


def _listed(plans: Mapping[str, Plan]) -> str:
    return next(map(describe, plans.values())) if len(plans) == 1 else f"{len(plans)} plans"


def _prediction(replays: Replays, plan: Plan, profile: BrokerProfile, growth: float = 1.0) -> Prediction:
    """What cells and replay say of a plan that was replayed."""
    cells, keys = replays.traffic.cells, replays.keys()
    evaluation = evaluate(plan, cells, profile, keys=keys)
    grown = evaluation if growth == 1 else evaluate(plan, cells, profile, growth=growth, keys=keys)
    return Prediction(traffic=replays.traffic, evaluation=evaluation, replay=replays.of(plan), grown=grown)
