"""Producers without a name of ours: the client numbers what they send, and must not use a number twice."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["OWN_NUMBERS"]

OWN_NUMBERS: Final[dict[str, Any]] = {"initial_sequence_id": 1}
"""Options of ``create_producer``. Without a first number a producer that connects again before anything was
acknowledged begins at 0 once more, though messages with these numbers are on their way; the broker then drops the newer
ones as seen before, with Ok, and they are gone (broker-facts: numbers-used-twice). 0 would be taken for "none"."""
