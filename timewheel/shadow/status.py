"""The status of a shadow."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from timewheel.shadow.machine.states import State


@dataclass(frozen=True, slots=True, kw_only=True)
class MoverStatus:
    """The status of a mover of a partition of the due topic.

    Args:
        topic: Full name of the partition.
        leads: It moves here; otherwise another shadow does, or it is beginning.
        alive: Its thread gave a sign of life lately.
        caught_up: It has processed the backlog.
        moved: Copies that are stored.
        deduplicated: Copies that the broker had already.
        acked_again: Originals whose acknowledgement a broker had forgotten.
        nudges: Messages against starving.
        failures: Sessions that began anew.
        decisions: Entries by the value of their `timewheel.shadow.machine.move_decider.MoveDecision`.
        lag_p50_ms: From an original's publish to its move, of originals that came while it ran; None: none yet.
        lag_p99_ms: The same, 99th percentile.
        reason: Why it last began anew; None: it never had to.
    """

    topic: str
    leads: bool
    alive: bool
    caught_up: bool
    moved: int
    deduplicated: int
    acked_again: int
    nudges: int
    failures: int
    decisions: dict[str, int]
    lag_p50_ms: int | None
    lag_p99_ms: int | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowStatus:
    """The status of a shadow.

    Args:
        state: The desired state of the topic.
        refusal: Why no timer is moved; empty: there is no obstacle.
        acked_originals: Originals that were acknowledged for arriving copies.
        movers: A status for each partition.
    """

    state: State
    refusal: str
    acked_originals: int
    movers: tuple[MoverStatus, ...]

    def story(self) -> dict[str, Any]:
        """Return all of it, for JSON."""
        return {**asdict(self), "state": self.state.value, "movers": [asdict(mover) for mover in self.movers]}
