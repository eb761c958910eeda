"""Exit statuses of all commands; docs/commands.md has the reason for 3 and 4 of each command."""

from __future__ import annotations

__all__ = ["ALARM", "ATTENTION", "FAILED", "USAGE"]

FAILED = 1
"""The command failed, a limit of the answer is not kept, or not everything could be seen."""
USAGE = 2
"""An argument, a setting or a plan is wrong."""
ATTENTION = 3
"""Something needs attention soon."""
ALARM = 4
"""Something is broken now, or the named object was not found."""
