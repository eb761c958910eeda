"""What the planner says an unload makes a broker deliver again, against brokers that are unloaded.

A history is played through a plan (`tests.support.exact_play`, which knows nothing of the planner's law). Its due
topics are filled on a real broker in the played order, and for each moment a subscription acknowledges what was
acknowledged then; what had not arrived by then lies behind, open, where it changes neither ranges nor ledgers. So one
unload tries all moments at once. `test_a_delayed_topic_in_real_time` leaves all of it to the broker's own deliveries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.broker.cursor_stage import (
    FORMATS,
    CursorState,
    Listener,
    Stage,
    acknowledge_by_id,
    backlog_of,
    fill,
    received_again,
    stage_of,
)
from tests.broker.due_topic import now_ms
from tests.conftest import Evidence
from tests.support.exact_play import Played, play
from tests.support.forgetting import redelivered_exactly
from tests.support.own_broker import BUCKETS
from tests.support.workloads import WORKLOADS
from timewheel.broker.admin.client import AdminClient
from timewheel.core.durations import HOUR_MS, MINUTE_MS
from timewheel.core.names import partition_topic
from timewheel.core.plan import Native, Plan, Scheme, Tiered
from timewheel.inspect.gaps import inspect_gaps, topics_of
from timewheel.inspect.profile import profile_of
from timewheel.spark_planner.pricing.evaluate import evaluate, redelivered_at_moments
from timewheel.spark_planner.pricing.simulation import simulation_of
from timewheel.spark_planner.summary.cells import Cells

LEDGER_ENTRIES = 500
GAP_LIMIT = 1_100
METADATA_STORE_LIMIT = 300
SETTINGS = {
    # Ledgers by entries alone, as the played history has them: real minutes do not pass in it.
    "managedLedgerMaxEntriesPerLedger": str(LEDGER_ENTRIES),
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "managedLedgerMaxLedgerRolloverTimeMinutes": "525600",
    "managedLedgerMaxUnackedRangesToPersist": str(GAP_LIMIT),
    "managedLedgerMaxUnackedRangesToPersistInMetadataStore": str(METADATA_STORE_LIMIT),
    # Most of a topic is received and left open.
    "maxUnackedMessagesPerConsumer": "0",
    "maxUnackedMessagesPerSubscription": "0",
    "delayedDeliveryTickTimeMillis": "100",
}


IN_BUCKETS = "ranges, in buckets"


@pytest.fixture(scope="module", params=FORMATS)
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    ack_format, _, buckets = request.param.partition(", ")
    with stage_of({**BUCKETS, **SETTINGS} if buckets else SETTINGS, ack_format) as made:
        yield made


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A history, a plan and how an unload comes about."""

    workload: str  # of `tests.support.workloads`
    scheme: Scheme
    rows: int
    days: int = 1
    partitions: int = 1
    restart: bool = False  # unload everything and end and start the broker, instead of unloading topics one by one


SEED = 10
CASES = {
    "campaign": Case(workload="campaign", scheme=Native(), rows=30_000),
    "three delays, two partitions": Case(
        workload="fixed 1h, 1d, 5d", scheme=Native(), rows=48_000, days=10, partitions=2
    ),
    "campaign through a tier, restart": Case(
        workload="campaign", scheme=Tiered(window_ms=4 * HOUR_MS, tiers_ms=(4 * HOUR_MS,)), rows=24_000, restart=True
    ),
}


SHORT = ("ranges", "campaign")
"""The others are proofs; what a bitmap keeps is tried to the range by the test of the limits."""


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        pytest.param(ack_format, name, marks=pytest.mark.short if (ack_format, name) == SHORT else pytest.mark.proof)
        for ack_format in FORMATS
        for name in CASES
    ],
    indirect=["stage"],
)
def test_an_unload_brings_again_what_the_planner_says(stage: Stage, topic: str, evidence: Evidence, name: str) -> None:
    case, profile = CASES[name], profile_of(stage.admin)
    assert profile.ack_format == stage.ack_format
    sent_ms, due_ms = WORKLOADS[case.workload](np.random.default_rng(SEED), case.rows, case.days)
    plan = Plan(
        due_topic=topic, subscriptions=("s",), scheme=case.scheme, partitions=case.partitions, guard_ms=MINUTE_MS
    )
    cells = Cells.of_timers(sent_ms, due_ms)
    simulation = simulation_of(plan, cells)
    predicted = redelivered_at_moments(simulation, profile, case.partitions, stage.ack_format)
    # Every fourth of the moments that are spread over the history, and those of most gaps; of these again some.
    judged = [number for number, moment in enumerate(simulation.moments) if number % 4 == 3 or not moment.even]
    counted = judged[2::6]

    played = play(plan, sent_ms, due_ms)
    states = bring_about(stage, topic, played, [moment.at_ms for moment in simulation.moments])
    by_rule = [
        sum(redelivered_exactly(state.acknowledged, LEDGER_ENTRIES, profile, stage.ack_format) for state in partitions)
        for partitions in states
    ]
    if case.restart:
        stage.broker.restart()
    else:
        for partition in range(case.partitions):
            stage.admin.topics.unload(partition_topic(topic, partition))
    again = [sum(forgotten(stage.admin, state) for state in partitions) for partitions in states]
    received = {
        number: sum(received_again(stage.client, stage.admin, state) for state in states[number]) for number in counted
    }

    assert again == by_rule, "the rule, on exactly what was acknowledged"
    assert received == {number: again[number] for number in counted}
    for number in judged:
        assert predicted[number] == within(again[number]), simulation.moments[number]
    assert sum(again[number] > 100 for number in judged) >= 5, "moments that prove something"
    # Of the others few may be off, by chance: where the number of ranges is about the limit, and where the sum that
    # decides over a whole ledger is. Over four seeds they were 7 of 864.
    assert sum(predicted[number] != within(again[number]) for number in range(len(again))) <= 3

    found = evaluate(plan, cells, profile).redelivered
    mean = float(np.mean([again[number] for number, moment in enumerate(simulation.moments) if moment.even]))
    assert found.worst_entries == within(max(again))
    assert found.mean_entries == within(mean)
    (said,) = (number for number, moment in enumerate(simulation.moments) if moment.at_ms == found.worst_at_ms)
    assert again[said] == within(max(again)), "an unload at the moment that is said to be the worst"
    evidence(
        f"what an unload brings again: {name}, {stage.ack_format}",
        {
            "timers": case.rows,
            "worst": max(again),
            "worst predicted": round(found.worst_entries),
            "mean": round(mean),
            "mean predicted": round(found.mean_entries),
            "off at most where judged": round(max(abs(predicted[number] - again[number]) for number in judged)),
        },
        seed=SEED,
    )


EDGE_LEDGERS = 24
EDGE_RANGES = (METADATA_STORE_LIMIT, METADATA_STORE_LIMIT + 1, GAP_LIMIT + 1, GAP_LIMIT + 2)


@pytest.mark.short
def test_the_limits_are_the_brokers_to_the_range(stage: Stage, topic: str) -> None:
    """Nearly all is acknowledged, in as many ranges as each limit allows, and one more."""
    profile = profile_of(stage.admin)
    entries = EDGE_LEDGERS * LEDGER_ENTRIES
    # Behind an open first entry each ledger is one range; each open entry within a ledger splits one.
    splits = [ledger * LEDGER_ENTRIES + entry for entry in range(5, 495, 10) for ledger in range(EDGE_LEDGERS)]
    subsets = []
    stage.admin.topics.create(topic, 1)
    for ranges in EDGE_RANGES:
        stage.admin.subscriptions.create(topic, f"ranges-{ranges}")
        acknowledged = np.ones(entries, np.bool_)
        acknowledged[[0, *splits[: ranges - EDGE_LEDGERS]]] = False
        subsets.append(acknowledged)
    filled = fill(stage.client, partition_topic(topic, 0), entries)
    states = [
        acknowledge_by_id(stage.client, stage.admin, filled, f"ranges-{ranges}", acknowledged)
        for ranges, acknowledged in zip(EDGE_RANGES, subsets, strict=True)
    ]
    assert [state.ranges for state in states] == list(EDGE_RANGES)

    stage.admin.topics.unload(filled.topic)

    again = [received_again(stage.client, stage.admin, state) for state in states]
    assert again == [
        redelivered_exactly(state.acknowledged, LEDGER_ENTRIES, profile, stage.ack_format) for state in states
    ]
    if stage.ack_format == "ranges":
        # One more than the limit is kept; then the last range is lost, behind the last split.
        assert again == [0, 0, 0, again[-1]]
        assert 0 < again[-1] < LEDGER_ENTRIES
    else:
        # Few ranges are kept in the metadata store, however many entries are in them. One more, and all is lost but the
        # first three ledgers: before the third stand some 970 acknowledged entries, before the fourth 1,460.
        assert again[0] == 0
        for state, entries_again in zip(states[1:], again[1:], strict=True):
            assert entries_again == int(state.acknowledged[3 * LEDGER_ENTRIES :].sum())


BURST = 12_000
SHORTEST_MS, LONGEST_MS = 15_000, 25_000
STOPS = (0.3, 0.5, 0.7)  # of the span of due times: when the consumers stop


@pytest.mark.proof
@pytest.mark.parametrize("stage", [*FORMATS, IN_BUCKETS], indirect=True)
def test_a_delayed_topic_in_real_time(
    stage: Stage, topic: str, evidence: Evidence, request: pytest.FixtureRequest
) -> None:
    """The broker holds and delivers, consumers acknowledge what they get until some moment, and it is unloaded."""
    profile = profile_of(stage.admin)
    plan = Plan(due_topic=topic, subscriptions=("s",), scheme=Native(), partitions=1)
    stage.admin.topics.create(topic, 1)
    name = partition_topic(topic, 0)
    listeners = [Listener(stage.client, name, f"stop-{stop}") for stop in STOPS]
    delay_ms = np.random.default_rng(11).integers(SHORTEST_MS, LONGEST_MS, BURST)
    due_ms = now_ms() + delay_ms
    filled = fill(stage.client, name, BURST, due_ms.tolist())
    assert now_ms() < due_ms.min(), "the burst took longer than its shortest delay"
    simulation = simulation_of(plan, Cells.of_timers(filled.sent_ms, due_ms))
    predicted = redelivered_at_moments(simulation, profile, 1, stage.ack_format)
    wanted_ms = due_ms.min() + np.array(STOPS) * (LONGEST_MS - SHORTEST_MS)
    moments = [int(np.abs(np.array([m.at_ms for m in simulation.moments]) - at_ms).argmin()) for at_ms in wanted_ms]
    for listener, moment in zip(listeners, moments, strict=True):
        listener.begin(due_ms, simulation.moments[moment].at_ms)
    states = [listener.settled(stage.admin) for listener in listeners]

    whole = inspect_gaps(stage.admin, topics_of(stage.admin, [topic]).topics, profile)
    look = {one.subscription: one for one in whole.subscriptions}
    stage.admin.topics.unload(name)
    is_due = due_ms <= now_ms()
    received = [received_again(stage.client, stage.admin, state, is_due) for state in states]

    for state, again, moment in zip(states, received, moments, strict=True):
        assert again == redelivered_exactly(state.acknowledged, LEDGER_ENTRIES, profile, stage.ack_format)
        assert (look[state.subscription].gap_count, look[state.subscription].again_entries) == (state.ranges, again)
        assert again > 1_000
        assert predicted[moment] == within(again)
    evidence(
        f"what an unload brings again, played in real time: {request.node.callspec.params['stage']}",
        {
            "timers": BURST,
            "again": " / ".join(f"{again:,}" for again in received),
            "predicted": " / ".join(f"{predicted[moment]:,.0f}" for moment in moments),
        },
    )


def bring_about(stage: Stage, topic: str, played: Played, moments_ms: Sequence[float]) -> list[list[CursorState]]:
    """Fill a due topic in the played order and bring one subscription's cursors to each moment.

    Returns:
        For each moment the states of all partitions.
    """
    partitions = int(played.partition.max()) + 1
    stage.admin.topics.create(topic, partitions)
    subscriptions = [f"moment-{number}" for number in range(len(moments_ms))]
    for subscription in subscriptions:
        stage.admin.subscriptions.create(topic, subscription)
    states: list[list[CursorState]] = [[] for _ in moments_ms]
    for partition in range(partitions):
        acknowledged_ms = played.acknowledged_ms[played.partition == partition]
        filled = fill(stage.client, partition_topic(topic, partition), len(acknowledged_ms))
        ledgers = stage.admin.topics.internal_stats(filled.topic).ledgers
        assert {ledger.entries for ledger in ledgers[:-1]} == {LEDGER_ENTRIES}
        for moment, subscription, at_ms in zip(states, subscriptions, moments_ms, strict=True):
            acknowledged = acknowledged_ms <= at_ms
            moment.append(acknowledge_by_id(stage.client, stage.admin, filled, subscription, acknowledged))
    return states


def forgotten(admin: AdminClient, state: CursorState) -> int:
    """What a reloaded cursor has as open, though it was acknowledged."""
    return backlog_of(admin, state.topic, state.subscription) - int((~state.acknowledged).sum())


def within(measured: float) -> Any:
    """The issue's bound: 10 % and 20 messages."""
    return pytest.approx(measured, abs=0.1 * measured + 20)
