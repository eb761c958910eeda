"""Producers that do not outlive an outage of writes, for controls: a checker must find the results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal

from timewheel.client import producer_pool
from timewheel.client.producer_pool import ProducerPool

ProducerRules = Literal["right", "a dead producer stays", "a send has no deadline"]


def keep(_: ProducerPool[Any], _pooled: object, _reason: str) -> None:
    """Replace `ProducerPool.replace`: the dead producer is used until the process ends."""


def none_overdue(_: ProducerPool[Any]) -> list[Any]:
    """Replace `ProducerPool._overdue`: a send waits as long as the client does."""
    return []


WRONG: Mapping[ProducerRules, Mapping[tuple[object, str], Any]] = {
    "right": {},
    "a dead producer stays": {(ProducerPool, "replace"): keep, (producer_pool, "AWAY_ROUNDS"): sys.maxsize},
    "a send has no deadline": {(ProducerPool, "_overdue"): none_overdue},
}
"""What stands in place of the pool's own, by where it is."""


def break_producers(rules: ProducerRules, put: Callable[[object, str, Any], None] = setattr) -> None:
    """Break the rules for this process, permanently unless ``put`` takes it back."""
    for (place, name), wrong in WRONG[rules].items():
        assert hasattr(place, name), name
        put(place, name, wrong)
