"""A check: a pure function from what was seen to findings, with the kinds that it can find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from timewheel.ops.doctor.finding import Finding, Kind
from timewheel.ops.doctor.seen import Seen, Source

__all__ = ["Check", "Look"]

Look = Callable[[Seen], Iterator[Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check.

    Args:
        kinds: Of the findings that it can have.
        look: Finds them; it asks nobody.
        needs: What it judges by; if some of it could not be read, "nothing found" is no "all is well".
        of_any_topic: It makes sense for a topic without a plan.
    """

    kinds: tuple[Kind, ...]
    look: Look
    needs: frozenset[Source]
    of_any_topic: bool = False
