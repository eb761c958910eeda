"""The status of a shadow."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from timewheel.shadow.machine.states import State

__all__ = ["LifterStatus", "ShadowStatus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LifterStatus:
    """The status of a lifter of a partition of the due topic.

    Args:
        topic: Full name of the partition.
        leads: It lifts here; otherwise another shadow does, or it is beginning.
        alive: Its thread gave a sign of life lately.
        caught_up: It has processed the backlog.
        lifted: Copies that are stored.
        deduplicated: Copies that the broker had already.
        struck_again: Originals whose acknowledgement a broker had forgotten.
        stirs: Messages against starving.
        failures: Sessions that began anew.
        fates: Entries by the value of their `timewheel.shadow.machine.lifting.Fate`.
        lag_p50_ms: From an original's publish to its lift, of originals that came while it ran; None: none yet.
        lag_p99_ms: The same, 99th percentile.
        reason: Why it last began anew; None: it never had to.
    """

    topic: str
    leads: bool
    alive: bool
    caught_up: bool
    lifted: int
    deduplicated: int
    struck_again: int
    stirs: int
    failures: int
    fates: dict[str, int]
    lag_p50_ms: int | None
    lag_p99_ms: int | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowStatus:
    """The status of a shadow.

    Args:
        state: The wished state of the topic.
        refusal: Why no timer is lifted; empty: there is no obstacle.
        struck: Originals that were acknowledged for arriving copies.
        lifters: A status for each partition.
    """

    state: State
    refusal: str
    struck: int
    lifters: tuple[LifterStatus, ...]

    def story(self) -> dict[str, Any]:
        """Return all of it, for JSON."""
        return {**asdict(self), "state": self.state.value, "lifters": [asdict(lifter) for lifter in self.lifters]}
