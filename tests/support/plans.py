"""Plans for tests that are about something else: one topic, one subscription, and what the test says."""

from __future__ import annotations

from typing import Any

from tests.core.plan_space import DUE_TOPIC
from timewheel.core.plan import Native, Plan, Scheme


def plan_of(scheme: Scheme | None = None, /, **changes: Any) -> Plan:
    """Make a plan, by default with native delays."""
    whole = {"due_topic": DUE_TOPIC, "subscriptions": ("billing",), "scheme": Native() if scheme is None else scheme}
    return Plan(**{**whole, **changes})


def shadow_of(scheme: Scheme, /, **changes: Any) -> Plan:
    """Make the plan of a shadow."""
    return plan_of(scheme, **{"relay": "service", "readers": "any", "intake": True, **changes})
