"""Find a timer: its way is computed, and only the places on it are read. Nothing is consumed or changed."""

from timewheel.inspect.whereis.itinerary import DEFAULT_WITHIN_MS, Routes, Span, Stop, Wanted
from timewheel.inspect.whereis.search import DEFAULT_MAX_READS, Searched, Sighting, State, Whereabouts, whereis

__all__ = [
    "DEFAULT_MAX_READS",
    "DEFAULT_WITHIN_MS",
    "Routes",
    "Searched",
    "Sighting",
    "Span",
    "State",
    "Stop",
    "Wanted",
    "Whereabouts",
    "whereis",
]
