"""Producers that need no fixed name: each has a random one, and the client numbers what it sends."""

from __future__ import annotations

from collections.abc import Callable
from os import urandom
from typing import Any, Final

__all__ = ["own_numbers"]

_NAME_BYTES: Final = 16


def own_numbers(random_bytes: Callable[[int], bytes] = urandom) -> dict[str, Any]:
    """Options of ``create_producer`` for one producer; the next one needs its own.

    The name cannot be guessed. Brokers count the names that they give, and whoever sends one high number under the next
    of them has all that this producer sends dropped, with Ok (broker-facts: numbers-of-others).

    Without a first number a producer that connects again before anything was acknowledged begins at 0 once more, though
    messages with these numbers are on their way; the broker then drops the newer ones as seen before, with Ok, and they
    are gone (broker-facts: numbers-used-twice). 0 would be taken for "none".

    Args:
        random_bytes: Gives so many; of a cryptographic generator.
    """
    return {"producer_name": f"tw-{random_bytes(_NAME_BYTES).hex()}", "initial_sequence_id": 1}
