"""When a relay asks whether there is really nothing."""

from __future__ import annotations

import random

from timewheel.relay.machine.backoff import ASK_LONGEST_MS, Silence


def asked_at(silence: Silence, from_ms: int, to_ms: int) -> list[int]:
    """Told every tenth of a second that nothing has come."""
    return [now_ms for now_ms in range(from_ms, to_ms, 100) if silence.is_too_long(now_ms)]


def test_a_clock_that_is_set_back_makes_no_silence_of_hours() -> None:
    silence = Silence(random.Random(7))
    asked_at(silence, 3_600_000, 3_700_000)
    assert asked_at(silence, 0, 2 * ASK_LONGEST_MS)


def test_what_comes_breaks_the_silence() -> None:
    silence = Silence(random.Random(7))
    asked_at(silence, 0, 600_000)
    silence.broken()
    at_ms = asked_at(silence, 600_000, 610_000)
    assert at_ms[0] <= 602_100
