"""Errors of brokers for tests."""

from __future__ import annotations

from timewheel.core.errors import TimewheelError

__all__ = ["BrokerFailed", "BrokerUnavailable"]


class BrokerUnavailable(TimewheelError, RuntimeError):
    """No broker, or not the chosen kind, can be started here.

    The message names the missing part and a remedy.
    """


class BrokerFailed(TimewheelError, RuntimeError):
    """A local broker did not become healthy, or ended by itself.

    The message ends with its log.
    """
