"""Errors of brokers for tests."""

from __future__ import annotations

from timewheel.core.errors import TimewheelError

__all__ = ["BrokerFailed", "BrokerUnavailable"]


class BrokerUnavailable(TimewheelError, RuntimeError):
    """No broker can be had here, or not the kind that was chosen; the message names the missing part and a remedy."""


class BrokerFailed(TimewheelError, RuntimeError):
    """A local broker was started and did not become healthy, or ended by itself; the message ends with its log."""
