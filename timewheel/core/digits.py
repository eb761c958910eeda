"""Parsing of numbers from untrusted input: properties, names and lines of text."""

from __future__ import annotations

MAX_DIGITS = 18
"""Every number with at most this many digits fits into 64 bits, and Python parses it without an error of its own."""


def whole_number(text: str, max_digits: int = MAX_DIGITS) -> int | None:
    """Parse decimal ASCII digits; None: the text is anything else, or too long.

    Args:
        text: Any text.
        max_digits: Longest text that is parsed.
    """
    return int(text) if len(text) <= max_digits and text.isascii() and text.isdecimal() else None
