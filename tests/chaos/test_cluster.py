"""A cluster of three brokers under plays of plans, relays and replicas: nodes are killed, frozen, restarted, upgraded.

Handled twice in all is a figure, not a promise, where replicas share no inbox.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import pytest

from tests.chaos.conftest import MakePlay, MakeStage
from tests.support.chaos_cluster import ClusterPlay, Faults
from tests.support.chaos_load import Traffic
from tests.support.chaos_stage import BUSINESS
from tests.support.chaos_verdict import Verdict
from tests.support.chaos_worker import PLAIN
from tests.support.replica import HoldRules
from tests.support.shadow_play import PlainTraffic, shadow_plan
from tests.support.wrong_producers import ProducerRules, break_producers
from timewheel.client.producer_pool import SLACK_MS
from timewheel.core.names import parts_of
from timewheel.core.plan import Calendar, Cancel, Ring, Tiered, Wheel
from timewheel.producers.pool import SEND_TIMEOUT_MS
from timewheel.testing import eventually
from timewheel.testing.plugin import MakeLocalCluster

TIERS = {
    "scheme": Tiered(window_ms=3_000, tiers_ms=(2_000, 6_000, 15_000)),
    "partitions": 3,
    "guard_ms": 10_000,
    "max_delay_ms": 300_000,
    "retry": True,
    "cancel": Cancel(keep_ms=600_000, skew_ms=100),
}
PLANS: Mapping[str, Mapping[str, Any]] = {
    "tiers": TIERS,
    "wheel": {
        "scheme": Wheel(
            rings=(Ring(slot_ms=2_000, slots=14, headstart_ms=1_000), Ring(slot_ms=20_000, slots=8, headstart_ms=4_000))
        ),
        "partitions": 2,
        "guard_ms": 2_000,
        "max_delay_ms": 90_000,
    },
    "held": {
        "scheme": Tiered(window_ms=3_000, tiers_ms=(3_000, 10_000), hold="broker"),
        "partitions": 2,
        "guard_ms": 5_000,
        "max_delay_ms": 300_000,
    },
    "calendar": {
        "scheme": Calendar(interval_ms=30_000),
        "partitions": 2,
        "guard_ms": 7_200_000,
        "max_delay_ms": 120_000,
    },
}
GUARDED = {
    "scheme": Tiered(window_ms=5_000, tiers_ms=(5_000, 15_000, 40_000)),
    "partitions": 3,
    "guard_ms": 100_000,
    "max_delay_ms": 600_000,
}
"""The guard is longer than any outage, as in production: those above use late lanes much more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A play.

    Args:
        traffic: Of each plan.
    """

    faults: tuple[str, ...] = ()  # in this order
    session_s: float  # time after which a silent node counts as dead
    cluster: Mapping[str, Any] = field(default_factory=dict)  # further arguments of the cluster
    plans: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: PLANS)  # by name
    traffic: Traffic = field(
        default_factory=lambda: Traffic(burst=12, every_s=1.0, shortest_ms=5_000, longest_ms=40_000)
    )
    play: Mapping[str, Any] = field(default_factory=dict)  # further arguments of the play


THREE_COPIES = {"ensemble": 3, "write_quorum": 3, "ack_quorum": 2}
FOUR_BOOKIES = {"bookies": 4, **THREE_COPIES}  # one is spare; with two away nothing can be written
SHORT_SEND_TIMEOUT_MS = 15_000
SCRIPTS = {
    "short": Script(
        faults=("kill", "rolling restart", "write outage"),
        session_s=10,
        cluster=FOUR_BOOKIES,
        traffic=Traffic(burst=8, every_s=1.0, shortest_ms=3_000, longest_ms=20_000),
        play={"send_timeout_ms": SHORT_SEND_TIMEOUT_MS},
    ),
    "A": Script(
        faults=(
            "unload", "SIGTERM", "kill", "freeze past the session", "bookie frozen", "bookie killed", "write outage",
            "ZooKeeper frozen", "rolling restart",
        ),
        session_s=30,
        cluster=THREE_COPIES,
        play={"fails": 20},
    ),
    "B": Script(
        faults=(
            "unload", "move", "split", "SIGTERM", "kill", "kill, back at once", "freeze past the session",
            "bookie frozen", "bookie killed", "write outage", "ZooKeeper killed", "rolling restart",
        ),
        session_s=10,
        cluster={**FOUR_BOOKIES, "load_manager": "extensible"},
        play={"fails": 20, "inbox": ("wheel", "held")},
    ),
    "C": Script(
        faults=("kill", "rolling restart"),
        session_s=30,
        cluster=THREE_COPIES,
        plans={"guarded": GUARDED},
        traffic=Traffic(burst=24, every_s=1.0, shortest_ms=115_000, longest_ms=150_000),
    ),
    "E": Script(
        faults=("write outage", "write outage", "write outage"),
        session_s=10,
        cluster=FOUR_BOOKIES,
        plans={"tiers": TIERS},
        traffic=Traffic(burst=40, every_s=1.0, shortest_ms=5_000, longest_ms=40_000),
        play={"fails": 3},
    ),
    "upgrade": Script(
        faults=("upgrade to 4.2.4",),
        session_s=30,
        cluster={**FOUR_BOOKIES, "version": "4.0.7"},
        play={"inbox": ("wheel",)},
    ),
}  # fmt: skip

SOAK_MINUTES = float(os.environ.get("SOAK_MINUTES", "30"))
SOAK_RATE = float(os.environ.get("SOAK_RATE", "1000"))  # timers a second, over all plans
SOAK_FAULTS = (
    "unload", "move", "kill", "freeze past the session", "bookie killed", "write outage", "rolling restart",
    "relay killed", "replica killed", "relay stands still", "replica stands still", "deployment", "plans change",
)  # fmt: skip
BEYOND_SESSION_MS = 5_000
BAND_MS = 5_000  # of figures, on a machine with more to do than it has cores
AGAIN_S = 1.0  # of traffic: what a play may repeat beyond what plain clients repeat on the same topics


@pytest.fixture
def cluster_play(make_local_cluster: MakeLocalCluster, stage: MakeStage) -> Callable[[Script], ClusterPlay]:
    """A factory of plays, each on a cluster of its own, with all plans on time."""

    def make(script: Script) -> ClusterPlay:
        config = {"unblockStuckSubscriptionEnabled": "true"}  # as the how-to advises
        cluster = make_local_cluster(session_timeout_s=script.session_s, config=config, **script.cluster)
        both = (BUSINESS, PLAIN)
        stages = {name: stage(broker=cluster, subscriptions=both, **plan) for name, plan in script.plans.items()}
        plans = [on.plan for on in stages.values() if not isinstance(on.plan.scheme, Calendar)]
        topics = [part for plan in plans for part in parts_of(plan.due_topic, plan.partitions)]
        return ClusterPlay(stages, Faults(cluster, topics, script.session_s), script.traffic, **script.play)

    return make


def deadline_of(script: Script) -> int:
    """Return the time after which a send must have an outcome."""
    send_timeout_ms: int = script.play.get("send_timeout_ms", SEND_TIMEOUT_MS)
    # Rounds of the producers' pool measure it, so that a process that stands still makes no send overdue.
    return send_timeout_ms + SLACK_MS + 2 * BAND_MS


def by_cause(repeats: Counter[tuple[str, str]]) -> Counter[str]:
    """Add up the plans that plain clients read, too: a plain client does not follow a calendar."""
    found = Counter[str]()
    for (plan, cause), times in repeats.items():
        found[cause] += times * (plan != "calendar")
    return found


@pytest.mark.proof
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("rules", [name for name in get_args(ProducerRules) if name != "right"])
def test_control_producers_that_do_not_outlive_an_outage_are_found(
    cluster_play: Callable[[Script], ClusterPlay], monkeypatch: pytest.MonkeyPatch, rules: ProducerRules
) -> None:
    """Its twins are the plays below, whose producers follow the right rules."""
    break_producers(rules, monkeypatch.setattr)  # the load's; the replicas' are broken in their processes
    script = SCRIPTS["E"]
    play = cluster_play(replace(script, play={**script.play, "producer_rules": rules}))
    for fault in script.faults:
        play.make(fault)
    play.finish()

    verdict = play.verdict()
    assert verdict.totals.lost == 0
    if rules == "a dead producer stays":
        assert verdict.stuck + verdict.totals.attempted - verdict.totals.acknowledged > 0
    else:
        assert verdict.longest_send_ms > deadline_of(script)
    play.on.evidence(f"control on a cluster: {rules}", verdict.cluster_figures)


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_control_replicas_that_keep_what_they_hold_are_found(cluster_play: Callable[[Script], ClusterPlay]) -> None:
    """Its twin is the first half of the play, by the right rules."""
    _, wrong = get_args(HoldRules)
    traffic, moves = Traffic(burst=40, every_s=1.0, shortest_ms=5_000, longest_ms=15_000), 4
    play = cluster_play(Script(session_s=10, cluster=THREE_COPIES, plans={"tiers": TIERS}, traffic=traffic))

    def move(number: int) -> None:
        enough = len(play.conductor.handled) + 10 * traffic.burst  # plain clients handle as many
        play.conductor.calm(lambda: len(play.conductor.handled) > enough, 60, f"timers before move {number}")
        play.make("unload")

    for number in range(moves):
        move(number)
    play.restart_replicas(hold_rules=wrong)
    for number in range(moves):
        move(number)
    play.finish()

    verdict, costs, plain = play.verdict(), list(play.costs()), list(play.costs(plain=True))
    for cost in costs:
        play.on.say(cost)
    let_go, kept = (sum(cost.at_the_same_moment for cost in half) for half in (costs[:moves], costs[moves:]))
    twice, plainly = (sum(cost.twice for cost in each[moves:]) for each in (costs, plain))
    assert verdict.totals.lost == 0
    assert kept > 10 + 5 * let_go
    assert twice > plainly + AGAIN_S * traffic.burst
    figures = {"moves": moves, "at the same moment": kept, "its twin at the same moment": let_go}
    figures |= {"twice in all": twice, "twice by plain clients": plainly}
    play.on.evidence(f"control on a cluster: {wrong}", {"timers": verdict.totals.acknowledged, **figures})


SHADOW_FAULTS = (
    "unload", "move", "SIGTERM", "freeze", "freeze past the session", "kill", "bookie frozen", "rolling restart",
)  # fmt: skip


@pytest.mark.proof
@pytest.mark.timeout(1_800)
def test_a_shadow_on_a_cluster_whose_nodes_fail_loses_nothing(
    make_local_cluster: MakeLocalCluster, shadow_play: MakePlay
) -> None:
    cluster = make_local_cluster(session_timeout_s=30, **THREE_COPIES)
    play = shadow_play(
        shadow_plan(10_000, Tiered(window_ms=5_000, tiers_ms=(5_000, 15_000)), partitions=3), broker=cluster
    )
    faults = Faults(cluster, parts_of(play.plan.due_topic, 3), 30).by_name()
    play.consume()
    for name, admin_url in zip(("mover-1", "mover-2"), cluster.admin_urls.values(), strict=False):
        play.mover(name, "--admin-url", admin_url)
    play.send(PlainTraffic(rate=25, shortest_ms=5_000, longest_ms=60_000))
    for fault in SHADOW_FAULTS:
        eventually(lambda: all(mover.is_ready for mover in play.movers), 180, message="all movers are ready")
        faults[fault](play.rng)
    play.send_no_more()
    play.drained(240)

    verdict = play.verdict_of_clients()
    play.say(verdict)
    assert (verdict.lost, verdict.unexpected, verdict.early) == (0, 0, 0)
    play.evidence("a shadow on a cluster", {"faults": len(SHADOW_FAULTS), **verdict.figures})


@pytest.mark.proof
@pytest.mark.timeout(SOAK_MINUTES * 60 + 1_800)
def test_a_soak_of_all_schemes_loses_and_holds_back_nothing(
    cluster_play: Callable[[Script], ClusterPlay], seed: int
) -> None:
    """`make soak`: faults of nodes and of services in an order that the seed decides, for as long as asked."""
    burst = max(round(SOAK_RATE / len(PLANS)), 1)
    traffic = Traffic(burst=burst, every_s=1.0, shortest_ms=5_000, longest_ms=60_000, limit=sys.maxsize)
    play = cluster_play(Script(session_s=10, cluster=FOUR_BOOKIES, traffic=traffic, play={"fails": 20}))
    begun_s, choices, deck = time.monotonic(), random.Random(seed), list[str]()
    while (lasted_s := time.monotonic() - begun_s) < SOAK_MINUTES * 60:
        deck = deck or choices.sample(SOAK_FAULTS, len(SOAK_FAULTS))
        play.make(deck.pop())
    play.finish()

    verdict, on = play.verdict(), play.on
    for cost in play.costs():
        on.say(cost)
    on.say(verdict)
    on.evidence(
        "a soak",
        {
            "minutes": round(lasted_s / 60),
            "timers a second": round(verdict.totals.acknowledged / lasted_s),
            "faults": sum(play.conductor.disturbed.values()),
            **verdict.cluster_figures,
        },
    )
    broken = broken_promises(play, verdict)
    assert broken == dict.fromkeys(broken, 0)


def broken_promises(play: ClusterPlay, verdict: Verdict) -> Mapping[str, int]:
    """Return how often each promise was broken."""
    return {
        "lost": verdict.totals.lost,
        "unexpected": verdict.totals.unexpected,
        "early": verdict.early,
        "twice by one host": verdict.twice_in_one_process,
        "stuck": verdict.stuck,
        "cancelled for certain, and handled": len(play.certain_yet_handled),
    }


@pytest.mark.proof
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_cluster_whose_nodes_fail_loses_and_holds_back_nothing(
    cluster_play: Callable[[Script], ClusterPlay], name: str
) -> None:
    script = SCRIPTS[name]
    play = cluster_play(script)
    for fault in script.faults:
        play.make(fault)
    play.finish()

    verdict, costs, on = play.verdict(), list(play.costs()), play.on
    beside = list(zip(costs, play.costs(plain=True), strict=True))
    for cost, plain in beside:
        on.say(f"{cost}; plain clients: silent {plain.silence_ms / 1000:.1f} s, twice {plain.twice} ({plain.entries})")
    again = [play.repeats(), play.repeats(plain=True)]
    on.say("twice by plan and cause: {}; by plain clients: {}".format(*map(dict, again)))
    ours, plainly = map(by_cause, again)
    figures = {
        "faults": len(costs),
        **verdict.cluster_figures,
        "twice beside plain clients": ours.total(),
        "by plain clients beside them": plainly.total(),
        **{f"beside them by {cause}": times for cause, times in ours.items()},
        **{f"plain by {cause}": times for cause, times in plainly.items()},
        "unloaded since not read": play.unloaded,
    }
    on.evidence(f"a cluster, play {name}", figures)
    broken = broken_promises(play, verdict)
    deadline_ms = deadline_of(script)
    silence_ms = round(script.session_s * 1_000) + BEYOND_SESSION_MS + BAND_MS
    more = AGAIN_S * len(script.plans) * script.traffic.burst / script.traffic.every_s
    assert broken == dict.fromkeys(broken, 0)
    assert verdict.longest_send_ms <= deadline_ms
    assert ours.total() <= plainly.total() + more
    assert ours["entry"] <= plainly["entry"] + more
    for cost, plain in beside:
        if cost.fault.name.startswith("kill"):  # plain clients show a busy machine, and a broker that is back too soon
            assert cost.silence_ms <= max(silence_ms, plain.silence_ms + BEYOND_SESSION_MS), cost
