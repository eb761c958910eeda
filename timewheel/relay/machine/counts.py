"""Counters of a partition's relay, for status and metrics."""

from __future__ import annotations

from dataclasses import dataclass

from timewheel.relay.machine.window import Outcome


@dataclass(slots=True, kw_only=True)
class Counts:
    """Messages since the relay was started; written by the partition's own threads, read by any thread.

    Args:
        forwarded: Hops on time, each stored once.
        late: Hops by the late lane, after an outage: at least once (broker-facts: late-lane). Includes on-time hops
            that follow closely on a late hop.
        dead: Messages moved to the dead-letter topic.
        refiled: Timers in a ring that were moved to the tail of their slot, since they are due a turn later
            (broker-facts: slot-sweep).
        dropped: Timers not moved on, since they were cancelled or replaced.
        skipped: Messages received again after a reload (broker-facts: received-again).
        deduplicated: Sends that the broker dropped, since an earlier send had been stored.
        jumps: Times that readable messages were left out before a delivered message: another relay or an operator has
            acknowledged them, or the broker gave them to another consumer first.
        failures: Subscriptions given up and begun anew.
        entries: Entries that brokers have stored for it; a group of hops is a single entry.
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
        """Number of messages that are done with, with any outcome."""
        return self.forwarded + self.late + self.dead + self.refiled + self.dropped

    def add(self, outcome: Outcome) -> None:
        """Count a confirmed message; a probe is not counted."""
        if outcome == "forwarded":
            self.forwarded += 1
        elif outcome == "late":
            self.late += 1
        elif outcome == "dead":
            self.dead += 1
        elif outcome == "refiled":
            self.refiled += 1
        elif outcome == "dropped":
            self.dropped += 1
