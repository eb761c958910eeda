"""The whole job: a history is read once into a statistic, a plan is chosen from that, and played through exactly.

Every function takes and gives values, so that a notebook can stop between any two of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.plan import Native, Plan
from timewheel.spark_planner.choice.assessed import Assessed, assess
from timewheel.spark_planner.choice.choose import Choice, Decided, Further, choose, coarse_cells
from timewheel.spark_planner.choice.constraints import Constraints
from timewheel.spark_planner.choice.decide import at_once_for, decide
from timewheel.spark_planner.choice.reasons import describe
from timewheel.spark_planner.exact.replay import Replay, replay_all
from timewheel.spark_planner.exact.sends import Kept
from timewheel.spark_planner.history.keys import KeyShares
from timewheel.spark_planner.pricing.evaluate import evaluate
from timewheel.spark_planner.pricing.evaluation import Evaluation
from timewheel.spark_planner.progress import Tell, told, untold
from timewheel.spark_planner.traffic import History, Traffic, traffic_of

__all__ = ["Planned", "Prediction", "compare", "most_countable", "plan_for", "predict"]

EXACT_PEAK_TIMERS = 5_000_000
"""Up to so many the replay goes over them again until its peaks are exact between its 4,096 moments too."""

PEAK_ROOTS = 3.5
"""How many roots of the mean a counted peak is above it at the most. Measured on 1,800 samples of five kinds of history
under two plans: half of the peaks were 0.2 to 2.2 roots above it, the highest 3.5 where the mean was 8 or more."""


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
        """Whether the exact replay counted no more."""
        return self.recommended.replay.peak_per_partition.gap_count <= self.most_countable_gaps

    @property
    def keeps_limits(self) -> bool:
        """Whether it breaks no constraint, and the exact count of gaps, grown, does not either."""
        return not self.choice.recommended.broken and self.is_borne_out


def most_countable(allowed: float, growth: float) -> int:
    """The highest count of gaps on a history that allows for so many times that history's volume.

    What is counted is the highest of many moments, which stands above the mean by chance: by some roots of it. The mean
    grows with the volume, but chance with its root only, and so is more of a small count than of a large one: a sample
    of one timer in 200 would be said to break limits that the whole topic keeps. So the limit is taken down to a mean,
    that to the history's volume, and chance is added there again.

    Args:
        allowed: Gaps at that volume, chance included.
        growth: That volume, in volumes of the history. At 1 the count is held to what is allowed as it is.
    """
    mean = (math.sqrt(PEAK_ROOTS**2 / 4 + allowed) - PEAK_ROOTS / 2) ** 2 / growth  # m + PEAK_ROOTS sqrt(m) = allowed
    return math.floor(mean + PEAK_ROOTS * math.sqrt(mean) + 1e-6)


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
    with _Counting(traffic_of(history, topic, as_is=as_is), tell) as counting:
        counting.play(list(dict.fromkeys(plans.values())), f"replaying {_listed(plans)}", exact=True)
        return {name: counting.prediction(plan, profile, growth) for name, plan in plans.items()}


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
    with _Counting(traffic_of(history, topic, as_is=as_is), tell) as counting:
        traffic = counting.traffic
        asked = constraints or Constraints()
        # What is not known for certain is held to the limit at its upper end.
        limits = replace(asked, gap_margin=asked.gap_margin * traffic.upper)
        keys = counting.keys()
        decided = partial(
            decide,
            constraints=limits,
            allowed=most_countable(limits.allowed_gaps(profile.gap_limit_ranges), growth),
            count=counting.count,
            at_once=at_once_for(traffic.cells.timers),
            confirm=counting.confirm,
            assess=partial(
                assess,
                cells=coarse_cells(traffic.cells),
                profile=profile,
                constraints=limits,
                growth=growth,
                keys=keys,
                as_it_is=True,
            ),
            keys=keys,
        )
        with ExitStack() as pricing:
            pricing.enter_context(told(spark, "pricing candidates", tell, one_job=False))

            def settle(priced: Sequence[Assessed], further: Further) -> Decided:
                pricing.close()
                return decided(priced, further=further)

            choice = choose(
                traffic.cells,
                base,
                profile,
                limits,
                candidates=candidates,
                max_delay_ms=max_delay_ms,
                growth=growth,
                keys=keys,
                settle=settle,
            )
        plan = choice.recommended.evaluation.plan
        native_plan = replace(plan, scheme=Native(), intake=False).with_partitions(1)
        counting.play([plan, native_plan], "replaying today's plan and the new one", exact=True)
        native = counting.prediction(native_plan, profile)
        return Planned(
            profile=profile,
            constraints=limits,
            growth=growth,
            choice=choice,
            native=native,
            recommended=native if plan == native_plan else counting.prediction(plan, profile),
            keys=keys,
            native_alone=None if traffic.continuation is None else counting.alone(native_plan),
            repeated=0 if history.has_ids else history.kept.repeated(topic),
        )


def _listed(plans: Mapping[str, Plan]) -> str:
    return next(map(describe, plans.values())) if len(plans) == 1 else f"{len(plans)} plans"


class _Counting:
    """Replays of one topic, none of them made twice; at its end what they were made from is forgotten.

    Attributes:
        traffic: What is replayed.
    """

    def __init__(self, traffic: Traffic, tell: Tell) -> None:
        self.traffic = traffic
        self._tell = tell
        self._spark = traffic.history.rows.sparkSession
        self._replays: dict[Plan, Replay] = {}
        self._rounds = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.traffic.forget()

    def keys(self) -> KeyShares:
        """Of the topic's timers."""
        return self._kept().keys[self.traffic.topic]

    def count(self, plans: Sequence[Plan]) -> list[int]:
        """The most gaps of any partition under each plan, at moments of a grid."""
        self._rounds += 1
        self.play(plans, f"counting {len(plans)} candidates, round {self._rounds}", exact=False)
        return [self._replays[plan].peak_per_partition.gap_count for plan in plans]

    def confirm(self, plan: Plan) -> int:
        """The same of one plan, at whatever moment."""
        self.play([plan], f"confirming {describe(plan)}", exact=True)
        return self._replays[plan].peak_per_partition.gap_count

    def play(self, plans: Sequence[Plan], stage: str, *, exact: bool) -> None:
        """Replay those that were not yet, exactly if it is asked for and the traffic is not too much for it."""
        exact = exact and self.traffic.cells.timers <= EXACT_PEAK_TIMERS
        wanted = [plan for plan in dict.fromkeys(plans) if not self._has(plan, exact=exact)]
        if not wanted:
            return
        kept = self._kept()
        with told(self._spark, stage, self._tell, one_job=False):
            self._replays |= zip(wanted, replay_all(kept, wanted, exact_peaks=exact), strict=True)

    def alone(self, plan: Plan) -> Replay:
        """Of the history without what it was continued by."""
        kept = self.traffic.history.kept.of(self.traffic.topic)
        with told(self._spark, "replaying the history alone", self._tell, one_job=False):
            (found,) = replay_all(kept, [plan])
        return found

    def prediction(self, plan: Plan, profile: BrokerProfile, growth: float = 1.0) -> Prediction:
        """What cells and replay say of a plan that was replayed."""
        cells = self.traffic.cells
        evaluation = evaluate(plan, cells, profile, keys=self.keys())
        grown = evaluation if growth == 1 else evaluate(plan, cells, profile, growth=growth, keys=self.keys())
        return Prediction(traffic=self.traffic, evaluation=evaluation, replay=self._replays[plan], grown=grown)

    def _kept(self) -> Kept:
        if "kept" not in vars(self.traffic.history):
            with told(self._spark, "putting the history in order", self._tell, one_job=False):
                _ = self.traffic.history.kept
        if "kept" not in vars(self.traffic) and self.traffic.continuation is not None:
            days = len(self.traffic.continuation.sources)
            with told(self._spark, f"continuing the history by {days} days", self._tell, one_job=False):
                _ = self.traffic.kept
        return self.traffic.kept

    def _has(self, plan: Plan, *, exact: bool) -> bool:
        found = self._replays.get(plan)
        return found is not None and (not exact or (found.peak_of_total.is_exact and found.peak_per_partition.is_exact))
