"""The example of each scheme runs as it stands, as a program of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.checkout import ROOT

if TYPE_CHECKING:
    from timewheel.testing import Broker

TIMERS = {"native": 4, "tiered": 5, "calendar_days": 5, "wheel": 4}
LATE_MS = 900
"""Beside a broker and other tests; alone it is a few. A timer that a tick or a hop made late would be later."""
ATTEMPTS = 3
"""A machine that is busy makes any timer late, and not every time; a tick or a hop that does it does it always."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "tiered" else pytest.mark.short) for name in sorted(TIMERS)]
)
def test_the_example_handles_every_timer_once_and_on_time(pulsar_broker: Broker, name: str) -> None:
    latest_ms: list[float] = []
    while len(latest_ms) < ATTEMPTS and min(latest_ms, default=LATE_MS + 1) > LATE_MS:
        latest_ms.append(max(lateness_ms(pulsar_broker, name)))
    assert min(latest_ms) <= LATE_MS, latest_ms


def lateness_ms(broker: Broker, name: str) -> list[float]:
    """Run an example, in which every timer is handled once; how late each was."""
    urls = {"PULSAR_SERVICE_URL": broker.service_url, "PULSAR_ADMIN_URL": broker.admin_url}
    ran = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py")],
        env={**os.environ, **urls},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""
    sent = re.findall(r"^sent (\S+),", ran.stdout, re.MULTILINE)
    handled = re.findall(r"^([0-9a-f-]{20,}).* late by 0:00:(\S+)$", ran.stdout, re.MULTILINE)
    assert sorted(timer_id for timer_id, _ in handled) == sorted(sent), ran.stdout
    assert len(sent) == TIMERS[name]
    assert len(ran.stdout.splitlines()) == 2 * len(sent), "its own lines, and nothing of the SDK's or the client's"
    return [float(late_s) * 1000 for _, late_s in handled]
