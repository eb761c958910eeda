"""Checks shared by the parts of a plan: each raises an error with field, value and limit."""

from __future__ import annotations

import re

from timewheel.core.durations import format_duration
from timewheel.core.errors import PlanError
from timewheel.core.near_words import did_you_mean

_SUBSCRIPTION = re.compile(r"(?!\.{1,2}$).+")
_NO_DURATION_MS = 10**18
"""Numbers from here on are shown as given in an error."""


def within(name: str, value: object, low: int, high: int, what: str = "") -> None:
    """Require a whole number between two limits, both included."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise PlanError(name, value, f"{what or 'a whole number'} from {low} to {high}")


def within_ms(name: str, value_ms: object, low_ms: int, high_ms: int) -> None:
    """Require a duration between two limits, both included."""
    if isinstance(value_ms, bool) or not isinstance(value_ms, int) or not low_ms <= value_ms <= high_ms:
        shown: object = value_ms
        if isinstance(value_ms, int) and 0 <= value_ms < _NO_DURATION_MS:
            shown = format_duration(value_ms)
        raise PlanError(name, shown, f"a duration from {format_duration(low_ms)} to {format_duration(high_ms)}")


def is_name(value: object, form: re.Pattern[str]) -> bool:
    """Return whether a value is printable text that matches a pattern."""
    # Unprintable characters (controls, halves of a surrogate pair) survive neither a file nor a URL.
    return isinstance(value, str) and value.isprintable() and form.fullmatch(value) is not None


def a_subscription(name: object) -> None:
    """Require a name that the admin API and plan files can carry; there is no other rule for subscriptions."""
    if not is_name(name, _SUBSCRIPTION):
        raise PlanError("subscriptions", name, 'a subscription\'s name is printable text, not empty, "." or ".."')


def a_tuple(name: str, value: object) -> None:
    """Require a tuple."""
    # A list would make the plan mutable and unhashable; a text would count as its letters.
    if not isinstance(value, tuple):
        raise PlanError(name, value, "must be a tuple")


def a_truth(name: str, value: object) -> None:
    """Require a boolean."""
    if not isinstance(value, bool):
        raise PlanError(name, value, "true or false")


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Require an allowed value."""
    if value not in allowed:
        raise PlanError(name, value, f"one of {', '.join(allowed)}{did_you_mean(value, allowed)}")


def texts(durations_ms: tuple[int, ...]) -> list[str]:
    """Format durations as in a plan file."""
    return [format_duration(duration_ms) for duration_ms in durations_ms]
