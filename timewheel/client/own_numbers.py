"""Options for producers that need no fixed name: a random name, and sequence ids from the client."""

from __future__ import annotations

from collections.abc import Callable
from os import urandom
from typing import Any, Final

_NAME_BYTES: Final = 16


def own_numbers(random_bytes: Callable[[int], bytes] = urandom) -> dict[str, Any]:
    """Return options of ``create_producer`` for a single producer; every producer needs options of its own.

    The name cannot be guessed. Brokers count the names that they assign. If another client sends a high sequence id
    under the next of these names, the broker drops all messages of the producer that gets the name, with Ok
    (broker-facts: numbers-of-others).

    Without a first number, a producer that reconnects before its first acknowledgement begins at 0 again, although
    messages with these numbers are in flight. The broker then drops the newer messages as repeats, with Ok, and they
    are lost (broker-facts: numbers-used-twice). The client would read 0 as "none".

    Args:
        random_bytes: Returns this many bytes from a cryptographic generator.
    """
    return {"producer_name": f"tw-{random_bytes(_NAME_BYTES).hex()}", "initial_sequence_id": 1}
