"""Reads numbers that strangers write: in properties, names and lines of text."""

from __future__ import annotations

__all__ = ["MOST_DIGITS", "whole_number"]

MOST_DIGITS = 18
"""Each number of so many digits fits into 64 bits, and Python reads it without a complaint of its own."""


def whole_number(text: str, most_digits: int = MOST_DIGITS) -> int | None:
    """Read decimal ASCII digits; None: the text is anything else, or longer.

    Args:
        text: Whatever somebody wrote.
        most_digits: Its longest.
    """
    return int(text) if len(text) <= most_digits and text.isascii() and text.isdecimal() else None
