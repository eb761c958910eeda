"""The doctor: finds faults of brokers, namespaces, topics, clients and clocks that would lose, delay or repeat timers.

The reader reads the state, the checks judge it; only `fix` changes anything.
"""

from timewheel.inspect.doctor.reading import inspect_plan, inspect_topic
from timewheel.inspect.doctor.seen import Seen
from timewheel.inspect.doctor.verdict import KINDS, Verdict, fix, verdict_on
from timewheel.inspect.reader import Unseen
from timewheel.provision.findings import Finding, Kind, Severity

__all__ = [
    "KINDS",
    "Finding",
    "Kind",
    "Seen",
    "Severity",
    "Unseen",
    "Verdict",
    "fix",
    "inspect_plan",
    "inspect_topic",
    "verdict_on",
]
