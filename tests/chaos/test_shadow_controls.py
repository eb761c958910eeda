"""Controls: shadows that work wrongly lose timers under kills, and the judge of all shadow plays sees it.

Each has a twin: the right shadow in the same play, with as many kills.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.chaos.test_shadow_killed import shadow_plan
from tests.support.shadow_play import PlainTraffic, ShadowPlay, Verdict
from tests.support.wrong_shadow import ShadowRules, wrong_shadow
from timewheel.core.plan import Tiered

if TYPE_CHECKING:
    from tests.conftest import Evidence
    from timewheel.testing import LocalPulsar

KILLS = {"short": 6, "long": 30}
DRAIN_TIMEOUT_S = 30
RIGHT = ("timewheel",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What happens to a control and to its twin alike.

    Args:
        scheme: Of the plan.
        guard_ms: Of the plan.
        traffic: What is sent.
        away_s: How long the shadow is away after a kill, but for its start: the shortest and the longest.
        options: Of the shadow.
    """

    scheme: Tiered
    guard_ms: int
    traffic: PlainTraffic
    away_s: tuple[float, float] = (0.0, 1.0)
    options: tuple[str, ...] = ()


SCRIPTS: dict[ShadowRules, Script] = {
    # Copies go together for 20 ms: at each moment some are not stored whose originals are acknowledged.
    "strikes-first": Script(
        scheme=Tiered(window_ms=1_000, tiers_ms=(1_000, 3_000)),
        guard_ms=1_000,
        traffic=PlainTraffic(rate=300, shortest_ms=2_000, longest_ms=20_000),
    ),
    # Timers with more than 6 s left go from the tier to the tier, and wait for others that do; those with less go to
    # the due topic at once. When the next shadow looks at the clock, most of the former would come late out of the
    # tier, and go to the due topic, whose highest id is above theirs.
    "named-late-lane": Script(
        scheme=Tiered(window_ms=4_000, tiers_ms=(4_000,)),
        guard_ms=2_000,
        traffic=PlainTraffic(rate=400, shortest_ms=8_500, longest_ms=12_000),
        away_s=(2.0, 3.0),
        options=("--hop-linger", "1s"),
    ),
}


def played(
    broker: LocalPulsar, folder: Path, seed: int, script: Script, kills: int, module: tuple[str, ...]
) -> Verdict:
    """Play a script with one kind of shadow."""
    folder.mkdir()
    plan = shadow_plan(script.guard_ms, scheme=script.scheme)
    with ShadowPlay(broker, plan, folder, seed, module=module) as play:
        play.consume()
        play.mover("mover", *script.options)
        play.send(script.traffic)
        play.kill_movers(kills, pause_s=(1.5, 3.5), away_s=script.away_s)
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
    control = played(chaos_broker, tmp_path / "control", seed, script, kills, wrong_shadow(rules))
    say(f"{rules}: {control}")
    twin = played(chaos_broker, tmp_path / "twin", seed, script, kills, RIGHT)
    say(f"its twin: {twin}")

    assert control.lost > 0, control
    assert (twin.lost, twin.unexpected) == (0, 0), twin
    evidence(
        f"control: a shadow that {SAID[rules]}",
        {"kills": kills, "timers": control.sent, "lost": control.lost, "its twin lost": twin.lost},
        seed=seed,
    )


SAID: dict[ShadowRules, str] = {
    "strikes-first": "acknowledges originals before their copies are stored",
    "named-late-lane": "numbers late hops",
}
