"""The known word that a misspelt word was probably meant to be."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(given: object, known: Iterable[str], place: str = "") -> str:
    """Return a clause with the nearest known word, for the end of an error's limit; empty if no word is near.

    Args:
        given: The value as given; only text is near to a word.
        known: The words that are allowed.
        place: Clause for the place of the known words, such as `` of [tiered]``.
    """
    if not isinstance(given, str):
        return ""
    by_lower = {word.lower(): word for word in known}
    near = get_close_matches(given.lower(), by_lower, 1)
    return f"; did you mean {by_lower[near[0]]}{place}?" if near else ""
