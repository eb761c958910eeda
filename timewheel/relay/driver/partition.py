"""A partition of a holding topic, through all its subscriptions: restarts after failures, and at readable holes."""

from __future__ import annotations

from collections.abc import Mapping

import pulsar

from timewheel.client.native import first_chunk_of
from timewheel.client.positions import Position
from timewheel.core.limits import OutOfOrder
from timewheel.core.next_hop import NextHop
from timewheel.events import RelayPositionJumped, RelaySessionCrashed, RelaySessionFailed
from timewheel.relay.driver.dead_letter_writer import Verdicts
from timewheel.relay.driver.endings import HoleFound, SessionFailed
from timewheel.relay.driver.handle import Handle, PartitionState
from timewheel.relay.driver.prefetch import Prefetch
from timewheel.relay.driver.session import Session
from timewheel.relay.driver.source import Source, Tools
from timewheel.relay.driver.visiting import Visiting
from timewheel.relay.machine.arrivals import Arrivals
from timewheel.relay.machine.backoff import Backoff
from timewheel.relay.machine.beginning import Beginning
from timewheel.relay.machine.broker_held import BrokerHeld
from timewheel.relay.machine.forwarding import Forwarding
from timewheel.relay.machine.interface import Machine
from timewheel.relay.machine.order import Spot
from timewheel.relay.machine.relay_held import RelayHeld
from timewheel.relay.machine.visits import Visit
from timewheel.relay.machine.window import Outcome

RETRY_FIRST_MS = 100
RETRY_LONGEST_MS = 10_000
"""The longest pause before a refusing destination is tried again; the relay's window for it protects its tiers."""
BROKER_HELD_WINDOW = 1_000
"""Each message under way there is acknowledged individually, and may be a gap until then."""


class Partition:
    """Runs sessions, one at a time, each in the thread of the caller of `run`, or of `visit`.

    Args:
        source: The partition to read.
        tools: The relay's tools.
    """

    def __init__(self, source: Source, tools: Tools) -> None:
        self.source = source
        self.handle = Handle(tools.clock)
        self._tools = tools
        self.moving: Forwarding | BrokerHeld | None = None
        """The messages in flight, of the last subscription; others may read how many they are and how old."""
        self._known: Spot | None = None
        self._confirmed_behind: Mapping[Position, Outcome] = {}
        self._beginning = Beginning()
        self._verdicts = Verdicts()
        self._arrivals = Arrivals(source.step.stay_ms, tools.router.plan.skew_ms)
        self._prefetch = Prefetch(tools.memory, by_broker=source.holding.by_broker)
        self._visiting = Visiting()
        self._left: Visit | None = None

    def run(self) -> None:
        """Work until stopped."""
        handle = self.handle
        backoff = Backoff(RETRY_FIRST_MS, RETRY_LONGEST_MS, self._tools.rng)
        while not handle.stopping:
            done = handle.counts.done
            try:
                if self._has_ended():
                    break
            except Exception as error:  # noqa: BLE001 - a bug must not end a partition's relay in silence
                self._failed(repr(error), RelaySessionCrashed)
            if handle.counts.done != done:
                backoff.reset()
            handle.state = PartitionState.BACKING_OFF
            handle.pause(backoff.next_ms())
        handle.state = PartitionState.CLOSED if handle.stopping else PartitionState.RESTING

    def visit(self, visit: Visit) -> bool:
        """Begin a visit, or prolong the running visit.

        Returns:
            True if no visit was running, so that the caller has to call `run_visit`.
        """
        return self._visiting.begin(visit)

    def run_visit(self) -> None:
        """Work until the visit, with all its prolongations, is over."""
        while True:
            self.run()
            if self._visiting.end(self._left, unfinished=self.handle.stopping):
                return

    def _has_ended(self) -> bool:
        """Run a subscription.

        Returns:
            True if no other subscription is to follow.
        """
        if self._is_gone():
            self.handle.stop(0)
            return True
        machine = self._machine()
        session = Session(self.source, self._tools, self.handle, self._verdicts, machine, self._prefetch)
        is_known = True
        try:
            session.run()
            self._left = machine.left
        except HoleFound as hole:
            is_known = False
            self.handle.counts.jumps += 1
            self._tools.hooks.emit(RelayPositionJumped(topic=self.source.name, reason=str(hole)))
            return False
        except SessionFailed as failed:
            self._failed(str(failed))
            return False
        except Exception as error:
            self._verdicts.crashed(session.position, repr(error))
            raise
        finally:
            # The next session skips these positions (broker-facts: received-again).
            self._known = machine.confirmed_to if is_known else None
            if isinstance(self.moving, Forwarding):
                self._confirmed_behind = self.moving.confirmed_behind
                self._beginning.outlives()
                if self.moving.has_begun or not session.begins_anew:
                    self._beginning = Beginning()
        return self.handle.stopping or not (session.begins_anew or machine.begins_anew)

    def _is_gone(self) -> bool:
        """True if it is an earlier plan's and was removed. Subscribing all the same could create it again."""
        if not self.source.is_former:
            return False
        try:
            return self.source.topic in self._tools.client.get_topic_partitions(self.source.topic)
        except pulsar.TopicNotFound:
            return True
        except pulsar.PulsarException:
            return False  # unknown: subscribing will show it

    def _machine(self) -> Machine:
        tools = self._tools
        next_hop = NextHop(tools.router, self.source.step, tools.is_dead, drains_from_ms=tools.drains_from_ms)
        out_of_order = OutOfOrder(tools.router.plan)
        counts = self.handle.counts
        if self.source.holding.by_broker:
            limit = min(tools.max_in_flight, BROKER_HELD_WINDOW)
            self.moving = machine = BrokerHeld(
                next_hop,
                out_of_order,
                window_limit=limit,
                counts=counts,
                rng=tools.rng,
                window_bytes=tools.memory.window_bytes(),
            )
            return machine
        self.moving = forwarding = Forwarding(
            next_hop,
            out_of_order,
            known=self._known,
            beginning=self._beginning,
            confirmed_behind=self._confirmed_behind,
            first_chunk=first_chunk_of,
            window_limit=tools.max_in_flight,
            window_bytes=tools.memory.window_bytes(),
            counts=counts,
            linger_ms=tools.hop_linger_ms,
            arrivals=self._arrivals,
        )
        return RelayHeld(
            forwarding,
            visit=self._visiting.now,
            lease_idle_ms=tools.lease_idle_ms,
            rng=tools.rng,
        )

    def _failed(self, reason: str, kind: type[RelaySessionFailed | RelaySessionCrashed] = RelaySessionFailed) -> None:
        self.handle.counts.failures += 1
        self.handle.reason = reason
        self._tools.hooks.emit(kind(topic=self.source.name, reason=reason))
