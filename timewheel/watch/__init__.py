"""Watching a live plan: what its topics hold beside what they should, what changed, and when a limit is reached.

    checked = check(admin, plan, profile, clock)

It needs the extra: ``pip install 'pulsar-timewheel[planner]'``. Names are loaded on first use, as the planner's are.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from timewheel.spark_planner.errors import PlannerMissing

if TYPE_CHECKING:
    from timewheel.watch.change import Change, change_for
    from timewheel.watch.checking import Checked, check
    from timewheel.watch.drift import Drift
    from timewheel.watch.facts import checked_facts
    from timewheel.watch.growth import Growth
    from timewheel.watch.log import CheckLine, append_check, read_checks
    from timewheel.watch.sends import Sends
    from timewheel.watch.standing import Standing
    from timewheel.watch.verdict import Finding, Level

__all__ = [
    "Change",
    "CheckLine",
    "Checked",
    "Drift",
    "Finding",
    "Growth",
    "Level",
    "Sends",
    "Standing",
    "append_check",
    "change_for",
    "check",
    "checked_facts",
    "read_checks",
]

_NAMES_OF = {
    "change": ("Change", "change_for"),
    "checking": ("Checked", "check"),
    "drift": ("Drift",),
    "facts": ("checked_facts",),
    "growth": ("Growth",),
    "log": ("CheckLine", "append_check", "read_checks"),
    "sends": ("Sends",),
    "standing": ("Standing",),
    "verdict": ("Finding", "Level"),
}
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_MODULE_OF[name]}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("timewheel"):
            raise  # a fault of ours, which installing anything would not mend
        raise PlannerMissing.of_libraries(error.name.partition(".")[0]) from error
    value: object = getattr(module, name)
    globals()[name] = value
    return value
