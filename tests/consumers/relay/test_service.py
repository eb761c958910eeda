"""A relay service's watchdog: it ends a process that is stuck, and leaves one alone that is only slow to start."""

from __future__ import annotations

import subprocess
import sys

SERVICE = """
import sys, time
from timewheel.consumers.relay.service import Service

class Relay:
    def start(self):
        time.sleep({start_s})
    def stop(self, drain_ms):
        pass
    @property
    def alive(self):
        if time.monotonic() > begun + {stuck_after_s}:
            time.sleep(60)
        if time.monotonic() > begun + {end_after_s}:
            service.end_from_signal()
        return True

begun = time.monotonic()
service = Service([Relay()], watchdog_ms=2_000)
service.run()
"""


def run(**times_s: float) -> subprocess.CompletedProcess[str]:
    code = SERVICE.format(**{"start_s": 0, "stuck_after_s": 100, "end_after_s": 0, **times_s})
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_a_start_that_waits_for_a_broker_longer_than_the_watchdog_is_no_stuck_service() -> None:
    """Without a broker the client gives up after 30 s, as did the watchdog, with all stacks instead of the reason."""
    done = run(start_s=3)
    assert done.returncode == 0, done.stderr


def test_a_stuck_service_is_ended_with_its_stacks() -> None:
    done = run(stuck_after_s=0, end_after_s=100)
    assert done.returncode == 1
    assert "Timeout" in done.stderr
