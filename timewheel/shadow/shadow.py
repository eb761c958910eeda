"""The shadow of a due topic: movers and a relay, which follow the desired state for the topic."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Self

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.protocol.dialing import Dialer
from timewheel.client.hooks import Hooks
from timewheel.client.positions import EntryPosition
from timewheel.client.reaching import reaching
from timewheel.client.surface import ClientLike, ConsumerLike
from timewheel.core.clock import Clock, SystemClock, wait_until
from timewheel.core.errors import ClientMisuse, PlanError
from timewheel.core.names import Names, parts_of
from timewheel.core.plan import Plan
from timewheel.core.rng import Random, system_random
from timewheel.core.topology import FormerTopic
from timewheel.events import RelayPlanNotStarted
from timewheel.hooks import Hook
from timewheel.relay.driver.source import MEMORY_BYTES, Handle, Source
from timewheel.relay.relay import DRAIN_MS, STUCK_MS, Relay, RelayStatus, new_relay_id
from timewheel.shadow.desired_state import DesiredState, State, drains
from timewheel.shadow.driver.acker import AckBeforeRelay, OriginalAcker
from timewheel.shadow.driver.inspector import Subscription, TopicInspector, View
from timewheel.shadow.driver.mover import Mover, MoverTools
from timewheel.shadow.machine.journal import HOLD_MS
from timewheel.shadow.machine.move_decider import MoveDecision


@dataclass(frozen=True, slots=True, kw_only=True)
class MoverStatus:
    """The status of a mover of a partition of the due topic."""

    topic: str
    leads: bool  # it moves here; otherwise another shadow does, or it is beginning
    alive: bool  # its thread gave a sign of life lately
    caught_up: bool  # it has processed the backlog
    moved: int  # copies that are stored
    deduplicated: int  # copies that the broker had already
    acked_again: int  # originals whose acknowledgement a broker had forgotten
    nudges: int  # messages against starving
    failures: int  # sessions that began anew
    decisions: dict[str, int]  # entries by the value of their `timewheel.shadow.machine.move_decider.MoveDecision`
    # from an original's publish to its move, of originals that came while it ran; None: none yet
    lag_p50_ms: int | None
    lag_p99_ms: int | None  # the same, 99th percentile
    reason: str | None  # why it last began anew; None: it never had to


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowStatus:
    """The status of a shadow."""

    state: State
    refusal: str  # why no timer is moved; empty: there is no obstacle
    acked_originals: int  # originals that were acknowledged for arriving copies
    movers: tuple[MoverStatus, ...]

    def story(self) -> dict[str, Any]:
        """Return all of it, for JSON."""
        return {**asdict(self), "state": self.state.value, "movers": [asdict(mover) for mover in self.movers]}


LOOK_MS = 1_000
UNHEARD_MS = 10_000
"""Time after a change of the desired state for which another shadow may work as before: it looks every second, and
then has hops under way."""


class Shadow:
    """Moves timers far from due out of a topic of plain clients, and relays them back near their time.

    Any number of shadows of a plan may run, in as many processes: they share the partitions, and take over from each
    other. The desired state is stored on the broker (`timewheel shadow start`, `pause`, `abort`).

    Args:
        client: The user's `pulsar.Client`; the caller closes it, after `stop`.
        plan: A plan with an intake.
        dialer: Connects by the binary protocol.
        admin: An admin client; the caller closes it.
        relay_id: As for a `Relay`.
        clock: Time.
        rng: For pauses; None: the machine's.
        hooks: Receive events; None: they are logged.
        hop_linger_ms: As for a `Relay`.
        memory_bytes: As for a `Relay`.
        former_topics: As for a `Relay`.
        hold_ms: How long the journal keeps a copy after every subscription has passed its original.

    Raises:
        PlanError: The plan has no intake.
    """

    def __init__(
        self,
        client: ClientLike,
        plan: Plan,
        dialer: Dialer,
        admin: AdminClient,
        *,
        relay_id: str | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
        hooks: tuple[Hook, ...] | None = None,
        hop_linger_ms: int | None = None,
        memory_bytes: int = MEMORY_BYTES,
        former_topics: Callable[[], Sequence[FormerTopic]] | None = None,
        hold_ms: int = HOLD_MS,
    ) -> None:
        if not plan.intake:
            raise PlanError("intake", plan.intake, "a shadow needs the topics that come with intake = true")
        self.plan = plan
        self.relay_id = relay_id or new_relay_id()
        self._dialer = dialer
        self._clock = clock or SystemClock()
        self._rng = rng or system_random()
        self._names = Names(plan)
        self._hooks = Hooks(hooks)
        self._inspector = TopicInspector(admin, plan, self._clock, self._hooks)
        # By partition: of ended sessions only the count is kept.
        self._gates: dict[int, AckBeforeRelay] = {}
        self._acked_before = 0
        client = reaching(client)
        self._relay_by = partial(
            Relay, client, plan, relay_id=self.relay_id, clock=self._clock, rng=self._rng, hooks=hooks,
            hop_linger_ms=hop_linger_ms, former_topics=former_topics, gate=self._gate,
        )  # fmt: skip
        self._memory_bytes = memory_bytes
        tools = MoverTools(
            client=client, dialer=dialer, admin=admin, plan=plan, inspector=self._inspector, clock=self._clock,
            rng=self._rng, hooks=self._hooks, hold_ms=hold_ms, acked_to=self._acked_to, look_soon=self._look_soon,
        )  # fmt: skip
        parts = parts_of(plan.due_topic, plan.partitions)
        self._movers = tuple(Mover(tools, part, number) for number, part in enumerate(parts))
        self._threads = [
            threading.Thread(target=mover.run, name=f"timewheel-mover {mover.part}", daemon=True)
            for mover in self._movers
        ]
        self._thread = threading.Thread(target=self._look_after, name="timewheel-shadow", daemon=True)
        self._heartbeat_ms = self._clock.monotonic_ms()
        self._changed = threading.Condition()
        self._relay: Relay | None = None
        self._drains = False
        self._started = self._stopping = self._looks_soon = False
        self._failure = ""

    # The interface of a relay service

    def check(self) -> None:
        """Check that the plan's topics exist, and start no thread; errors as for `Relay.check`."""
        self._relay_for(None).check()

    def resize_memory(self, memory_bytes: int) -> None:
        """Change the memory budget."""
        self._memory_bytes = memory_bytes
        if self._relay is not None:
            self._relay.resize_memory(memory_bytes)

    def start(self) -> Self:
        """Check that the plan's topics exist, and start; errors as for `Relay.start`."""
        if self._started:
            raise ClientMisuse("a shadow is started once; make a new one")
        self._started = True
        view = self._inspector.inspect()
        self._drains = drains(view.desired.state)
        self._relay = self._relay_for(view.desired).start()
        for thread in (*self._threads, self._thread):
            thread.start()
        return self

    def stop(self, drain_ms: int = DRAIN_MS) -> None:
        """Stop moving, wait for hops under way, and end all threads."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for mover in self._movers:
            mover.handle.stop(drain_ms)
        if self._thread.is_alive():
            self._clock.join(self._thread, drain_ms + STUCK_MS)
        if self._relay is not None:
            self._relay.stop(drain_ms)
        for thread in self._threads:
            if thread.ident is not None:
                self._clock.join(thread, drain_ms + STUCK_MS)

    @property
    def ready(self) -> bool:
        """True if the relay is ready, and no obstacle forbids the desired state.

        A partition may be moved by another shadow.
        """
        relay, view = self._relay, self._inspector.view
        return relay is not None and relay.ready and not self._stopping and not view.refusal and self.alive

    @property
    def alive(self) -> bool:
        """True if no thread is stuck."""
        since_ms = self._clock.monotonic_ms() - STUCK_MS
        relay = self._relay
        return (
            (relay is None or relay.alive)
            and (not self._started or self._heartbeat_ms > since_ms)
            and all(not self._started or mover.handle.heartbeat_ms > since_ms for mover in self._movers)
        )

    def status(self) -> RelayStatus:
        """Return the status of its relay, with all partitions of the plan's topics, intake and journal included."""
        if (relay := self._relay) is None:
            return RelayStatus(relay_id=self.relay_id, ready=self.ready, partitions=(), unreadable=())
        return replace(relay.status(), relay_id=self.relay_id, ready=self.ready)

    def story(self) -> dict[str, Any]:
        """Return the story of its relay, with the status of the shadow."""
        return {**self.status().story(), "shadow": self.shadow_status().story()}

    # The shadow's own interface

    @property
    def view(self) -> View:
        """The last view of the topic: the desired state, the subscriptions, obstacles to moving."""
        return self._inspector.view

    def subscriptions(self, part: str) -> tuple[Subscription, ...]:
        """Return the subscriptions on which originals of a partition of the due topic are acknowledged."""
        return self._inspector.subscriptions(part)

    def shadow_status(self) -> ShadowStatus:
        """Return the counters of the movers."""
        view = self._inspector.view
        return ShadowStatus(
            state=view.desired.state,
            refusal=view.refusal,
            acked_originals=self._acked_before + sum(gate.acked_originals for gate in tuple(self._gates.values())),
            movers=tuple(self._status_of(mover) for mover in self._movers),
        )

    def _status_of(self, mover: Mover) -> MoverStatus:
        counts = mover.counts
        lags = sorted(counts.lags_ms)
        return MoverStatus(
            topic=mover.part, leads=mover.leads,
            alive=mover.handle.heartbeat_ms > self._clock.monotonic_ms() - STUCK_MS, caught_up=counts.caught_up,
            moved=counts.moved, deduplicated=counts.deduplicated, acked_again=counts.acked_again,
            nudges=counts.nudges, failures=counts.failures,
            decisions={decision.value: counts.decisions[decision] for decision in MoveDecision},
            lag_p50_ms=lags[len(lags) // 2] if lags else None,
            lag_p99_ms=lags[len(lags) * 99 // 100] if lags else None, reason=mover.reason,
        )  # fmt: skip

    def _relay_for(self, desired: DesiredState | None) -> Relay:
        from_ms = desired.since_ms + UNHEARD_MS if desired is not None and drains(desired.state) else None
        return self._relay_by(memory_bytes=self._memory_bytes, drains_from_ms=from_ms)

    def _gate(self, source: Source, consumer: ConsumerLike, handle: Handle) -> ConsumerLike:
        part = self._names.part(self.plan.due_topic, source.partition)
        acker = OriginalAcker(self._dialer, part, self._inspector, self._clock)
        gate = AckBeforeRelay(consumer, acker, handle, self._clock, self._rng)
        with self._changed:
            if (before := self._gates.get(source.partition)) is not None:
                self._acked_before += before.acked_originals
            self._gates[source.partition] = gate
        return gate

    def _acked_to(self, partition: int) -> EntryPosition | None:
        gate = self._gates.get(partition)
        return None if gate is None else gate.acked_to

    def _look_soon(self) -> None:
        with self._changed:
            self._looks_soon = True
            self._changed.notify_all()

    def _look_after(self) -> None:
        while True:
            with self._changed:
                wait_until(
                    self._clock,
                    self._changed,
                    lambda: self._stopping or self._looks_soon,
                    self._clock.idle_ms(None, LOOK_MS),
                )
                if self._stopping:
                    return
                self._looks_soon = False
            self._heartbeat_ms = self._clock.monotonic_ms()
            view = self._inspector.inspect()
            noted = {mover.partition: at_ms for mover in self._movers if (at_ms := mover.caught_up_ms) is not None}
            self._heartbeat_ms = self._clock.monotonic_ms()
            self._inspector.note(noted)
            if drains(view.desired.state) is not self._drains:
                self._turn(view.desired)

    def _turn(self, desired: DesiredState) -> None:
        """Send all waiting timers back at once, or let them wait again."""
        before, self._relay = self._relay, None
        if before is not None:
            before.stop(DRAIN_MS)
        relay = self._relay_for(desired)
        try:
            relay.start()
        except Exception as error:  # noqa: BLE001 - it is tried again at the next look
            failure, self._failure = self._failure, str(error) or repr(error)
            if self._failure != failure:
                self._hooks.emit(RelayPlanNotStarted(due_topic=self.plan.due_topic, reason=self._failure))
            relay.stop(0)
        else:
            self._failure = ""
            self._relay, self._drains = relay, drains(desired.state)
