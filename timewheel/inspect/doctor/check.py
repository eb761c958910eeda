"""A check: a pure function from the state that was read to findings, with the kinds that it can find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from timewheel.inspect.doctor.finding import Finding, Kind
from timewheel.inspect.doctor.seen import Seen, Source

Look = Callable[[Seen], Iterator[Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check.

    Args:
        kinds: Kinds of its findings.
        inspect: Yields the findings; makes no calls.
        needs: Sources that it judges by; if part of a source could not be read, "nothing found" is no "all is well".
        of_any_topic: True if it applies to a topic without a plan.
    """

    kinds: tuple[Kind, ...]
    inspect: Look
    needs: frozenset[Source]
    of_any_topic: bool = False
