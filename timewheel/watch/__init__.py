"""Check a live plan: compare its topics with the prediction, detect drift, and project when a limit is reached.

    checked = check(admin, plan, profile, clock)

Requires the extra `planner`. Names are imported on first use, as in the planner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timewheel.core.extras import missing_extra, names_on_first_use

if TYPE_CHECKING:
    from timewheel.watch.change import Change, change_for
    from timewheel.watch.checking import Checked, check
    from timewheel.watch.comparison import GapComparison
    from timewheel.watch.drift import Drift
    from timewheel.watch.facts import checked_facts
    from timewheel.watch.growth import Growth
    from timewheel.watch.log import CheckLine, append_check, read_checks
    from timewheel.watch.sends import Sends
    from timewheel.watch.verdict import Finding, Level

__all__ = [
    "Change",
    "CheckLine",
    "Checked",
    "Drift",
    "Finding",
    "GapComparison",
    "Growth",
    "Level",
    "Sends",
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
    "comparison": ("GapComparison",),
    "verdict": ("Finding", "Level"),
}
__getattr__ = names_on_first_use(
    __name__,
    {name: f".{module}" for module, names in _NAMES_OF.items() for name in names},
    missing_extra("a check of a plan", "planner"),
)
