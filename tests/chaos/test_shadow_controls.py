"""Controls: shadows that work wrongly lose timers under kills, and the judge of all shadow plays sees it.

Each has a twin: the right shadow in the same play, with as many kills.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.chaos.test_shadow_killed import shadow_plan
from tests.support.shadow_play import PlainTraffic, ShadowPlay, Verdict
from tests.support.wrong_shadow import STALLED, ShadowRules, shadow_by
from timewheel.core.plan import Tiered
from timewheel.testing import eventually

if TYPE_CHECKING:
    from tests.conftest import Evidence
    from timewheel.testing import LocalPulsar

KILLS = {"short": 6, "long": 30}
LIFE_S = (1.5, 4.0)
DRAIN_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What happens to a control and to its twin alike.

    Args:
        scheme: Of the plan.
        guard_ms: Of the plan.
        traffic: What is sent.
        stalls: Whether hops from the tier to the tier do not get through, but for the last life.
    """

    scheme: Tiered
    guard_ms: int
    traffic: PlainTraffic
    stalls: bool = False


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


def played(broker: LocalPulsar, folder: Path, seed: int, script: Script, kills: int, rules: ShadowRules) -> Verdict:
    """Play a script with one kind of shadow."""
    folder.mkdir()
    stalled = folder / STALLED
    if script.stalls:
        stalled.touch()
    plan = shadow_plan(script.guard_ms, scheme=script.scheme)
    with ShadowPlay(broker, plan, folder, seed, module=shadow_by(rules)) as play:
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
        return play.verdict()


@pytest.mark.timeout(1_500)
@pytest.mark.proof
@pytest.mark.parametrize("kills", KILLS.values(), ids=KILLS)
@pytest.mark.parametrize("rules", SCRIPTS)
def test_a_wrong_shadow_loses_and_the_right_one_does_not(
    chaos_broker: LocalPulsar,
    tmp_path: Path,
    rules: ShadowRules,
    kills: int,
    seed: int,
    say: Callable[[object], None],
    evidence: Evidence,
) -> None:
    script = SCRIPTS[rules]
    control = played(chaos_broker, tmp_path / "control", seed, script, kills, rules)
    say(f"{rules}: {control}")
    twin = played(chaos_broker, tmp_path / "twin", seed, script, kills, "right")
    say(f"its twin: {twin}")

    assert control.lost > 0, control
    assert (twin.lost, twin.unexpected) == (0, 0), twin
    evidence(
        f"control: a shadow that {SAID[rules]}",
        {"kills": kills, "timers": control.sent, "lost": control.lost, "its twin lost": twin.lost},
        seed=seed,
    )


SAID: dict[ShadowRules, str] = {
    "acks-first": "acknowledges originals before their copies are stored",
    "named-late-lane": "numbers late hops",
}
