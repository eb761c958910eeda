"""A holding topic, its destinations and a relay's machine without any broker: crashes, lost acks, late confirmations.

The destinations deduplicate as the broker does: per producer name they store what is above the highest sequence id
stored so far. Everything is drawn from one seeded generator.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Literal

from tests.support.plans import plan_of
from timewheel.client.positions import Position
from timewheel.core.early_delivery import OutOfOrder
from timewheel.core.envelope import Envelope
from timewheel.core.next_hop import NextHop
from timewheel.core.plan import Tiered
from timewheel.core.routing import Router
from timewheel.core.steps import steps
from timewheel.core.topology import HoldingTopic
from timewheel.relay.driver.source import Source
from timewheel.relay.machine.interface import (
    AskAgain,
    AwaitAll,
    AwaitRoom,
    Decision,
    Examine,
    Forward,
    HoldUntil,
    Receive,
    Stop,
    StoreDeadLetter,
)
from timewheel.relay.machine.order import NO_SEQUENCE_ID, Spot, is_hidden
from timewheel.relay.machine.relay_held import Forwarding

START_MS = 1_767_225_600_000
STAY_MS = 30_000

PLAN = plan_of(Tiered(window_ms=10_000, tiers_ms=(10_000, STAY_MS)), max_delay_ms=600_000, guard_ms=2_000)
ROUTER = Router(PLAN)
SOURCE = steps(PLAN)[0]
assert SOURCE.stay_ms == STAY_MS
SOURCE_PARTITION = Source(holding=HoldingTopic(name=PLAN.due_topic, step=SOURCE, slot=0, by_broker=False), partition=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One message of the source topic."""

    spot: Spot
    envelope: Envelope | None
    is_hidden: bool = False  # the client hands it out to nobody


@dataclass(slots=True)
class Sent:
    """One send that the relay made and has no answer to."""

    ordinal: int
    position: Position
    topic: str
    sequence_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How groups are made; the defaults are right, and each of the others is a control's."""

    numbered_by: Literal["end", "start"] = "end"
    cut_at_mark: bool = True
    client_cuts: bool = False  # the client sends some groups in two parts, and nobody notices
    names_hidden: bool = True  # a dead letter is stored before a relay goes on behind what the client hides
    looks_before_late: bool = True  # a late hop is not made if the named lane has stored the message


@dataclass(slots=True)
class Entry:
    """What goes to the broker at once, under one number."""

    topic: str
    sequence_id: int
    messages: list[Sent]


@dataclass(slots=True)
class World:
    """The topics; ``copies`` counts what is stored, by source position and lane."""

    source: list[Stored]
    marks: dict[str, int] = field(default_factory=dict)
    on_time: Counter[Position] = field(default_factory=Counter)
    late: Counter[Position] = field(default_factory=Counter)
    late_copies: int = 0  # late hops of messages that the named lane had stored
    routed: dict[Position, set[tuple[str, int]]] = field(default_factory=lambda: defaultdict(set))
    acknowledged: int = 0  # how many messages of the source are acknowledged, from its start
    jumps: int = 0
    named: set[Position] = field(default_factory=set)  # what is hidden, and a dead letter names
    trusting: bool = False
    """A control's relay acknowledges what it never saw: its checks are off, its losses are counted."""

    def store(self, entry: Entry) -> None:
        if entry.sequence_id == NO_SEQUENCE_ID:
            self.late.update(sent.position for sent in entry.messages)
            self.late_copies += sum(self.on_time[sent.position] > 0 for sent in entry.messages)
        elif entry.sequence_id > self.marks.get(entry.topic, -1):
            self.marks[entry.topic] = entry.sequence_id
            self.on_time.update(sent.position for sent in entry.messages)

    def forget_acknowledgements(self, rng: random.Random) -> None:
        """What a reload leaves: whole entries, and the last ones may be lost (broker-facts: lost-acknowledgements)."""
        if self.acknowledged == len(self.source):
            return
        count = max(self.acknowledged - rng.choice([0, 0, 10, 50]), 0)
        while count and self.source[count].spot.position.batch_index > 0:
            count -= 1
        self.acknowledged = count

    def lost(self) -> int:
        seen = [stored.spot.position for stored in self.source if not stored.is_hidden]
        return sum(not self.on_time[position] and not self.late[position] for position in seen)

    def behind(self, spot: Spot) -> Position:
        """What a reader gets behind a message."""
        at = next(number for number, stored in enumerate(self.source) if stored.spot == spot)
        return next(stored.spot.position for stored in self.source[at + 1 :] if not stored.is_hidden)

    def name(self, after: Position, before: Position) -> None:
        self.named |= {s.spot.position for s in self.source if s.is_hidden and after < s.spot.position < before}

    def unnamed(self) -> list[Position]:
        """What is hidden, and no dead letter names."""
        hidden = [stored.spot.position for stored in self.source if stored.is_hidden]
        return [position for position in hidden if position not in self.named]

    def extra_on_time(self) -> int:
        """Copies beyond the first of messages that never went by the late lane."""
        return sum(count - 1 for position, count in self.on_time.items() if count > 1 and not self.late[position])


def source_topic(rng: random.Random, messages: int) -> list[Stored]:
    """Timers in batches and alone, over two ledgers, with a foreign message now and then, and one or some entries that
    the client hides; not at the end of a ledger, where nobody can miss them.
    """
    found: list[Stored] = []
    ledger, entry, entered_ms = 7, 0, START_MS
    while len(found) < messages:
        last = messages // 5 - 1
        while entry % last and len(found) < messages - 10 and rng.random() < 0.05:
            found.append(Stored(spot=Spot(Position(ledger, entry, -1), 0), envelope=None, is_hidden=True))
            entry += 1
        size = rng.choice([0, 0, 1, 3, 5])
        for index in range(size) if size else [-1]:
            entered_ms += rng.randrange(40)
            due_ms = entered_ms + STAY_MS + 2_000 + rng.randrange(60_000)
            envelope = None if rng.random() < 0.02 else Envelope(f"t{len(found)}", due_ms, entered_ms)
            found.append(Stored(spot=Spot(Position(ledger, entry, index), size), envelope=envelope))
        entry += 1
        if ledger == 7 and entry == messages // 5:
            ledger, entry = 9, 0
    return found


class _Session:
    """One subscription of one relay: a machine, what it has under way, and how far the broker has delivered.

    A trusting control takes the first message that it is given for the first that is unacknowledged.
    """

    def __init__(
        self, world: World, known: Spot | None, rng: random.Random, now_ms: int, next_hop: NextHop, rules: Rules
    ) -> None:
        self.world = world
        self.rules = rules
        self.rng = rng
        self.now_ms = now_ms
        self.cursor = world.acknowledged
        left = len(world.source) - world.acknowledged
        if rng.random() < 0.4 and left > 2:
            # Another consumer has had the first ones in flight, and the broker goes back to them later or never.
            self.cursor += rng.randrange(1, left)
        if world.trusting and known is None and self.cursor:
            known = world.source[self.cursor - 1].spot
        self.known = known
        limit = rng.choice([1, 5, 50])
        linger_ms = rng.choice([0, 5, 200])
        self.forwarding = Forwarding(next_hop, OutOfOrder(PLAN), known=known, window_limit=limit, linger_ms=linger_ms)
        self.pending: list[Entry] = []
        self.group_limit = rng.choice([1, 3, 20])
        self.groups: dict[str, list[Sent]] = {}
        self.marks: dict[str, int] = {}
        self.confirmed: set[Position] = set()
        self.command: Decision = self.forwarding.tick(now_ms)

    def run(self) -> None:
        """Until all is acknowledged, a kill, or a hole."""
        while self.world.acknowledged < len(self.world.source) and self.rng.random() >= 0.01:
            if self.pending and self.rng.random() < 0.5:
                self._confirm_one()
            if self.rng.random() < 0.3:
                self._acknowledge()
            if self.forwarding.gathering.is_due(self.now_ms) or isinstance(self.command, AwaitAll | AwaitRoom):
                self._send_groups()
            if isinstance(self.command, Stop):
                break
            self.command = self._carry_out(self.command)
            self.now_ms += self.rng.randrange(3)
        self._crash()

    def _carry_out(self, command: Decision) -> Decision:
        forwarding, rng = self.forwarding, self.rng
        match command:
            case Receive():
                return self._receive()
            case AskAgain():
                if rng.random() < 0.7:  # else it goes unheard
                    self.cursor = self.world.acknowledged
                return forwarding.tick(self.now_ms)
            case HoldUntil(at_ms=at_ms):
                self.now_ms += max(min(at_ms - self.now_ms, rng.randrange(1, 500)), 1)
                return forwarding.tick(self.now_ms)
            case Examine(after=after, before=before):
                return self._look(after, before)
            case AwaitAll() | AwaitRoom():
                assert self.pending, "waits for confirmations while nothing is under way"
                return command
            case Forward():
                return self._forward(command)
            case StoreDeadLetter(ordinal=ordinal):
                return self._send(ordinal, "dead", NO_SEQUENCE_ID)
            case _:
                raise AssertionError(command)

    def _look(self, after: Spot, before: Position) -> Decision:
        """As the shell does it (`driver.session`)."""
        found = before if self.world.trusting else self.world.behind(after)
        if is_hidden(after, before, found, found, is_gone=False) and self.rules.names_hidden:
            self.world.name(after.position, found)
            if self.rng.random() < 0.1:
                return Stop("killed with the dead letter stored", after, before)
        self.forwarding.found(found)
        return self.forwarding.tick(self.now_ms)

    def _receive(self) -> Decision:
        while self.cursor < len(self.world.source) and self.world.source[self.cursor].is_hidden:
            self.cursor += 1
        if self.cursor == len(self.world.source):
            self.now_ms += 20
            return self.forwarding.ask_again(self.now_ms) if self.rng.random() < 0.2 else Receive()
        stored = self.world.source[self.cursor]
        self.cursor += 1
        position, size = stored.spot
        return self.forwarding.received(position, size, stored.envelope, position, self.now_ms)

    def _send(self, ordinal: int, topic: str, sequence_id: int) -> Decision:
        position = self.world.source[self.cursor - 1].spot.position
        named = sequence_id != NO_SEQUENCE_ID
        assert all((entry.sequence_id != NO_SEQUENCE_ID) == named for entry in self.pending), "two lanes at once"
        assert named or not self.groups, "another lane while groups wait"
        if named:
            self.world.routed[position].add((topic, sequence_id))
        self.pending.append(Entry(topic, sequence_id, [Sent(ordinal, position, topic, sequence_id)]))
        return self.forwarding.tick(self.now_ms)

    def _forward(self, command: Forward) -> Decision:
        ordinal, topic, sequence_id = command.ordinal, command.topic, command.sequence_id
        nominal, position = command.nominal, self.world.source[self.cursor - 1].spot.position
        if nominal is not None and self.rules.looks_before_late:
            mark = self.marks.setdefault(nominal.topic, self.world.marks.get(nominal.topic, -1))
            if nominal.sequence_id <= mark:
                self.confirmed.add(position)
                self.forwarding.confirmed(ordinal)
                return self.forwarding.tick(self.now_ms)
        if not command.in_group:
            return self._send(ordinal, topic, sequence_id)
        # As the shell does it (`HopBatches`).
        self.world.routed[position].add((topic, sequence_id))
        mark = self.marks.setdefault(topic, self.world.marks.get(topic, -1))
        group = self.groups.get(topic, [])
        straddles = group and group[-1].sequence_id <= mark < sequence_id
        if (straddles and self.rules.cut_at_mark) or len(group) >= self.group_limit:
            self._send_group(topic)
        self.groups.setdefault(topic, []).append(Sent(ordinal, position, topic, sequence_id))
        return self.forwarding.tick(self.now_ms)

    def _send_groups(self) -> None:
        for topic in list(self.groups):
            self._send_group(topic)
        self.forwarding.gathering.sent()

    def _send_group(self, topic: str) -> None:
        group = self.groups.pop(topic)
        number = group[-1 if self.rules.numbered_by == "end" else 0].sequence_id
        at = self.rng.randrange(len(group)) if self.rules.client_cuts else 0
        self.pending.extend(Entry(topic, number, part) for part in (group[:at], group[at:]) if part)

    def _confirm_one(self) -> None:
        """Each producer confirms in its order; who is first among them is chance."""
        first: dict[str, Entry] = {}
        for entry in self.pending:
            first.setdefault(entry.topic, entry)
        entry = self.rng.choice(list(first.values()))
        self.pending.remove(entry)
        self.world.store(entry)
        for sent in entry.messages:
            self.confirmed.add(sent.position)
            self.forwarding.confirmed(sent.ordinal)
        if isinstance(self.command, AwaitAll | AwaitRoom):
            self.command = self.forwarding.tick(self.now_ms)

    def _acknowledge(self) -> None:
        world = self.world
        at_end = self.cursor == len(world.source)
        receipt = self.forwarding.acknowledge(world.source[-1].spot.position if at_end else None)
        if receipt is None:
            return
        count = next(i for i, stored in enumerate(world.source) if stored.spot.position == receipt) + 1
        if not world.trusting:
            for stored in world.source[world.acknowledged : count]:
                position = stored.spot.position
                is_known = self.known is not None and position <= self.known.position
                done = position in world.named or position in self.confirmed or is_known
                assert done, f"acknowledged up to {receipt}, but {position} is not confirmed"
        world.acknowledged = max(world.acknowledged, count)

    def _crash(self) -> None:
        """What had no answer may have been stored, in each producer's order; acknowledgements may be forgotten."""
        for topic in sorted({entry.topic for entry in self.pending}):
            of_one = [entry for entry in self.pending if entry.topic == topic]
            for entry in of_one[: self.rng.randrange(len(of_one) + 1)]:
                self.world.store(entry)
        self.world.forget_acknowledgements(self.rng)


def play(
    seed: int,
    *,
    next_hop: NextHop | None = None,
    trusting: bool = False,
    messages: int = 120,
    rules: Rules | None = None,
) -> World:
    """Relay a whole topic through crashes, reloads and outages, and check at every step what must always hold."""
    rng = random.Random(seed)
    world = World(source_topic(rng, messages), trusting=trusting)
    now_ms = START_MS + STAY_MS - 1_000
    known: Spot | None = None
    while world.acknowledged < len(world.source):
        session = _Session(world, known, rng, now_ms, next_hop or NextHop(ROUTER, SOURCE), rules or Rules())
        session.run()
        holed = isinstance(session.command, Stop)
        world.jumps += holed
        # The same process again, which has looked at the hole, or another one.
        known = session.forwarding.confirmed_to if rng.random() < 0.5 and not holed else None
        now_ms = session.now_ms + rng.choice([0, 200, 5_000, 40_000])
    return world
