"""Outcomes of sends on their way from the client's thread to the partition's thread."""

from __future__ import annotations

from collections import deque
from typing import Any

from timewheel.client.results import SEEN_BEFORE, is_of_message
from timewheel.core.clock import Clock
from timewheel.relay.driver.handle import Handle
from timewheel.relay.driver.hop_batches import HopBatch
from timewheel.relay.machine.commands import NEVER

HEARTBEAT_MS = 5_000
"""The longest wait, so that a jump of the clock is noticed and the thread is known to live. Where hundreds of
partitions hold a head, waking up is most of the cost of a relay at rest.
"""


class Confirmations:
    """A queue with one writer, the client's thread, and one reader.

    Its length is bounded by the sends under way.

    Args:
        handle: Counts the messages that the broker dropped as duplicates; its condition wakes the reader.
        clock: Waits.
    """

    __slots__ = ("_clock", "_handle", "_wake_at", "cut", "outcomes")

    def __init__(self, handle: Handle, clock: Clock) -> None:
        self._handle = handle
        self._clock = clock
        self.outcomes: deque[tuple[int, str | None]] = deque()
        """(ordinal, failure). Public, since checking its length directly costs a call less than a method."""
        self.cut: deque[tuple[HopBatch, bool]] = deque()
        """Groups not sent as one entry, each with whether the client refused it whole; else its outcome is unknown."""
        self._wake_at = NEVER

    def on_batched(self, ordinal: int, result: Any, message_id: Any) -> None:
        """Do the work of `on_sent` for an unnamed producer, which may have put the message into a batch.

        The first message of a batch counts as the entry.
        """
        if result.value or message_id.batch_index() <= 0 or message_id.ledger_id() < 0:
            self.on_sent(ordinal, True, result, message_id)
            return
        self.outcomes.append((ordinal, None))
        if len(self.outcomes) >= self._wake_at:
            self._wake()

    def on_sent(self, ordinal: int, is_new: bool, result: Any, message_id: Any) -> None:
        """Record an outcome. Runs on the client's thread: never raises, and does next to nothing.

        Args:
            ordinal: Ordinal of the message.
            is_new: Whether the broker can have it from no earlier session.
            result: The client's result.
            message_id: The client's message id.
        """
        failure = None
        if result.value:
            failure = result.name
        elif message_id.ledger_id() < 0:
            if is_new:
                failure = SEEN_BEFORE
            else:
                self._handle.counts.deduplicated += 1
        else:
            self._handle.counts.entries += 1
        self.outcomes.append((ordinal, failure))
        if failure is not None or len(self.outcomes) >= self._wake_at:
            self._wake()

    def on_group(self, group: HopBatch, result: Any, message_id: Any) -> None:
        """Record the outcome of a group's last message; runs on the client's thread, like `on_sent`."""
        members = group.members
        failure = None
        refused = bool(result.value) and is_of_message(result.name) and len(members) > 1
        if refused or (not result.value and message_id.batch_index() != len(members) - 1):
            self.cut.append((group, refused))
            self._wake()
            return
        if result.value:
            failure = result.name
        elif message_id.ledger_id() < 0:
            if group.is_new:
                failure = SEEN_BEFORE
            else:
                self._handle.counts.deduplicated += len(members)
        else:
            self._handle.counts.entries += 1
        self.outcomes.extend((member.ordinal, failure) for member in members)
        if failure is not None or len(self.outcomes) >= self._wake_at:
            self._wake()

    def _wake(self) -> None:
        with self._handle.changed:
            self._handle.changed.notify_all()

    def wait(self, timeout_ms: int, *, wake_at: int, also_while_stopping: bool = False) -> None:
        """Wait for ``wake_at`` outcomes, a stop, or the time; at most `HEARTBEAT_MS`."""
        handle = self._handle
        with handle.changed:
            # The client's thread appends first and then reads _wake_at: either it sees this write, or we see its
            # outcome.
            self._wake_at = wake_at
            if len(self.outcomes) < wake_at and not self.cut and (also_while_stopping or not handle.stopping):
                self._clock.wait(handle.changed, min(max(timeout_ms, 0), HEARTBEAT_MS))
            self._wake_at = NEVER
        handle.beat()

    def take(self) -> tuple[list[int], list[tuple[int, str]]]:
        """Return the ordinals confirmed by now, and the ordinals that are not stored, each with its failure."""
        ordinals: list[int] = []
        failures: list[tuple[int, str]] = []
        for _ in range(len(self.outcomes)):
            ordinal, failure = self.outcomes.popleft()
            if failure is None:
                ordinals.append(ordinal)
            else:
                failures.append((ordinal, failure))
        return ordinals, failures
