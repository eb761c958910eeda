"""What one partition's relay has done, for status and metrics."""

from __future__ import annotations

from dataclasses import dataclass

from timewheel.consumers.relay.machine.window import Fate

__all__ = ["Counts"]


@dataclass(slots=True, kw_only=True)
class Counts:
    """Messages since the relay was started; written by the partition's own threads, read by anybody.

    Args:
        forwarded: Hops on time, each stored once.
        late: Hops by the late lane, after an outage: at least once (broker-facts: late-lane). On-time ones that follow
            closely on a late one are among them.
        dead: Moved to the dead-letter topic.
        refiled: Of a ring: moved to the tail of their slot, since they are due a turn later (broker-facts: slot-sweep).
        dropped: Not moved on, since they were cancelled or replaced.
        skipped: Received again after a reload (broker-facts: received-again).
        deduplicated: Sends that the broker dropped, since an earlier one had been stored.
        jumps: Times that messages came after others were left out that can be read: another relay or an operator has
            acknowledged them, or the broker gave them to another consumer first.
        failures: Subscriptions given up and begun anew.
        entries: That brokers have stored for it; a group of hops is one.
    """

    forwarded: int = 0
    late: int = 0
    dead: int = 0
    refiled: int = 0
    dropped: int = 0
    skipped: int = 0
    deduplicated: int = 0
    jumps: int = 0
    failures: int = 0
    entries: int = 0

    @property
    def done(self) -> int:
        """Messages that are done with, in whatever way."""
        return self.forwarded + self.late + self.dead + self.refiled + self.dropped

    def add(self, fate: Fate) -> None:
        """Count one confirmed message; a probe is none of anybody's."""
        if fate == "forwarded":
            self.forwarded += 1
        elif fate == "late":
            self.late += 1
        elif fate == "dead":
            self.dead += 1
        elif fate == "refiled":
            self.refiled += 1
        elif fate == "dropped":
            self.dropped += 1
