"""Numbers with their nouns, for messages to people."""

from __future__ import annotations


def counted(number: int, noun: str, several: str | None = None) -> str:
    """Return a number with the fitting noun: "1 timer", "2,000 timers"."""
    return f"{number:,} {noun if number == 1 else several or f'{noun}s'}"
