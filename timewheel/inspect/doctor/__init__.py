"""The doctor: finds faults of brokers, namespaces, topics, clients and clocks that would lose, delay or repeat timers.

The reader reads the state, the checks judge it; only `fix` changes anything.
"""

from timewheel.inspect.doctor.reading import inspect_plan, inspect_topic
from timewheel.inspect.doctor.seen import Finding, Kind, Seen, Severity, Unread
from timewheel.inspect.doctor.verdict import KINDS, Verdict, fix, verdict_on

__all__ = [
    "KINDS",
    "Finding",
    "Kind",
    "Seen",
    "Severity",
    "Unread",
    "Verdict",
    "fix",
    "inspect_plan",
    "inspect_topic",
    "verdict_on",
]
