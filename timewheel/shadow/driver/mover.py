"""The mover of a partition, through all its sessions."""

from __future__ import annotations

import pulsar

from timewheel.broker.protocol.errors import BinaryProtocolError
from timewheel.core.errors import AdminError
from timewheel.events import ShadowMoveFailed, ShadowWaitsForLease
from timewheel.relay.driver.hop_producers import LeaseHeld
from timewheel.relay.driver.source import Handle, SessionFailed
from timewheel.relay.machine.backoff import Backoff
from timewheel.shadow.driver.copies import Stays
from timewheel.shadow.driver.move_counts import MoveCounts
from timewheel.shadow.driver.move_session import MoveSession
from timewheel.shadow.driver.mover_tools import MoverTools
from timewheel.shadow.machine.pacing import AT_LEAST_MS

RETRY_FIRST_MS = 100
RETRY_LONGEST_MS = 10_000
LEASE_MS = 2_000
"""Interval at which a waiting mover requests the lease."""
MAX_STAYS = 100_000
ALL_KNOW_MS = AT_LEAST_MS + 10_000
"""Time after which every shadow knows a subscription that another shadow has seen first. Until then another shadow may
have acknowledged originals without it that this shadow has moved, so the journal's originals are acknowledged once
more then."""


class Mover:
    """Runs sessions, one at a time, in the thread that calls `run`.

    Args:
        tools: Shared by all movers.
        part: Full name of the due topic's partition, or of a due topic without partitions.
        partition: Its index; 0 for a due topic without partitions.

    Attributes:
        handle: Its stop signal, and its pulse.
        counts: Its counters.
        leads: Whether it has the lease.
        reason: Why it last began anew; None: it never had to.
    """

    def __init__(self, tools: MoverTools, part: str, partition: int) -> None:
        self._tools = tools
        self.part = part
        self.partition = partition
        self.handle = Handle(tools.clock)
        self.counts = MoveCounts()
        self.leads = False
        self.reason: str | None = None
        self._stays: Stays = {}
        self._versions: set[int] = set()
        self._reported_of_lease = False
        self._again_ms: int | None = None

    def run(self) -> None:
        """Work until the handle signals a stop."""
        handle, tools = self.handle, self._tools
        backoff = Backoff(RETRY_FIRST_MS, RETRY_LONGEST_MS, tools.rng)
        while not handle.stopping:
            moved = self.counts.moved
            session = MoveSession(
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
            except Exception as error:  # noqa: BLE001 - a bug must not end a partition's mover in silence
                self._failed(repr(error))
            else:
                self._ended(session)
                continue
            finally:
                self.leads = False
                self.counts.caught_up = False
            if self.counts.moved != moved:
                backoff.reset()
            handle.pause(backoff.next_ms())

    def _led(self) -> None:
        self.leads, self._reported_of_lease = True, False

    def _ended(self, session: MoveSession) -> None:
        now_ms = self._tools.clock.monotonic_ms()
        if session.met_others:
            self._again_ms = now_ms + ALL_KNOW_MS
        elif self._again_ms is not None and now_ms >= self._again_ms:
            self._again_ms = None

    def _wait_for_lease(self) -> None:
        if not self._reported_of_lease:
            self._reported_of_lease = True
            self._tools.hooks.emit(ShadowWaitsForLease(topic=self.part))
        self.handle.pause(LEASE_MS)

    def _failed(self, reason: str) -> None:
        self.counts.failures += 1
        self.reason = reason
        if len(self._stays) > MAX_STAYS:
            self._stays.clear()
        self._tools.hooks.emit(ShadowMoveFailed(topic=self.part, reason=reason))
