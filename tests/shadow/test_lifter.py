"""After a new subscription a mover begins anew once more, when every other shadow has met it too."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.manual_clock import ManualClock
from timewheel.client.hooks import Hooks
from timewheel.core.rng import system_random
from timewheel.shadow.driver import mover as module
from timewheel.shadow.driver.inspector import AT_LEAST_MS
from timewheel.shadow.driver.mover import ALL_KNOW_MS, Mover


class Tools:
    def __init__(self) -> None:
        self.clock = ManualClock(0)
        self.rng = system_random()
        self.hooks = Hooks(())


def test_a_session_that_met_others_is_followed_by_one_that_ends_when_all_know_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tools: Any = Tools()
    untils: list[int | None] = []
    script = [("met", 5_000), ("met", 1_000), ("over", ALL_KNOW_MS), ("paused", 7), ("stop", 0)]

    class Session:
        met_others = False

        def __init__(self, *args: Any) -> None:
            untils.append(args[-1])

        def run(self) -> None:
            word, took_ms = script[len(untils) - 1]
            tools.clock.advance(took_ms)
            self.met_others = word == "met"
            if word == "stop":
                mover.handle.stop(0)

    monkeypatch.setattr(module, "MoveSession", Session)
    mover = Mover(tools, "persistent://acme/crm/others", 0)
    mover.run()
    assert untils == [None, 5_000 + ALL_KNOW_MS, 6_000 + ALL_KNOW_MS, None, None]
    assert ALL_KNOW_MS > AT_LEAST_MS
