"""Producers that do not outlive an outage of writes, for controls: a checker must find the results."""

from __future__ import annotations

from typing import Any, Literal

from timewheel.client.producer_pool import ProducerPool

ProducerRules = Literal["right", "a dead producer stays", "a send has no deadline"]


def keep(_: ProducerPool[Any], _pooled: object, _reason: str) -> None:
    """Replace `ProducerPool.replace`: the dead producer is used until the process ends."""


def none_overdue(_: ProducerPool[Any]) -> list[Any]:
    """Replace `ProducerPool._overdue`: a send waits as long as the client does."""
    return []


REPLACED = {"a dead producer stays": ("replace", keep), "a send has no deadline": ("_overdue", none_overdue)}
"""The name that each of the rules replaces."""


def break_producers(rules: ProducerRules) -> None:
    """Break the rules for this process, permanently."""
    if rules != "right":
        name, wrong = REPLACED[rules]
        assert hasattr(ProducerPool, name), name
        setattr(ProducerPool, name, wrong)
