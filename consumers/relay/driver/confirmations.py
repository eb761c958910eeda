"""Outcomes of sends on their way from the client's thread to the partition's."""

from __future__ import annotations

from collections import deque
from typing import Any

from timewheel.consumers.relay.driver.groups import Group
from timewheel.consumers.relay.driver.handle import Handle
from timewheel.consumers.relay.machine.commands import NEVER
from timewheel.core.clock import Clock
from timewheel.wire.results import SEEN_BEFORE, is_of_message

__all__ = ["HEARTBEAT_MS", "Confirmations"]

HEARTBEAT_MS = 5_000
"""No wait is longer, so that a jump of the clock is noticed and the thread is known to live. Where hundreds of
partitions hold a head, waking up is most of what a relay at rest costs."""


class Confirmations:
    """A queue with one writer, the client's thread, and one reader.

    Its length is bounded by the sends under way.

    Args:
        handle: Counts what the broker dropped as seen before; its condition wakes the reader.
        clock: Waits.
    """

    __slots__ = ("_clock", "_handle", "_wake_at", "cut", "outcomes")

    def __init__(self, handle: Handle, clock: Clock) -> None:
        self._handle = handle
        self._clock = clock
        self.outcomes: deque[tuple[int, str | None]] = deque()
        """(ordinal, what went wrong). To look whether there are any costs a call less than asking this object."""
        self.cut: deque[tuple[Group, bool]] = deque()
        """Groups that were not sent as one entry, and whether the client refused them whole. If not, what became of
        their messages is not known."""
        self._wake_at = NEVER

    def on_batched(self, ordinal: int, result: Any, message_id: Any) -> None:
        """As `on_sent`, of an unnamed producer, which may have put it into a batch: the first message of that counts as
        the entry.
        """
        if result.value or message_id.batch_index() <= 0 or message_id.ledger_id() < 0:
            self.on_sent(ordinal, True, result, message_id)
            return
        self.outcomes.append((ordinal, None))
        if len(self.outcomes) >= self._wake_at:
            self._wake()

    def on_sent(self, ordinal: int, is_new: bool, result: Any, message_id: Any) -> None:
        """Runs on the client's thread: never raises, and does next to nothing.

        Args:
            ordinal: Of the message.
            is_new: Whether the broker can have had it from no earlier session.
            result: The client's.
            message_id: The client's.
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

    def on_group(self, group: Group, result: Any, message_id: Any) -> None:
        """Of the last message of a group; runs on the client's thread, like `on_sent`."""
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
        """Wait for so many outcomes, a stop, or the time; at most `HEARTBEAT_MS`."""
        handle = self._handle
        with handle.changed:
            # The client's thread appends first and looks at _wake_at then: either it sees this, or we see that.
            self._wake_at = wake_at
            if len(self.outcomes) < wake_at and not self.cut and (also_while_stopping or not handle.stopping):
                self._clock.wait(handle.changed, min(max(timeout_ms, 0), HEARTBEAT_MS))
            self._wake_at = NEVER
        handle.beat()

    def take(self) -> tuple[list[int], list[tuple[int, str]]]:
        """The ordinals of all that is confirmed by now; and those of what is not stored, with what went wrong."""
        ordinals: list[int] = []
        failures: list[tuple[int, str]] = []
        for _ in range(len(self.outcomes)):
            ordinal, failure = self.outcomes.popleft()
            if failure is None:
                ordinals.append(ordinal)
            else:
                failures.append((ordinal, failure))
        return ordinals, failures
