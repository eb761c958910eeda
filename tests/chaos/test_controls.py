"""Controls: hop rules that lose or repeat are caught by the checker that all tests here use
(broker-facts: exact-hops).

Every control has a twin: the right rules, with the same timers, killed at the same points, at the same time. What the
checker finds in the control it must not find in the twin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.chaos.conftest import MakeStage
from tests.support.chaos_load import Traffic
from tests.support.chaos_stage import Stage
from tests.support.chaos_verdict import Verdict, keeps_every_promise
from tests.support.chaos_worker import Fuse
from tests.support.wrong_hops import RulesName
from timewheel.broker.admin.policies import DEDUPLICATION
from timewheel.core.plan import Tiered
from timewheel.core.topology import topology
from timewheel.testing import eventually

TIMERS = 400
SHOWN_IN_TIME_S = 150.0
DRAIN_TIMEOUT_S = 180.0
TIERS = Tiered(window_ms=4_000, tiers_ms=(4_000,))
GUARD_MS = 500
LINGER_MS = 400
"""For sends and acknowledgements to leave the client before a kill: it groups acknowledgements for 100 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One relay's life."""

    fuse: Fuse  # where it ends
    job: dict[str, Any] = field(default_factory=dict)  # what is special about it


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What happens to a control and to its twin alike."""

    lives: Sequence[Life]  # one relay after another, each killed; then one lives
    delays_ms: tuple[int, int]  # the shortest and the longest
    batched: bool = True  # whether the tier's entries are batches
    group: int = 1_000  # how many hops go together at most


class _Play:
    """A script under one set of hop rules."""

    def __init__(self, on: Stage, script: Script, hop_rules: RulesName) -> None:
        self._on = on
        self._relay = on.relay("relay", hop_rules=hop_rules, group=script.group)
        consumer = on.consumer("consumer")
        consumer.start()
        shortest_ms, longest_ms = script.delays_ms
        traffic = Traffic(burst=TIMERS, every_s=0.1, shortest_ms=shortest_ms, longest_ms=longest_ms, limit=TIMERS)
        self._load = on.load(traffic, **({} if script.batched else {"batching_max_allowed_size_in_bytes": 1}))
        self._conductor = on.conductor(self._load, steady=[consumer], watched=[self._relay])

    def begin(self, life: Life | None) -> None:
        """Start the next relay; None: the one that lives."""
        if life is None:
            self._relay.start()
        else:
            self._relay.start(life.fuse, **life.job)

    def await_end(self) -> None:
        """Wait until it has killed itself."""
        self._conductor.calm(lambda: self._relay.pid is None, SHOWN_IN_TIME_S, "the fuse burnt down")

    def verdict(self) -> Verdict:
        """Wait until nothing is left to be handled, and judge."""
        self._load.stop()
        self._on.drain_all(self._conductor, self._load, DRAIN_TIMEOUT_S)
        return self._on.verdict(self._conductor, self._load)


def play_both(control: Stage, twin: Stage, script: Script, hop_rules: RulesName) -> tuple[Verdict, Verdict]:
    """Play a script under wrong hop rules and under the right ones, side by side."""
    plays = _Play(control, script, hop_rules), _Play(twin, script, "right")
    for life in script.lives:
        for play in plays:
            play.begin(life)
        for play in plays:
            play.await_end()
    for play in plays:
        play.begin(None)
    wrong, right = plays
    return wrong.verdict(), right.verdict()


@pytest.fixture
def stages(stage: MakeStage) -> tuple[Stage, Stage]:
    """A control's and its twin's."""
    return stage(TIERS, guard_ms=GUARD_MS, partitions=1), stage(TIERS, guard_ms=GUARD_MS, partitions=1)


LOSING: dict[RulesName, Script] = {
    # The tier hops to itself, so that hops go in groups. A first relay stores 195 timers in groups of five; the next
    # one makes one large group, which begins below the highest stored id: it is dropped whole, with Result.Ok.
    "both of these": Script(
        lives=[Life(fuse=Fuse(point="before_forward", passes=200, linger_ms=LINGER_MS), job={"group": 5})],
        delays_ms=(16_000, 20_000),
    ),
    # Timers with more than 4.5 s left go to the tier, the others to the due topic. Sends to the tier do not get
    # through, as while it is unloaded. When the next relay looks at the clock again, some of them are due for the due
    # topic, whose highest id is above theirs.
    "wall clock": Script(
        lives=[
            Life(
                fuse=Fuse(point="before_forward", passes=300, linger_ms=LINGER_MS), job={"stalled": "tier-4s-partition"}
            )
        ],
        delays_ms=(8_100, 14_000),
    ),
    # Killed right after an acknowledgement has gone out, before its message has: each kill loses that one.
    "acknowledge first": Script(
        lives=[Life(fuse=Fuse(point="before_forward", passes=50, linger_ms=LINGER_MS)) for _ in range(3)],
        delays_ms=(16_000, 20_000),
        # an acknowledgement within a batch counts only up to the entry before it (broker-facts: lost-acknowledgements)
        batched=False,
        # a life loses a group at most: of all together nothing would be left for the next one
        group=100,
    ),
}


def caught(stages: tuple[Stage, Stage], name: str, script: Script, hop_rules: RulesName, *, loses: bool) -> Verdict:
    """Play both: the control loses timers, or else doubles some and loses none; its twin keeps every promise."""
    control, twin = play_both(*stages, script, hop_rules)
    on = stages[0]
    on.say(f"{name}: {control}")
    on.say(f"its twin: {twin}")
    keeps_every_promise(twin)
    figures = {"timers": control.totals.acknowledged, "lost": control.totals.lost}
    if loses:
        assert control.totals.lost > 0, control
        figures["its twin lost"] = twin.totals.lost
    else:
        assert control.totals.lost == 0, control
        assert control.copies.extra_on_time > 0, control
        figures["extra copies on time"] = control.copies.extra_on_time
        figures["its twin's extra copies"] = twin.copies.extra_on_time
    on.evidence(f"control: {name}", figures)
    return control


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "hop_rules",
    [
        pytest.param(name, marks=pytest.mark.short if name == "acknowledge first" else pytest.mark.proof)
        for name in LOSING
    ],
)
def test_control_loses_and_its_twin_does_not(stages: tuple[Stage, Stage], hop_rules: RulesName) -> None:
    caught(stages, hop_rules, LOSING[hop_rules], hop_rules, loses=True)


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize("hop_rules", ["numbered by the start", "not cut at the mark"])
def test_control_doubles_and_its_twin_does_not(stages: tuple[Stage, Stage], hop_rules: RulesName) -> None:
    """broker-facts: batched-hops"""
    caught(stages, hop_rules, LOSING["both of these"], hop_rules, loses=False)


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_without_deduplication_nothing_is_lost_and_copies_pile_up(stages: tuple[Stage, Stage]) -> None:
    without = stages[0]
    topics = [spec.name for spec in topology(without.plan, 0).topics]
    for topic in topics:
        without.admin.topic_policies.set(topic, DEDUPLICATION, False)

    def is_off() -> bool:
        stats = [without.admin.topics.partitioned_stats(topic) for topic in topics]
        return all(one.deduplication != "Enabled" for found in stats for one in found.partitions.values())

    eventually(is_off, 60, message="deduplication off")
    lives = [Life(fuse=Fuse(point="between_publish_confirmed_and_ack", passes=1)) for _ in range(2)]
    script = Script(lives=lives, delays_ms=(16_000, 20_000))

    control = caught(stages, "without deduplication", script, "right", loses=False)
    # The consumer's window drops them: only the stored copies tell.
    assert control.totals.duplicated == 0, control
