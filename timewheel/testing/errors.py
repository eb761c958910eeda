"""What can go wrong with a broker for tests."""

from __future__ import annotations

from timewheel.core.errors import TimewheelError

__all__ = ["BrokerFailed", "BrokerUnavailable"]


class BrokerUnavailable(TimewheelError, RuntimeError):
    """No broker can be had here; the message says what is missing and how to get it."""


class BrokerFailed(TimewheelError, RuntimeError):
    """A broker was started and did not become healthy, or ended by itself; the message ends with its log."""
