"""Check a live plan: compare its topics with the prediction, detect drift, and project when a limit is reached.

    checked = check(admin, plan, profile, clock)

Requires the extra `planner`. Names are imported on first use, as in the planner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timewheel.core.extras import missing_extra, names_on_first_use

if TYPE_CHECKING:
    from timewheel.watch.change import Change, change_for
    from timewheel.watch.checking import Checked, Finding, Level, check
    from timewheel.watch.comparison import GapComparison
    from timewheel.watch.outlook import CheckLine, Growth, append_check, read_checks
    from timewheel.watch.sends import Drift, Sends
    from timewheel.watch.text import checked_facts

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

__getattr__ = names_on_first_use(
    __name__,
    {
        ".change": "Change change_for",
        ".checking": "Checked Finding Level check",
        ".comparison": "GapComparison",
        ".outlook": "CheckLine Growth append_check read_checks",
        ".sends": "Drift Sends",
        ".text": "checked_facts",
    },
    missing_extra("a check of a plan", "planner"),
)
