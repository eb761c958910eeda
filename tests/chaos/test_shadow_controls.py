"""Controls: shadows that work wrongly lose timers under kills, and the judge of all shadow plays sees it.

Each has a twin: the right shadow in the same play, with as many kills.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from tests.chaos.conftest import MakePlay
from tests.support.shadow_play import PlainTraffic, ShadowPlay, Verdict, shadow_plan
from tests.support.wrong_shadow import STALLED, ShadowRules, shadow_by
from timewheel.core.plan import Tiered
from timewheel.testing import eventually

KILLS = {"short": 6, "long": 30}
LIFE_S = (1.5, 4.0)
DRAIN_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What happens to a control and to its twin alike."""

    scheme: Tiered  # of the plan
    guard_ms: int  # of the plan
    traffic: PlainTraffic  # what is sent
    stalls: bool = False  # whether hops from the tier to the tier do not get through, but for the last life


SCRIPTS: dict[ShadowRules, Script] = {
    # Copies go together for 20 ms: at each moment some are not stored whose originals are acknowledged.
    "acks-first": Script(
        scheme=Tiered(window_ms=1_000, tiers_ms=(1_000, 3_000)),
        guard_ms=1_000,
        traffic=PlainTraffic(rate=300, shortest_ms=2_000, longest_ms=20_000),
    ),
    # Timers with more than 6 s left go from the tier to the tier, and do not get through; those with less go to the due
    # topic. When the next shadow looks at the clock, most of the former would come late out of the tier, and go to the
    # due topic, whose highest id is above theirs.
    "named-late-lane": Script(
        scheme=Tiered(window_ms=4_000, tiers_ms=(4_000,)),
        guard_ms=2_000,
        traffic=PlainTraffic(rate=200, shortest_ms=8_500, longest_ms=12_000),
        stalls=True,
    ),
}


def played(shadow_play: MakePlay, script: Script, kills: int, rules: ShadowRules) -> tuple[ShadowPlay, Verdict]:
    """Play a script with one kind of shadow, until all is handled that will be."""
    play = shadow_play(shadow_plan(script.guard_ms, script.scheme, partitions=0), module=shadow_by(rules))
    stalled = play.plan_file.parent / STALLED
    if script.stalls:
        stalled.touch()
    play.consume()
    mover = play.mover("mover")
    play.send(script.traffic)
    play.kill_movers(kills - 1, pause_s=LIFE_S)
    eventually(lambda: mover.is_ready, 120)
    time.sleep(play.rng.uniform(*LIFE_S))
    stalled.unlink(missing_ok=True)
    mover.kill()
    mover.start()
    play.send_no_more()
    play.drained(DRAIN_TIMEOUT_S)
    play.close()
    return play, play.verdict_of_clients()


SAID: dict[ShadowRules, str] = {
    "acks-first": "acknowledges originals before their copies are stored",
    "named-late-lane": "numbers late hops",
}


@pytest.mark.timeout(1_500)
@pytest.mark.proof
@pytest.mark.parametrize("kills", KILLS.values(), ids=KILLS)
@pytest.mark.parametrize("rules", SCRIPTS)
def test_a_wrong_shadow_loses_and_the_right_one_does_not(shadow_play: MakePlay, rules: ShadowRules, kills: int) -> None:
    script = SCRIPTS[rules]
    play, control = played(shadow_play, script, kills, rules)
    play.say(f"{rules}: {control}")
    _, twin = played(shadow_play, script, kills, "right")
    play.say(f"its twin: {twin}")

    assert control.lost > 0, control
    assert (twin.lost, twin.unexpected) == (0, 0), twin
    figures = {"kills": kills, "timers": control.sent, "lost": control.lost, "its twin lost": twin.lost}
    play.evidence(f"control: a shadow that {SAID[rules]}", figures)
