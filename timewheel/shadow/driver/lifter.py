"""The lifter of a partition, through all its sessions."""

from __future__ import annotations

import pulsar

from timewheel.binary_protocol.errors import BinaryProtocolError
from timewheel.consumers.relay.driver.endings import SessionFailed
from timewheel.consumers.relay.driver.handle import Handle
from timewheel.consumers.relay.driver.hop_producers import LeaseHeld
from timewheel.consumers.relay.machine.backoff import Backoff
from timewheel.core.errors import AdminError
from timewheel.events import ShadowLiftFailed, ShadowWaitsForLease
from timewheel.shadow.driver.copies import Stays
from timewheel.shadow.driver.lift_counts import LiftCounts
from timewheel.shadow.driver.lift_session import LiftSession
from timewheel.shadow.driver.lift_tools import LiftTools
from timewheel.shadow.machine.pacing import AT_LEAST_MS

__all__ = ["Lifter"]

RETRY_FIRST_MS = 100
RETRY_LONGEST_MS = 10_000
LEASE_MS = 2_000
"""Interval at which a waiting lifter requests the lease."""
MAX_STAYS = 100_000
ALL_KNOW_MS = AT_LEAST_MS + 10_000
"""Time after which every shadow knows a subscription that another shadow has seen first. Until then another shadow may
have struck originals without it that this shadow has lifted, so the journal's originals are struck once more then."""


class Lifter:
    """Runs sessions, one at a time, in the thread that calls `run`.

    Args:
        tools: Shared by all lifters.
        part: Full name of the due topic's partition, or of a due topic without partitions.
        partition: Its index; 0 for a due topic without partitions.

    Attributes:
        handle: Its stop signal, and its pulse.
        counts: Its counters.
        leads: Whether it has the lease.
        reason: Why it last began anew; None: it never had to.
    """

    def __init__(self, tools: LiftTools, part: str, partition: int) -> None:
        self._tools = tools
        self.part = part
        self.partition = partition
        self.handle = Handle(tools.clock)
        self.counts = LiftCounts()
        self.leads = False
        self.reason: str | None = None
        self._stays: Stays = {}
        self._versions: set[int] = set()
        self._told_of_lease = False
        self._again_ms: int | None = None

    def run(self) -> None:
        """Work until the handle signals a stop."""
        handle, tools = self.handle, self._tools
        backoff = Backoff(RETRY_FIRST_MS, RETRY_LONGEST_MS, tools.chance)
        while not handle.stopping:
            lifted = self.counts.lifted
            session = LiftSession(
                tools,
                self.part,
                self.partition,
                handle,
                self.counts,
                self._stays,
                self._versions,
                self._led,
                self._again_ms,
            )
            try:
                session.run()
            except LeaseHeld:
                self._wait_for_lease()
                continue
            except (SessionFailed, AdminError, BinaryProtocolError, pulsar.PulsarException) as error:
                self._failed(str(error) or repr(error))
            except Exception as error:  # noqa: BLE001 - a bug must not end a partition's lifter in silence
                self._failed(repr(error))
            else:
                self._ended(session)
                continue
            finally:
                self.leads = False
                self.counts.caught_up = False
            if self.counts.lifted != lifted:
                backoff.reset()
            handle.pause(backoff.next_ms())

    def _led(self) -> None:
        self.leads, self._told_of_lease = True, False

    def _ended(self, session: LiftSession) -> None:
        now_ms = self._tools.clock.monotonic_ms()
        if session.met_others:
            self._again_ms = now_ms + ALL_KNOW_MS
        elif self._again_ms is not None and now_ms >= self._again_ms:
            self._again_ms = None

    def _wait_for_lease(self) -> None:
        if not self._told_of_lease:
            self._told_of_lease = True
            self._tools.hooks.emit(ShadowWaitsForLease(topic=self.part))
        self.handle.pause(LEASE_MS)

    def _failed(self, reason: str) -> None:
        self.counts.failures += 1
        self.reason = reason
        if len(self._stays) > MAX_STAYS:
            self._stays.clear()
        self._tools.hooks.emit(ShadowLiftFailed(topic=self.part, reason=reason))
