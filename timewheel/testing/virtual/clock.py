"""The virtual time as a `timewheel.core.clock.Clock`, on which a wait that only looks around lets no time pass."""

from __future__ import annotations

from typing import Any, Self

from timewheel.core.clock import SystemClock
from timewheel.testing.virtual.scheduler import MS


class IdleSeconds(float):
    """Seconds of such a wait as `Idle`, as `SystemClock` and the waits of the standard library pass them on."""

    left_ms: int | None


class Idle(int):
    """Milliseconds of a wait that looks around after them.

    Attributes:
        left_ms: Time after which the wait is over in any case; None: never.
    """

    left_ms: int | None

    def __new__(cls, look_ms: int, left_ms: int | None) -> Self:
        made = super().__new__(cls, look_ms)
        made.left_ms = left_ms
        return made

    def __truediv__(self, unit: float) -> IdleSeconds:
        seconds = IdleSeconds(int(self) / unit)
        seconds.left_ms = self.left_ms
        return seconds


class VirtualClock(SystemClock):
    """The clocks of the standard library, which are virtual here."""

    __slots__ = ()

    def idle_ms(self, left_ms: int | None, look_ms: int) -> int:
        if isinstance(left_ms, Idle):
            look_ms, left_ms = min(look_ms, int(left_ms)), left_ms.left_ms
        return left_ms if left_ms is not None and left_ms <= look_ms else Idle(look_ms, left_ms)


def waits_of(timeout: Any, unit_ns: int) -> tuple[int | None, int | None]:
    """Return after which time a wait is over, and after which it looks around, in nanoseconds; None: never.

    Args:
        timeout: As a wait of the standard library or of pulsar-client has it; None or negative: for ever.
        unit_ns: Its unit.
    """
    if timeout is None or timeout < 0:
        return None, None
    if isinstance(timeout, Idle | IdleSeconds):
        return None if timeout.left_ms is None else timeout.left_ms * MS, round(timeout * unit_ns)
    return round(timeout * unit_ns), None
