"""What a shadow says about itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from timewheel.shadow.machine.states import State

__all__ = ["LifterStatus", "ShadowStatus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LifterStatus:
    """One partition of the due topic, at one moment.

    Args:
        topic: Full name of the partition.
        leads: It lifts here; else another shadow does, or it is beginning.
        alive: Its thread gave a sign of life lately.
        caught_up: It has gone through the backlog.
        lifted: Copies that are stored.
        deduplicated: Copies that the broker had already.
        struck_again: Originals whose acknowledgement a broker had forgotten.
        stirs: Messages against starving.
        failures: Sessions that began anew.
        fates: Entries by what became of them: each `timewheel.shadow.machine.lifting.Fate` by its value.
        lag_p50_ms: From an original's publish to its lift, of what came while it ran; None: nothing yet.
        lag_p99_ms: The same.
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
    """A shadow at one moment.

    Args:
        state: What is wished for the topic.
        refusal: Why nothing is lifted; empty: nothing stands against it.
        struck: Originals that were acknowledged for the copies that came in.
        lifters: One for each partition.
    """

    state: State
    refusal: str
    struck: int
    lifters: tuple[LifterStatus, ...]

    def story(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {**asdict(self), "state": self.state.value, "lifters": [asdict(lifter) for lifter in self.lifters]}
