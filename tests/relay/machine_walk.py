"""Walks through a relay's machine by chance: whatever it tells the shell to do, something comes of it.

Nothing here is like a broker. It is there to meet every state with every event that may come in it, and to look after
each step whether what must always hold does. `relay_world` is about what becomes of messages.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from tests.relay.relay_world import PLAN, START_MS, STAY_MS
from tests.support.plans import plan_of
from timewheel.client.positions import Position
from timewheel.core.early_delivery import OutOfOrder
from timewheel.core.envelope import Envelope
from timewheel.core.next_hop import NextHop
from timewheel.core.plan import Plan, Ring, Tiered, Wheel
from timewheel.core.routing import Router
from timewheel.core.steps import steps
from timewheel.relay.machine.broker_held import BrokerHeld
from timewheel.relay.machine.interface import (
    NEVER,
    PROBED,
    RECEIVE,
    Acknowledge,
    AskLast,
    Command,
    Counts,
    Examine,
    Forward,
    GiveBack,
    Leave,
    Machine,
    PutProbe,
    Receive,
    Refile,
    SendGroups,
    State,
    Stop,
    StoreDeadLetter,
    Wait,
)
from timewheel.relay.machine.order import Spot
from timewheel.relay.machine.readings import PROBE, Reading, Unreadable
from timewheel.relay.machine.relay_held import Forwarding, RelayHeld
from timewheel.relay.machine.visits import Visit

__all__ = ["Met", "walk_broker_held", "walk_slot", "walk_tier"]

WINDOW = 8
LEASE_IDLE_MS = 1_000
SLOT_MS = 10_000
WHEEL = plan_of(
    Wheel(rings=(Ring(slot_ms=SLOT_MS, slots=8),)), due_topic=PLAN.due_topic, max_delay_ms=60_000, guard_ms=2_000
)
TURN_MS = 8 * SLOT_MS
RELEASE_MS = START_MS // TURN_MS * TURN_MS + TURN_MS - 2_000  # of slot 0, a head start of 2 s before it starts
BROKER_HELD_PLAN = plan_of(
    Tiered(window_ms=10_000, tiers_ms=(10_000, STAY_MS), hold="broker"),
    due_topic=PLAN.due_topic,
    max_delay_ms=600_000,
    guard_ms=2_000,
)


class Met(NamedTuple):
    """One step: in a state an event came, which led to a state and a command."""

    state: State
    event: str
    then: State
    command: type


class Walk:
    """One subscription, to its end or for some steps; before each step comes what the keeper of a ring does."""

    def __init__(
        self,
        machine: Machine,
        rng: random.Random,
        now_ms: int,
        envelope: Callable[[int], Envelope],
        visited: Callable[[int], None] = lambda _now_ms: None,
    ) -> None:
        self.machine = machine
        self.rng = rng
        self.now_ms = now_ms
        self.met: list[Met] = []
        self._envelope = envelope
        self._visited = visited
        self._is_calm = rng.random() < 0.5
        self._position = Position(7, 3, -1)
        self._last_sent = self._position
        self._sent: dict[int, Position] = {}
        self._gathered: dict[int, Position] = {}
        self._acknowledged: set[Position] = set()
        self._confirmed: set[Position] = set()
        self._refused: set[Position] = set()
        self._stopping = False

    def run(self, count: int) -> None:
        """Make so many steps, or fewer."""
        command = self._met("done", self.machine.done(self.now_ms), State.RECEIVING)
        for _ in range(count):
            self._visited(self.now_ms)
            if isinstance(command, Receive) and self.rng.random() < 0.4:
                self._confirm()
            if isinstance(command, Leave | Stop):
                self._check_end(command)
                return
            if not self._stopping and (self.rng.random() < 0.02 or self._has_failed()):
                self._stopping = True
                undone = getattr(command, "ordinal", None)
                state = self.machine.state
                command = self._met("stopping", self.machine.stopping(self.rng.choice([0, 500]), command), state)
                assert undone is None or undone not in self._sent | self._gathered
                continue
            command = self._carry_out(command)
            self.now_ms += self.rng.choice([0, 0, 0, 1, 5])

    def _met(self, event: str, command: Command, state: State) -> Command:
        self.met.append(Met(state, event, self.machine.state, type(command)))
        if self._stopping:
            assert not isinstance(command, Receive | Forward | StoreDeadLetter | Refile), (
                f"{command} after the wish to stop"
            )
        return command

    def _carry_out(self, command: Command) -> Command:
        machine, state = self.machine, self.machine.state
        match command:
            case Receive(wait_ms=wait_ms):
                return self._receive(wait_ms)
            case Forward():
                return self._forward(command)
            case AskLast():
                if self.rng.random() < 0.05:
                    return self._met("no last position", machine.no_last_position(), state)
                return self._met("last position", machine.last_position(self._last_position(), self.now_ms), state)
            case Examine(before=before):
                found = before if self.rng.random() < 0.8 else before._replace(entry=before.entry + 9)
                return self._met("found", machine.found(found, self.now_ms), state)
            case Wait():
                self._wait(command)
            case _:
                self._do(command)
        if self.rng.random() < 0.7:
            self._confirm()
        if self._stopping:
            return self._met("stopping", machine.stopping(self.rng.choice([0, 500])), state)
        return self._met("done", machine.done(self.now_ms), state)

    def _do(self, command: Command) -> None:
        match command:
            case SendGroups():
                self._send_groups()
            case StoreDeadLetter(ordinal=ordinal) | Refile(ordinal=ordinal):
                assert not self._gathered, "another lane while groups wait for their hops"
                self._sent[ordinal] = self._last_sent
            case Acknowledge(receipts=receipts):
                self._acknowledge(receipts)
            case GiveBack():
                assert not self.machine.in_flight, "closes producers with hops under way"
                assert not self._gathered, "closes producers with hops in groups"
                assert PROBED not in self._sent, "closes a producer with a probe under way"
            case PutProbe():
                self._sent[PROBED] = Position(0, 0, 0)

    def _forward(self, command: Forward) -> Command:
        machine, state = self.machine, self.machine.state
        if command.named and self.rng.random() < 0.05:
            return self._met("lease held", machine.lease_held(), state)
        if self.rng.random() < 0.02:
            return self._met("refused", machine.refused("no topic takes it", self.now_ms), state)
        if state is State.WAITING_FOR_LEASE:
            machine.lease_taken()
            state = machine.state
            self.met.append(Met(State.WAITING_FOR_LEASE, "lease taken", state, Receive))
        where = self._gathered if command.in_group else self._sent
        where[command.ordinal] = self._last_sent
        if self.rng.random() < 0.1:
            self._send_groups()  # one is full: the shell needs no command for that
        return self._met("done", machine.done(self.now_ms), state) if command.asks else RECEIVE

    def _send_groups(self) -> None:
        self._sent |= self._gathered
        self._gathered.clear()

    def _wait(self, command: Wait) -> None:
        if command.wake_at != NEVER and self.machine.state not in (State.HOLDING, State.DRAINING):
            assert not self._gathered, "waits for what was never sent"
        assert command.wake_at in (NEVER, 1) or command.wake_at <= len(self._sent), "waits for more than is on its way"
        if len(self._sent) < command.wake_at or self.rng.random() < 0.3:
            self.now_ms += min(max(command.timeout_ms, 0), 2_000)

    def _last_position(self) -> Position:
        if not self._acknowledged and self.rng.random() < 0.1:
            return Position(-1, -1, -1)
        return self.rng.choice([self._position, self._position._replace(entry=self._position.entry + 2)])

    def _receive(self, wait_ms: int) -> Command:
        state, rng = self.machine.state, self.rng
        if rng.random() < (0.7 if self._is_calm else 0.2):
            self.now_ms += wait_ms
            return self._met("nothing came", self.machine.nothing_came(self.now_ms), state)
        reading: Reading = rng.choices(
            [self._envelope(self.now_ms), None, PROBE, Unreadable("encrypted")], [0.9, 0.05, 0.05, 0.002]
        )[0]
        before = self._position
        self._position = self._next_position(before)
        command = self.machine.received(self._position, 0, reading, self._position, self.now_ms)
        self._last_sent = self._position
        self._position = max(before, self._position)
        return self._met("received", command, state)

    def _next_position(self, position: Position) -> Position:
        ledger, entry, index = position
        draw = self.rng.random()
        if draw < 0.002:
            return Position(ledger, entry + 2, index)  # a hole
        if draw < 0.02:
            return Position(ledger + 1, 0, index)
        if draw < 0.05:
            return Position(ledger, max(entry - 1, 0), index)  # received again
        return Position(ledger, entry + 1, index)

    def _confirm(self) -> None:
        ordinals = self.rng.sample(sorted(self._sent), self.rng.randrange(len(self._sent) + 1))
        self._confirmed |= {self._sent.pop(ordinal) for ordinal in ordinals if ordinal != PROBED}
        if PROBED in ordinals:
            del self._sent[PROBED]
        state = self.machine.state
        acknowledgement = self.machine.confirmed(ordinals)
        assert self.machine.state is state, "confirmations come at any time, and change no state"
        if acknowledgement is not None:
            self._acknowledge(acknowledgement.receipts)

    def _has_failed(self) -> bool:
        """Whether something that was published is refused for good: the shell ends the subscription."""
        ordinals = [ordinal for ordinal in self._sent if ordinal != PROBED]
        if not ordinals or self.rng.random() >= 0.005:
            return False
        ordinal = self.rng.choice(ordinals)
        assert self.machine.failed(ordinal) == self._sent[ordinal]
        self._refused.add(self._sent.pop(ordinal))
        return True

    def _acknowledge(self, receipts: tuple[Position, ...]) -> None:
        for receipt in receipts:
            if self.machine.cumulative:
                under_way = [*self._sent.values(), *self._gathered.values()]
                on_its_way = [position for position in under_way if position.ledger and position <= receipt]
                assert not on_its_way, f"{receipt} acknowledged over {on_its_way}"
                assert not any(refused <= receipt for refused in self._refused), f"{receipt} over what is not stored"
            self._acknowledged.add(receipt)

    def _check_end(self, command: Command) -> None:
        if isinstance(command, Leave):
            assert self.machine.state is State.LEFT
            if not self._stopping:
                assert not self.machine.in_flight
                assert (self.machine.left is not None) != self.machine.begins_anew, "left without a visit"
            if self.machine.cumulative:
                self._check_acknowledged()
        else:
            assert self.machine.state is State.STOPPED
            assert not self._sent, f"given up at a hole while it could be answered: {self._sent}"

    def _check_acknowledged(self) -> None:
        """All up to the confirmed end, but for the newest, which may be kept back."""
        end, newest = self.machine.confirmed_to, max(self._acknowledged, default=None)
        unacknowledged = sorted(
            position
            for position in self._confirmed
            if end is not None and position <= end.position and (newest is None or position > newest)
        )
        assert len(unacknowledged) <= 1, f"confirmed and never acknowledged: {unacknowledged}"


def _is_cancelled(envelope: Envelope) -> bool:
    return envelope.timer_id == "dead"


def _name(rng: random.Random) -> str:
    return "dead" if rng.random() < 0.1 else "t"


def _forwarding(plan: Plan, rng: random.Random) -> Forwarding:
    next_hop = NextHop(Router(plan), steps(plan)[0], _is_cancelled)
    known = Spot(Position(7, 3, -1), 0) if rng.random() < 0.7 else None
    linger_ms = rng.choice([0, 10, 1_000])
    return Forwarding(next_hop, OutOfOrder(plan), known=known, window_limit=WINDOW, linger_ms=linger_ms)


def _relay_held(plan: Plan, rng: random.Random, visit: Callable[[], Visit | None]) -> RelayHeld:
    forwarding = _forwarding(plan, rng)
    return RelayHeld(forwarding, visit=visit, lease_idle_ms=LEASE_IDLE_MS, rng=rng)


def walk_tier(seed: int, count: int) -> list[Met]:
    rng = random.Random(seed)

    def timer(now_ms: int) -> Envelope:
        entered_ms = now_ms - STAY_MS + rng.choice([-60_000, -5_000, -100, 0, 50, 3_000])
        return Envelope(_name(rng), entered_ms + STAY_MS + rng.choice([2_000, 5_000, 15_000, 50_000]), entered_ms)

    walk = Walk(_relay_held(PLAN, rng, lambda: None), rng, START_MS, timer)
    walk.run(count)
    return walk.met


def walk_slot(seed: int, count: int) -> list[Met]:
    """Through that of a ring's slot, visited before its release until a slot later, and prolonged now and then."""
    rng = random.Random(seed)
    visit = Visit(RELEASE_MS + SLOT_MS, (RELEASE_MS, RELEASE_MS + SLOT_MS))

    def visited(now_ms: int) -> None:
        nonlocal visit
        if now_ms > visit.leave_ms and rng.random() < 0.01:
            visit = visit.prolonged(Visit(now_ms + SLOT_MS, (now_ms, now_ms + SLOT_MS)))

    def timer(now_ms: int) -> Envelope:
        turn = rng.choice([0, 0, 0, 1])
        return Envelope(_name(rng), RELEASE_MS + 5_000 + turn * TURN_MS, now_ms - 20_000)

    walk = Walk(_relay_held(WHEEL, rng, lambda: visit), rng, RELEASE_MS - 3_000, timer, visited)
    walk.run(count)
    return walk.met


def walk_broker_held(seed: int, count: int) -> list[Met]:
    rng = random.Random(seed)
    next_hop = NextHop(Router(BROKER_HELD_PLAN), steps(BROKER_HELD_PLAN)[0], _is_cancelled)
    machine = BrokerHeld(next_hop, OutOfOrder(BROKER_HELD_PLAN), window_limit=WINDOW, counts=Counts(), rng=rng)

    def timer(now_ms: int) -> Envelope:
        return Envelope(
            _name(rng), now_ms + rng.choice([2_000, 15_000]), now_ms - STAY_MS, hops=rng.choice([0] * 9 + [200])
        )

    walk = Walk(machine, rng, START_MS, timer)
    walk.run(count)
    return walk.met
