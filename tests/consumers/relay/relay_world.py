"""A holding topic, its destinations and a relay's machine without any broker: crashes, lost acks, late confirmations.

The destinations deduplicate as the broker does: per producer name they store what is above the highest sequence id
stored so far. Everything is drawn from one seeded generator.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from timewheel.consumers.relay.contiguity import NO_SEQUENCE_ID, Spot
from timewheel.consumers.relay.machine import (
    AwaitAll,
    AwaitRoom,
    DeadLetter,
    Forward,
    HoldUntil,
    Machine,
    Receive,
)
from timewheel.core.envelope import Envelope
from timewheel.core.plan import Plan, Tiered
from timewheel.core.routing import Router
from timewheel.core.steps import steps
from timewheel.wire.positions import Position

START_MS = 1_767_225_600_000
STAY_MS = 30_000

PLAN = Plan(
    due_topic="persistent://acme/crm/reminders",
    subscriptions=("billing",),
    scheme=Tiered(window_ms=10_000, tiers_ms=(10_000, STAY_MS)),
    max_delay_ms=600_000,
    guard_ms=2_000,
)
SOURCE = steps(PLAN)[0]
assert SOURCE.stay_ms == STAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One message of the source topic."""

    spot: Spot
    envelope: Envelope | None


@dataclass(slots=True)
class Sent:
    """One send that the relay made and has no answer to."""

    ordinal: int
    position: Position
    topic: str
    sequence_id: int


@dataclass(slots=True)
class World:
    """The topics; ``copies`` counts what is stored, by source position and lane."""

    source: list[Stored]
    marks: dict[str, int] = field(default_factory=dict)
    on_time: Counter[Position] = field(default_factory=Counter)
    late: Counter[Position] = field(default_factory=Counter)
    routed: dict[Position, set[tuple[str, int]]] = field(default_factory=lambda: defaultdict(set))
    acknowledged: int = 0
    """How many messages of the source are acknowledged, from its start."""

    def store(self, sent: Sent) -> None:
        if sent.sequence_id == NO_SEQUENCE_ID:
            self.late[sent.position] += 1
        elif sent.sequence_id > self.marks.get(sent.topic, -1):
            self.marks[sent.topic] = sent.sequence_id
            self.on_time[sent.position] += 1

    def lost(self) -> int:
        return sum(not self.on_time[s.spot.position] and not self.late[s.spot.position] for s in self.source)

    def extra_on_time(self) -> int:
        """Copies beyond the first of messages that never went by the late lane."""
        return sum(count - 1 for position, count in self.on_time.items() if count > 1 and not self.late[position])


def source_topic(rng: random.Random, messages: int) -> list[Stored]:
    """Timers in batches and alone, over two ledgers, with a foreign message now and then."""
    found: list[Stored] = []
    ledger, entry, entered_ms = 7, 0, START_MS
    while len(found) < messages:
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


def play(seed: int, *, routing_time: Callable[[int, int], int] | None = None, messages: int = 120) -> World:
    """Relay a whole topic through crashes, reloads and outages, and check at every step what must always hold."""
    rng = random.Random(seed)
    world = World(source_topic(rng, messages))
    router = Router(PLAN)
    now_ms = START_MS + STAY_MS - 1_000
    known: Spot | None = None
    while world.acknowledged < len(world.source):
        machine = Machine(router, SOURCE, known=known, window_limit=rng.choice([1, 5, 50]), routing_time=routing_time)
        cursor = world.acknowledged
        pending: list[Sent] = []
        confirmed: set[Position] = set()
        command = machine.tick(now_ms)
        while world.acknowledged < len(world.source):
            if rng.random() < 0.01:
                break  # killed, or a send failed
            if pending and rng.random() < 0.5:
                # Each producer confirms in its order; who is first among them is chance.
                sent = next(p for p in rng.sample(pending, len(pending)) if _first_of_its_producer(p, pending))
                pending.remove(sent)
                world.store(sent)
                confirmed.add(sent.position)
                machine.confirmed(sent.ordinal)
                if isinstance(command, AwaitAll | AwaitRoom):
                    command = machine.tick(now_ms)
            if rng.random() < 0.3:
                _acknowledge(world, machine, known, confirmed, at_end=cursor == len(world.source))
            match command:
                case Receive():
                    if cursor < len(world.source):
                        stored = world.source[cursor]
                        position, size = stored.spot
                        command = machine.received(position, size, stored.envelope, position, now_ms)
                        cursor += 1
                case HoldUntil(at_ms=at_ms):
                    now_ms += max(min(at_ms - now_ms, rng.randrange(1, 500)), 1)
                    command = machine.tick(now_ms)
                case AwaitAll() | AwaitRoom():
                    assert pending, "waits for confirmations while nothing is under way"
                case Forward() | DeadLetter():
                    position = world.source[cursor - 1].spot.position
                    if isinstance(command, Forward):
                        sent = Sent(command.ordinal, position, command.topic, command.sequence_id)
                        if command.sequence_id != NO_SEQUENCE_ID:
                            world.routed[position].add((command.topic, command.sequence_id))
                    else:
                        sent = Sent(command.ordinal, position, "dead", NO_SEQUENCE_ID)
                    named = sent.sequence_id != NO_SEQUENCE_ID
                    assert all((p.sequence_id != NO_SEQUENCE_ID) == named for p in pending), (
                        "two lanes under way at once"
                    )
                    pending.append(sent)
                    command = machine.tick(now_ms)
                case _:
                    raise AssertionError(command)
            now_ms += rng.randrange(3)
        # What had no answer may have been stored, in each producer's order.
        for topic in {sent.topic for sent in pending}:
            of_one = [sent for sent in pending if sent.topic == topic]
            for sent in of_one[: rng.randrange(len(of_one) + 1)]:
                world.store(sent)
        known = machine.confirmed_to if rng.random() < 0.5 else None  # the same process again, or another one
        world.acknowledged = _rounded_down(world, rng)
        now_ms += rng.choice([0, 200, 5_000, 40_000])
    return world


def _first_of_its_producer(sent: Sent, pending: list[Sent]) -> bool:
    return next(p for p in pending if p.topic == sent.topic) is sent


def _acknowledge(world: World, machine: Machine, known: Spot | None, confirmed: set[Position], *, at_end: bool) -> None:
    last = world.source[-1].spot.position if at_end else None
    receipt = machine.acknowledge(last)
    if receipt is None:
        return
    count = next(i for i, stored in enumerate(world.source) if stored.spot.position == receipt) + 1
    for stored in world.source[world.acknowledged : count]:
        position = stored.spot.position
        done = position in confirmed or (known is not None and position <= known.position)
        assert done, f"acknowledged up to {receipt}, but {position} is not confirmed"
    world.acknowledged = max(world.acknowledged, count)


def _rounded_down(world: World, rng: random.Random) -> int:
    """What of the acknowledgements a reload leaves: whole entries, and the last ones may be lost (rules.md 7)."""
    if world.acknowledged == len(world.source):
        return world.acknowledged
    count = max(world.acknowledged - rng.choice([0, 0, 10, 50]), 0)
    while count and world.source[count].spot.position.batch_index > 0:
        count -= 1
    return count
