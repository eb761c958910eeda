"""The pure core: plans, routing, envelopes, names, the law of gaps. No clock, socket, environment or randomness."""

from timewheel.core.clock import Clock, SystemClock
from timewheel.core.envelope import Envelope
from timewheel.core.plan import Calendar, Native, Plan, Ring, Scheme, Tiered, Wheel
from timewheel.core.routing import Due, Hold, Route, Router

__all__ = [
    "Calendar",
    "Clock",
    "Due",
    "Envelope",
    "Hold",
    "Native",
    "Plan",
    "Ring",
    "Route",
    "Router",
    "Scheme",
    "SystemClock",
    "Tiered",
    "Wheel",
]
