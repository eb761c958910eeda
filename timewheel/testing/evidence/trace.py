"""The trace that every scheme plays, the same for the same seed."""

from __future__ import annotations

import random

_PREFIX = "t"


def delays_ms(*, messages: int, span_ms: int, seed: int) -> tuple[int, ...]:
    """Return delays in order of sending, independent and uniform from 0 to ``span_ms`` (exclusive), milliseconds."""
    random_source = random.Random(seed)
    return tuple(random_source.randrange(span_ms) for _ in range(messages))


def timer_id(index: int) -> str:
    """Return the id of the timer that is sent as number ``index``, from 0."""
    return f"{_PREFIX}{index:07d}"


def timer_index(timer: str) -> int:
    """Return the number of a timer by its id; -1 for an id that is not of the trace's form."""
    number = timer.removeprefix(_PREFIX)
    return int(number) if timer.startswith(_PREFIX) and number.isascii() and number.isdecimal() else -1


def payload(index: int) -> bytes:
    """Return a payload of the size of a small reminder."""
    return f'{{"reminder": {index}, "text": "your subscription renews in three days"}}'.encode()
