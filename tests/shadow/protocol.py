"""The whole protocol of a shadow on a model of a broker: who crashes, and what is forgotten, is told from outside.

The model broker stores in order, acknowledges by entry, forgets acknowledgements as brokers do (broker-facts:
lost-acknowledgements), and drops a number that is not above the last of its name. The shadow is made of its own pieces
(what is moved, how far the journal is let go, by how much acknowledging lags), put together as the drivers put them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tests.support.plans import shadow_of
from tests.support.stored_entry import native_entry
from timewheel.client.positions import EntryPosition
from timewheel.core.plan import Tiered
from timewheel.core.routing import Hold, Router
from timewheel.shadow.machine.journal import Journal, UnackedOriginals
from timewheel.shadow.machine.move_decider import MoveDecider, MoveDecision, fence_number

__all__ = ["PLANS", "RIGHT", "Rules", "World", "far_delay_ms"]

TICK_MS = 1_000
GUARD_MS = 20_000
OUTAGE_MS = GUARD_MS - 2 * TICK_MS  # so long nobody may work: the promise's bound
FORGETS_MS = 15_000  # a broker that is killed has written what was acknowledged so long ago
HOLD_MS = 3 * FORGETS_MS
UNHEARD_MS = 10_000
PLAN = shadow_of(
    Tiered(window_ms=10_000, tiers_ms=(10_000, 40_000)),
    subscriptions=("billing", "audit"),
    partitions=0,
    guard_ms=GUARD_MS,
    max_delay_ms=1_000_000,
)
PLANS = (PLAN, replace(PLAN, scheme=Tiered(window_ms=2_000, tiers_ms=(2_000, 10_000, 40_000))))
"""The second one moves what the first one leaves."""
SUBSCRIPTIONS = range(len(PLAN.subscriptions))
NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Rules:
    """What a wrong shadow does otherwise."""

    # an original is acknowledged when its copy was read from where it is stored, and not when it is sent
    reads_back: bool = True
    acks_first: bool = True  # a copy moves on when its original is acknowledged
    fences: bool = True  # before a session looks, nothing that an earlier one has sent can be stored any more
    acks_again: bool = True  # a session begins by acknowledging what the journal holds
    holds: bool = True  # the journal is let go when nothing can be forgotten any more, and not when a copy has moved on
    minds_others: bool = True  # on the way out, what another one may have sent on already goes the way of before


RIGHT = Rules()


class Stored(NamedTuple):
    """An entry of the due topic."""

    timer: int
    due_ms: int
    sent_ms: int


class Copy(NamedTuple):
    """An entry of the journal."""

    original: int
    timer: int
    due_ms: int
    entered_ms: int = 0  # when it entered the journal, or what holds it; on its way there: when it was sent
    number: int = 0  # its sequence id


@dataclass(slots=True)
class Session:
    """Of the mover."""

    journal: Journal
    unacked_originals: UnackedOriginals
    read_to: int
    acked_by_any: frozenset[int]
    newest_number: int
    in_flight: list[Copy] = field(default_factory=list)


def far_delay_ms(steps: int) -> int:
    """A delay that is moved, or just not."""
    return MoveDecider(PLAN).far_ms + (steps - 1) * 7_000


class World:
    """Everything there is; each method is something that happens.

    Args:
        rules: Of the shadow.
        bounded: Whether no outage lasts longer than is promised: who is away too long comes back.

    Attributes:
        handled: By subscription and timer: at which places, and how often.
        excused: By subscription, timers of which a reload has made the broker forget so late that nobody could make it
            good before they were due.
    """

    def __init__(self, rules: Rules = RIGHT, *, bounded: bool = True) -> None:
        self._rules = rules
        self._bounded = bounded
        self.now_ms = 1_000_000
        self._move_decider, self._router = MoveDecider(PLAN), Router(PLAN)
        self._native: list[Stored] = []
        self._acked: list[set[int]] = [set() for _ in SUBSCRIPTIONS]
        self._marks: list[tuple[int, tuple[int, ...]]] = [(self.now_ms, (NOWHERE,) * len(SUBSCRIPTIONS))]
        self._journal: list[Copy] = []
        self._exposed_ms: dict[int, int] = {}
        self._last_number = NOWHERE
        self._adrift: list[Copy] = []
        self._journal_at = self._relay_at = NOWHERE
        self._held: list[tuple[int, Copy]] = []
        self._sent_on: set[tuple[int, bool]] = set()
        self._session: Session | None = None
        self._drains_from_ms: int | None = None
        self.sent: list[int] = []
        self.handled: defaultdict[tuple[int, int], Counter[int]] = defaultdict(Counter)
        self.early: list[int] = []
        self.excused: set[tuple[int, int]] = set()

    # What the clients do

    def send(self, delay_ms: int) -> None:
        """A plain producer."""
        self.sent.append(len(self.sent))
        self._native.append(Stored(self.sent[-1], self.now_ms + delay_ms, self.now_ms))

    def tick(self, ticks: int = 1) -> None:
        """Time passes: relays release, and plain consumers handle what is due."""
        for _ in range(ticks):
            self.now_ms += TICK_MS
            self._come_back()
            for release_ms, copy in [one for one in self._held if one[0] <= self.now_ms]:
                self._held.remove((release_ms, copy))
                self._route(copy, release_ms)
            for place, entry in enumerate(self._native):
                for subscription in SUBSCRIPTIONS:
                    if entry.due_ms <= self.now_ms and place not in self._acked[subscription]:
                        self.handled[subscription, entry.timer][place] += 1
                        self._acked[subscription].add(place)
            self._marks.append((self.now_ms, tuple(map(self._mark, SUBSCRIPTIONS))))

    # What the shadow does

    def begin(self) -> None:
        """A session of the mover; the one before ends in order."""
        self.store(len(self._session.in_flight) if self._session else 0)
        fence = fence_number(self._last_number, self.now_ms)
        if self._rules.fences:
            self._last_number = fence
        journal = Journal(HOLD_MS)
        for number, copy in enumerate(self._journal):
            if number > self._journal_at:
                journal.add(_at(copy.original), _at(number))
                if self._rules.acks_again:
                    self._ack(copy)
        by_any = frozenset(set[int]().union(*self._acked))
        read_to = min(map(self._mark, SUBSCRIPTIONS))
        self._session = Session(journal, UnackedOriginals(), read_to, by_any, fence)

    def move(self, count: int) -> None:
        """So many entries are read, and what is far of them is sent to the journal."""
        session = self._session
        if session is None or self._drains_from_ms is not None:
            return
        session.unacked_originals.acked_originals(_at(self._relay_at))
        then_ms = self.now_ms + session.unacked_originals.age_ms(self.now_ms)
        for place in range(session.read_to + 1, min(session.read_to + 1 + count, len(self._native))):
            session.read_to = place
            entry = self._native[place]
            if place in session.acked_by_any:
                continue
            if (
                self._move_decider.decision(native_entry(entry.sent_ms, entry.due_ms, _at(place)), then_ms)
                is MoveDecision.MOVE
            ):
                session.newest_number += 1
                copy = Copy(place, entry.timer, entry.due_ms, self.now_ms, session.newest_number)
                session.in_flight.append(copy)
                if not self._rules.reads_back:
                    self._ack(copy)

    def store(self, count: int) -> None:
        """So many of the copies that are under way are stored, and confirmed."""
        session = self._session
        if session is None:
            return
        for copy in session.in_flight[:count]:
            if self._append(copy):
                session.journal.add(_at(copy.original), _at(len(self._journal) - 1))
                session.unacked_originals.stored(_at(len(self._journal) - 1), self.now_ms)
        del session.in_flight[:count]

    def kill_mover(self, stored: int) -> None:
        """So many of the copies under way are stored all the same, and nobody was told; the others may come yet."""
        if self._session is not None:
            self._adrift += self._session.in_flight
        self._session = None
        self.arrive(stored)

    def arrive(self, count: int) -> None:
        """So many of the copies that sessions have left behind come to the broker, or come to nothing."""
        arrived, self._adrift = self._adrift[:count], self._adrift[count:]
        for copy in arrived:
            if self.now_ms - copy.entered_ms < OUTAGE_MS:
                self._append(copy)

    def change_plan(self, number: int) -> None:
        """Another plan from now on; a relay ends what is under way before it goes by it."""
        plan = PLANS[number % len(PLANS)]
        self._move_decider, self._router = MoveDecider(plan), Router(plan)
        self.kill_mover(0)

    def relay(self, count: int) -> None:
        """So many copies come out of the journal and go on."""
        for copy in self._journal[self._relay_at + 1 : self._relay_at + 1 + count]:
            if self._rules.acks_first:
                self._ack(copy)
            self._send_on(self._relay_at + 1, copy)
            self._relay_at += 1
        if not self._rules.holds:
            self._journal_at = self._relay_at

    def kill_relay(self, acked_originals: int) -> None:
        """Killed when it had acknowledged so many, and sent none of them on."""
        for copy in self._journal[self._relay_at + 1 : self._relay_at + 1 + acked_originals]:
            self._ack(copy)

    def kill_relay_late(self, count: int) -> None:
        """Killed when it had sent on so many, and acknowledged none of them."""
        for number in range(self._relay_at + 1, min(self._relay_at + 1 + count, len(self._journal))):
            self._ack(self._journal[number])
            self._send_on(number, self._journal[number])

    def let_go(self) -> None:
        """The mover looks how far the journal may go."""
        session = self._session
        if session is None:
            return
        copy = session.journal.passed(_at(min(map(self._mark, SUBSCRIPTIONS))), self.now_ms)
        if copy is not None:
            self._journal_at = max(self._journal_at, copy.entry)

    def drain(self) -> None:
        """Nothing is moved any more, and what waits goes back into the topic at once."""
        self.kill_mover(0)
        if self._drains_from_ms is not None:
            return
        self._drains_from_ms = self.now_ms + UNHEARD_MS if self._rules.minds_others else NOWHERE
        held, self._held = self._held, []
        for release_ms, copy in held:
            if release_ms > self._drains_from_ms:
                self._put_back(copy)
            else:
                self._held.append((release_ms, copy))

    def resume(self) -> None:
        """It moves again."""
        self._drains_from_ms = None

    # What the broker does

    def forget(self, bits: int) -> None:
        """The due topic is reloaded after a kill: of what was acknowledged lately some is forgotten."""
        self.kill_mover(0)
        written = [marks for at_ms, marks in self._marks if at_ms <= self.now_ms - FORGETS_MS] or [self._marks[0][1]]
        for subscription, floor in zip(SUBSCRIPTIONS, written[-1], strict=True):
            young = sorted(place for place in self._acked[subscription] if place > floor)
            for number, place in enumerate(young):
                if bits >> (number + subscription) % 3 & 1:
                    self._acked[subscription].discard(place)
                    entry = self._native[place]
                    if entry.due_ms <= self.now_ms + OUTAGE_MS + TICK_MS:
                        self.excused.add((subscription, entry.timer))
        self._expose()

    def forget_names(self) -> None:
        """The broker no longer knows what the mover had sent: hours later, when nothing of it can come any more."""
        self.kill_mover(0)
        self._adrift.clear()
        self._last_number = NOWHERE

    # The end

    def settle(self) -> None:
        """Everybody works until all is handled."""
        self.resume()
        until_ms = max([self.now_ms, *(entry.due_ms for entry in self._native)]) + 10 * TICK_MS
        while self.now_ms < until_ms:
            if self._session is None:
                self.begin()
            self.move(len(self._native))
            self.store(len(self._native))
            self.relay(len(self._journal))
            self.let_go()
            self.tick(5)

    @property
    def lost(self) -> list[tuple[int, int]]:
        """(subscription, timer) of what was never handled."""
        return [(one, timer) for one in SUBSCRIPTIONS for timer in self.sent if not self.handled[one, timer]]

    @property
    def passed_by(self) -> list[int]:
        """Places of what is far from due and pending everywhere, and was not moved."""
        pending = set(range(len(self._native))).difference(*self._acked)
        moved = {copy.original for copy in self._journal}
        return [
            place
            for place in sorted(pending - moved)
            if self._native[place].due_ms - self.now_ms >= self._move_decider.far_ms
        ]

    @property
    def copies(self) -> list[tuple[int, int]]:
        """(subscription, timer) of what was handled from two places, and nobody can be excused."""
        return [key for key, places in self.handled.items() if len(places) > 1 and key not in self.excused]

    # Inside

    def _mark(self, subscription: int) -> int:
        acked, place = self._acked[subscription], NOWHERE
        while place + 1 in acked:
            place += 1
        return place

    def _append(self, copy: Copy) -> bool:
        if copy.number <= self._last_number:
            return False
        self._last_number = copy.number
        self._journal.append(copy._replace(entered_ms=self.now_ms))
        self._expose()
        return True

    def _ack(self, copy: Copy) -> None:
        for acked in self._acked:
            acked.add(copy.original)
        self._exposed_ms.pop(copy.original, None)

    def _expose(self) -> None:
        """Since when an original can be delivered beside its copy."""
        for copy in self._journal:
            if any(copy.original not in acked for acked in self._acked):
                self._exposed_ms.setdefault(copy.original, self.now_ms)

    def _send_on(self, number: int, copy: Copy) -> None:
        """Out of the journal. Whatever was sent on by the same way before, the broker drops."""
        leaves_plan = self._drains_from_ms is not None and copy.entered_ms > self._drains_from_ms
        if (number, leaves_plan) in self._sent_on:
            return
        self._sent_on.add((number, leaves_plan))
        if leaves_plan:
            self._put_back(copy)
        else:
            self._route(copy, copy.entered_ms)

    def _route(self, copy: Copy, at_ms: int) -> None:
        """As the plan says, by the nominal time."""
        route = self._router.route(copy.due_ms, at_ms)
        until_ms = self._drains_from_ms
        if isinstance(route, Hold) and (until_ms is None or route.release_at_ms <= until_ms):
            self._held.append((route.release_at_ms, copy))
        else:
            self._put_back(copy)

    def _put_back(self, copy: Copy) -> None:
        self._native.append(Stored(copy.timer, copy.due_ms, self.now_ms))

    def _come_back(self) -> None:
        """Nobody stays away for longer than is promised."""
        if self._bounded and any(self.now_ms - since_ms >= OUTAGE_MS for since_ms in self._exposed_ms.values()):
            if self._session is None:
                self.begin()
            self.relay(len(self._journal))


def _at(number: int) -> EntryPosition:
    return EntryPosition(1, number)
