"""A partition through its subscriptions, and a subscription where the broker cannot easily be made to play its part."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, Literal

import pulsar
import pytest

from tests.relay.relay_world import PLAN, ROUTER, SOURCE_PARTITION, START_MS
from tests.support.client_messages import client_message
from tests.support.manual_clock import LeapingClock, ManualClock
from timewheel.broker.protocol.wire import number_field
from timewheel.client.hooks import ConnectionWatch
from timewheel.client.positions import Position
from timewheel.core.early_delivery import OutOfOrder
from timewheel.core.envelope import Envelope
from timewheel.core.grouping import LARGEST_BATCH
from timewheel.core.next_hop import NextHop
from timewheel.core.steps import steps
from timewheel.relay.driver import partition as partitions
from timewheel.relay.driver import session as sessions
from timewheel.relay.driver.dead_letter_writer import Verdicts
from timewheel.relay.driver.hop_producers import LeaseHeld, Sent
from timewheel.relay.driver.session import Prefetch, Reader
from timewheel.relay.driver.source import Handle, HoleFound, Memory, PartitionState, SessionFailed
from timewheel.relay.machine.broker_held import BrokerHeld
from timewheel.relay.machine.interface import (
    RECEIVE,
    Acknowledge,
    Counts,
    Examine,
    Forward,
    State,
    StoreDeadLetter,
    Wait,
)
from timewheel.relay.machine.order import Sign, Spot
from timewheel.relay.machine.relay_held import Forwarding
from timewheel.relay.machine.visits import Visit

SEND_TIMEOUT_MS = 30_000
ENVELOPE = Envelope("t", START_MS + 60_000, START_MS)


class Hops:
    """Producers whose names somebody else has at first."""

    def __init__(self) -> None:
        self.held = True
        self.sent: list[dict[str, str]] = []

    def to(self, *_: Any, **__: Any) -> Any:
        if self.held:
            raise LeaseHeld("tw|name")
        return self

    def send_async(self, _content: Any, _callback: Any, properties: dict[str, str], **_: Any) -> None:
        self.sent.append(properties)

    def flush(self) -> None:
        pass

    def for_groups(self, *names: Any) -> tuple[Any, int]:
        return self.to(*names), -1

    def is_new(self, _producer: Any, _number: int) -> bool:
        return True

    def connections(self) -> list[tuple[str, Any]]:
        return []


def session_of(monkeypatch: pytest.MonkeyPatch, hops: Hops) -> sessions.Session:
    monkeypatch.setattr(sessions, "HopProducers", SimpleNamespace(of=lambda *_: hops))
    machine: Any = SimpleNamespace(
        state=State.RECEIVING,
        lease_held=lambda: Wait(50, 1),
        lease_taken=lambda: None,
        in_flight=0,
        head_release_ms=None,
    )
    tools: Any = SimpleNamespace(
        router=ROUTER,
        clock=ManualClock(),
        hooks=SimpleNamespace(emit=lambda _event: None),
        relay_id="r",
        client=None,
        send_timeout_ms=SEND_TIMEOUT_MS,
    )
    watch = ConnectionWatch(SOURCE_PARTITION.name, tools.clock, tools.hooks)
    session = sessions.Session(
        SOURCE_PARTITION, tools, Handle(tools.clock), Verdicts(), watch, machine, Prefetch(Memory(), by_broker=False)
    )
    session._consumer = SimpleNamespace(is_connected=lambda: True)
    return session


@pytest.mark.parametrize("in_group", [False, True])
def test_a_message_that_waits_for_a_lease_keeps_the_properties_it_came_with(
    monkeypatch: pytest.MonkeyPatch, *, in_group: bool
) -> None:
    """It may yet go another way, to the dead letters or back to the tail of its slot, and there it goes as it came."""
    hops = Hops()
    session = session_of(monkeypatch, hops)
    came = {**ENVELOPE.properties(), "tenant": "acme"}
    session._message, session._properties = client_message(), dict(came)
    command = Forward(0, PLAN.due_topic, 0, 7, ENVELOPE.hopped(START_MS + 30_000), in_group)

    assert session._forward(command) == Wait(50, 1)
    assert session._properties == came

    hops.held = False
    assert session._forward(command) is RECEIVE
    session._send_held()
    assert hops.sent == [{**came, **command.envelope.properties()}]


def test_what_is_held_back_is_sent_before_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    hops = Hops()
    hops.held = False
    session = session_of(monkeypatch, hops)
    waits: list[tuple[int, int]] = []

    def receive(wait_ms: int) -> Any:
        waits.append((wait_ms, len(hops.sent)))
        raise pulsar.Timeout("nothing came")

    session._consumer.receive = receive
    session._message, session._properties = client_message(), ENVELOPE.properties()
    assert session._forward(Forward(0, PLAN.due_topic, 0, 7, ENVELOPE.hopped(START_MS + 30_000))) is RECEIVE
    assert not hops.sent, "another may follow"
    with pytest.raises(pulsar.Timeout):
        session._next_message(20)
    assert waits == [(0, 0), (20, 1)]


def test_a_session_ends_when_its_oldest_hop_has_had_no_answer_for_the_send_time_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Named producers have no send time-out of the client's (broker-facts: exact-hops)."""
    session = session_of(monkeypatch, Hops())
    machine: Any = session._machine
    machine.in_flight, machine.confirmed_to = 0, None
    session._check_answers(0)
    machine.in_flight = 1
    session._check_answers(60_000)  # nothing was under way before
    session._check_answers(60_000 + SEND_TIMEOUT_MS - 1)
    machine.confirmed_to = KNOWN
    session._check_answers(60_000 + SEND_TIMEOUT_MS)  # it goes on
    session._check_answers(60_000 + 2 * SEND_TIMEOUT_MS - 1)
    with pytest.raises(SessionFailed, match="no answer"):
        session._check_answers(60_000 + 2 * SEND_TIMEOUT_MS)


def test_an_answer_behind_that_of_its_run_is_settled_though_none_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that drains waits for this one alone."""
    session = session_of(monkeypatch, Hops())
    machine: Any = session._machine
    settled: list[int] = []
    machine.confirmed = settled.extend
    stored, first, last = pulsar.MessageId(-1, 7, 1, -1), Sent(0, True, {}), Sent(1, True, {})
    session._confirmations.on_run([first, last], pulsar.Result.Ok, stored)
    session._settle()
    first.answer[pulsar.Result.Ok] = stored
    session._settle()
    assert settled == [1, 0]


KNOWN = Spot(Position(7, 3, -1), 0)
HOLE = HoleFound("a hole", Position(7, 5, -1))
OTHERS_WORK = HoleFound("a hole", KNOWN.position)
VISIT = Visit(0)


class Reported:
    def __init__(self) -> None:
        self.names: list[str] = []

    def emit(self, event: Any) -> None:
        self.names.append(event.name)


OUTGROWN: Literal["outgrown"] = "outgrown"
OLD: Literal["old"] = "old"
Ending = BaseException | Literal["outgrown", "old"] | None


def partition(monkeypatch: pytest.MonkeyPatch, endings: list[Ending]) -> tuple[Any, Reported]:
    """One whose subscriptions end so, one after the other."""

    class Played:
        def __init__(self, *of_it: Any) -> None:
            *_, self._machine, _ = of_it
            self.begins_anew = False
            self.position = None

        def run(self) -> None:
            ending = endings.pop(0)
            if isinstance(ending, BaseException):
                raise ending
            if ending is None:
                self._machine.left = VISIT
            elif ending == OLD:
                self._machine.begins_anew = True
            else:
                self.begins_anew = True

    monkeypatch.setattr(partitions, "Session", Played)
    told = Reported()
    tools: Any = SimpleNamespace(
        client=None, router=ROUTER, clock=LeapingClock(), rng=random.Random(1), hooks=told, max_in_flight=10,
        lease_idle_ms=1_000, hop_linger_ms=0, memory=Memory(), is_cancelled=None, drains_from_ms=None,
    )  # fmt: skip
    return partitions.Partition(SOURCE_PARTITION, tools), told


def test_an_unexpected_error_begins_anew_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended the partition's thread without a word, and a slot was never visited again."""
    unexpected = UnicodeDecodeError("utf-8", b"", 0, 1, "no client's error")
    it, told = partition(monkeypatch, [unexpected, SessionFailed("a send failed"), None])
    assert it.visit(VISIT)
    it.run_visit()
    assert told.names == ["relay_session_crashed", "relay_session_failed"]
    assert it.handle.counts.failures == 2
    assert it.handle.state is PartitionState.RESTING
    assert it.visit(VISIT), "the visit was ended"


@pytest.mark.parametrize("ending", [OUTGROWN, OLD])
def test_who_has_outgrown_its_queue_or_holds_what_is_old_begins_anew_and_that_is_no_failure(
    ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    endings: list[Ending] = [ending, None]
    it, told = partition(monkeypatch, endings)
    it.visit(VISIT)
    it.run_visit()
    assert endings == []
    assert told.names == []
    assert it.handle.counts.failures == 0


def test_a_hole_that_can_be_read_is_a_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    it, told = partition(monkeypatch, [HOLE, None])
    it._known = KNOWN
    it.run()
    assert it._known is None, "what it knows is older than what others have done"
    assert told.names == ["relay_position_jumped"]
    assert it.handle.counts.jumps == 1


def test_what_another_relay_did_before_a_subscriptions_first_message_is_no_jump(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two relays visit a slot in turn: each met the position that the other had left, 120 times a minute."""
    it, told = partition(monkeypatch, [OTHERS_WORK, None])
    it._known = KNOWN
    it.visit(VISIT)
    it.run_visit()
    assert it._known is None
    assert (told.names, it.handle.counts.jumps) == ([], 0)


@pytest.mark.parametrize(
    ("ending", "more"),
    [(OUTGROWN, [Sign.ASK, Sign.ASK, Sign.BEGUN]), (SessionFailed("a send failed"), [Sign.ASK, Sign.BEGUN])],
)
def test_a_beginning_outlives_a_subscription_that_the_partition_ends_itself(
    ending: Ending, more: list[Sign], monkeypatch: pytest.MonkeyPatch
) -> None:
    it, _ = partition(monkeypatch, [ending])
    first = Position(7, 3, -1)
    it._beginning.see(first, 0)
    assert it._has_ended() is False
    assert [it._beginning.see(first, 0) for _ in more] == more


BATCH_SIZE_FIELD = 6  # ``batch_size`` of ``MessageIdData`` in PulsarApi.proto
HOP, IN_ORDER = NextHop(ROUTER, steps(PLAN)[0]), OutOfOrder(PLAN)


class Relay:
    """A machine that is handed entries as a client hands them out."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.reader = Reader(SOURCE_PARTITION, PLAN, Verdicts())
        self.dead_letters: list[tuple[Position, str]] = []
        self.acknowledged: list[Position] = []

    def entry(self, ledger: int, entry: int, messages: int) -> None:
        message_id = SimpleNamespace(serialize=lambda: number_field(BATCH_SIZE_FIELD, messages))
        for index in range(messages):
            position = Position(ledger, entry, index)
            message = SimpleNamespace(properties=dict, schema_version=lambda: "")
            reading = self.reader.read(position, message, message_id)
            command = self.machine.received(position, messages, reading, position, START_MS)
            if isinstance(command, Examine):
                self.machine.found(command.before)
                command = self.machine.tick(START_MS)
            if isinstance(command, StoreDeadLetter):
                self.dead_letters.append((position, command.reason))
                command = self.machine.confirmed([command.ordinal] if self.is_broker_held else command.ordinal)
            if isinstance(command, Acknowledge):
                self.acknowledged += command.receipts

    @property
    def is_broker_held(self) -> bool:
        return isinstance(self.machine, BrokerHeld)


def relay_held() -> Relay:
    known = Spot(Position(7, 0, -1), 0)
    return Relay(Forwarding(HOP, IN_ORDER, known=known))


def broker_held() -> Relay:
    return Relay(BrokerHeld(HOP, IN_ORDER, window_limit=100, counts=Counts(), rng=random.Random(1)))


@pytest.mark.parametrize("held", [relay_held, broker_held])
@pytest.mark.parametrize("ledger", [7, 8])
def test_a_batch_beyond_the_bound_is_one_letter_at_its_last(held: Any, ledger: int) -> None:
    it, many, entry = held(), LARGEST_BATCH + 1, 8 - ledger
    it.entry(ledger, entry, many)
    ((position, reason),) = it.dead_letters
    assert position == (ledger, entry, many - 1)
    assert str(many) in reason
    assert str(LARGEST_BATCH) in reason
    if it.is_broker_held:
        assert len(set(it.acknowledged)) == many, "a broker takes an entry for done when all of it is"
    else:
        assert it.machine.confirmed_to == Spot(position, many)
    it.entry(ledger, entry + 1, 2)
    assert [place for place, _ in it.dead_letters[1:]] == [(ledger, entry + 1, 0), (ledger, entry + 1, 1)]


@pytest.mark.parametrize("held", [relay_held, broker_held])
def test_a_batch_at_the_bound_is_read_message_by_message(held: Any) -> None:
    it = held()
    it.entry(7, 1, LARGEST_BATCH)
    assert len(it.dead_letters) == LARGEST_BATCH
