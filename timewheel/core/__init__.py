"""Pure core: plans, routing, envelopes, names and the law of gaps, without clock, socket, environment or randomness."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.cancellations import Answer, Cancellation, CancelResult
from timewheel.core.clock import Clock, SystemClock
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from timewheel.core.envelope import Envelope
from timewheel.core.extras import names_on_first_use
from timewheel.core.plan import Calendar, Cancel, Holder, Native, Plan, Readers, RelayPlace, Ring, Scheme, Tiered, Wheel
from timewheel.core.routing import Due, Hold, Route, Router

if TYPE_CHECKING:
    from timewheel.core.planfile import dump_plan, load_plan, parse_plan, save_plan

__all__ = [
    "DAY_MS",
    "HOUR_MS",
    "MINUTE_MS",
    "SECOND_MS",
    "Answer",
    "BrokerProfile",
    "Calendar",
    "Cancel",
    "CancelResult",
    "Cancellation",
    "Clock",
    "Due",
    "Envelope",
    "Hold",
    "Holder",
    "Native",
    "Plan",
    "Readers",
    "RelayPlace",
    "Ring",
    "Route",
    "Router",
    "Scheme",
    "SystemClock",
    "Tiered",
    "Wheel",
    "dump_plan",
    "load_plan",
    "parse_plan",
    "save_plan",
]

# Loaded on first use: a plan made in code should not load pydantic, which only reads plan files.
__getattr__ = names_on_first_use(__name__, {".planfile": "dump_plan load_plan parse_plan save_plan"})
