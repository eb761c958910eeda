"""A reader gives each entry once and in order, takes no more than its permits, and says how it ended; entries are
acknowledged in commands of a thousand, each of which is confirmed, or an error tells that it is not.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest

from tests.support.checkout import ROOT
from tests.support.manual_clock import ManualClock
from tests.support.played_brokers import PlayedBrokers, PlayedTransport, found_at
from tests.support.processes import ran
from tests.support.pulsar_messages import command_frame, entry_frame, message
from timewheel.broker.protocol.commands import SubscriptionType
from timewheel.broker.protocol.consumers import EARLIEST, MAX_UNANSWERED, EntryAcknowledger, EntryReader
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.errors import (
    BrokerLost,
    BrokerRefused,
    BrokerSilent,
    ConsumerLost,
    ProtocolViolation,
    TooManyRequests,
)
from timewheel.client.positions import EntryPosition

TOPIC = "persistent://public/default/t"
CLOSED = command_frame("CLOSE_CONSUMER", consumer_id=1, request_id=9)


def dialed(answers: dict[str, Any] | None, clock: ManualClock | None = None) -> tuple[Dialer, PlayedBrokers]:
    clock = clock or ManualClock()
    brokers = PlayedBrokers(clock, {"b:1": {"LOOKUP": found_at("pulsar://b:1"), **(answers or {})}})
    return Dialer("pulsar://b:1", clock=clock, open_transport=brokers.open), brokers


def reader(
    clock: ManualClock | None = None, answers: dict[str, Any] | None = None, **options: Any
) -> tuple[EntryReader, PlayedTransport]:
    dialer, brokers = dialed(answers, clock)
    return EntryReader(dialer, TOPIC, rng=random.Random(1), **options), brokers.opened[-1]


def entries(*numbers: int, **more: Any) -> bytes:
    return b"".join(entry_frame((5, number), **more) for number in numbers)


def granted(transport: PlayedTransport) -> list[int]:
    return [said.messagePermits for name, said in transport.requests if name == "FLOW"]


def test_entries_come_as_they_came_and_the_position_follows() -> None:
    one, transport = reader(after=EntryPosition(5, 0))
    transport.coming += [entries(1, 2), entries(3)]
    assert one.position == EntryPosition(5, 0)
    assert [entry.position.entry for entry in one.read(100)] == [1, 2]
    assert one.position == EntryPosition(5, 2)
    assert [entry.position.entry for entry in one.read(100)] == [3]


@pytest.mark.parametrize("coming", [[entries(0, 1), entries(2)], [entries(0), entries(1), entries(2)]])
def test_the_entry_behind_which_it_begins_is_not_given_though_brokers_begin_with_it(coming: list[bytes]) -> None:
    """Nor does it look like the end when it comes alone."""
    one, transport = reader(after=EntryPosition(5, 0), permits=2)
    transport.coming += coming
    assert [entry.position.entry for entry in one.read(100)] == [1]
    assert [entry.position.entry for entry in one.read(100)] == [2]
    assert granted(transport) == [2, 2], "it took a permit all the same"


def test_the_entry_behind_which_it_began_is_out_of_order_when_it_comes_later() -> None:
    one, transport = reader(after=EntryPosition(5, 0))
    transport.coming += [entries(1, 0)]
    one.read(100)
    with pytest.raises(ProtocolViolation, match="entry 5:0 behind 5:1"):
        one.read(100)


def test_it_reads_for_itself_behind_the_position_that_it_was_given() -> None:
    _, transport = reader(after=EntryPosition(5, 7), permits=10)
    (subscribe,) = (said for name, said in transport.requests if name == "SUBSCRIBE")
    assert (subscribe.durable, subscribe.start_message_id.ledgerId, subscribe.start_message_id.entryId) == (False, 5, 7)
    assert subscribe.subscription == f"timewheel-look-{int(random.Random(1).random() * (1 << 48)):012x}"


@pytest.mark.parametrize(
    ("coming", "back"),
    [
        ([entries(1, 2, 3, 4), entries(5), entries(6)], 5),
        ([entries(1), entries(2, num_messages_in_batch=100), entries(3)], 101),  # as many as the batch has messages
    ],
)
def test_permits_are_given_back_when_half_of_them_are_taken_and_the_caller_comes_for_more(
    coming: list[bytes], back: int
) -> None:
    one, transport = reader(permits=10)
    transport.coming += coming
    one.read(100)
    one.read(100)
    assert granted(transport) == [10], "half are taken, and nobody has come for more"
    one.read(100)
    assert granted(transport) == [10, back]


def test_what_was_read_is_acknowledged_once_and_unasked_when_the_caller_comes_for_more() -> None:
    one, transport = reader(after=EntryPosition(5, 0))
    transport.coming += [entries(1, 2), entries(3)]
    for _ in range(4):
        one.read(0)
    told = [said for name, said in transport.requests if name == "ACK"]
    assert [(said.ack_type, said.message_id[0].entryId, said.request_id) for said in told] == [(1, 2, 0), (1, 3, 0)]


def test_a_count_that_no_batch_has_is_given_back_as_a_broker_counts_it() -> None:
    """With 32 bits: what -1 message has added is taken away by going once around."""
    one, transport = reader(permits=10)
    transport.coming += [entries(1, num_messages_in_batch=-1), entries(2, num_messages_in_batch=(1 << 31) - 1)]
    for _ in range(3):
        one.read(0)
    owed = (10 - 1 + (1 << 31) - 1 - sum(granted(transport))) % (1 << 32)
    assert owed < 10 // 2, "less than is worth a command"


@pytest.mark.parametrize("permits", [0, -1, 1 << 31])
def test_permits_that_no_broker_can_count_are_refused(permits: int) -> None:
    with pytest.raises(TooManyRequests, match="permits"):
        reader(permits=permits)


def test_when_nothing_comes_it_returns_in_time_with_nothing() -> None:
    clock = ManualClock()
    one, transport = reader(clock)
    began_ms = clock.monotonic_ms()
    transport.coming += [command_frame("ACTIVE_CONSUMER_CHANGE", consumer_id=1)]  # which is nothing to wait for
    assert one.read(250) == []
    assert clock.monotonic_ms() - began_ms == 250


def test_a_broker_that_says_nothing_is_asked_whether_it_is_there_and_then_given_up() -> None:
    clock = ManualClock()
    one, transport = reader(clock, {"PING": lambda _: b""})
    began_ms = clock.monotonic_ms()
    with pytest.raises(BrokerSilent, match="no answer to a PING within 30000 ms"):
        one.read(3_600_000)
    assert clock.monotonic_ms() - began_ms == 60_000
    assert transport.names().count("PING") == 1
    assert transport.is_closed


def test_a_quiet_topic_is_read_for_as_long_as_its_broker_answers() -> None:
    clock = ManualClock()
    one, transport = reader(clock)
    assert one.read(600_000) == []
    assert transport.names().count("PING") == 20, "every 30 s"


@pytest.mark.parametrize(
    ("asked", "answered"),
    [(command_frame("PING"), "PONG"), (command_frame("AUTH_CHALLENGE", server_version="s"), "AUTH_RESPONSE")],
)
def test_what_the_broker_asks_of_the_connection_is_answered(asked: bytes, answered: str) -> None:
    one, transport = reader()
    transport.coming += [asked]
    one.read(10)
    assert transport.names()[-1] == answered


def test_a_consumer_that_the_broker_closed_is_told_behind_what_was_read_before() -> None:
    one, transport = reader()
    transport.coming += [entries(1) + CLOSED]

    assert [entry.position.entry for entry in one.read(10)] == [1]
    with pytest.raises(ConsumerLost, match=f"{TOPIC}: the broker closed the consumer") as lost:
        one.read(10)
    assert lost.value.topic == TOPIC
    assert transport.is_closed
    assert one.position == EntryPosition(5, 1), "where the next reader begins"
    with pytest.raises(BrokerLost):
        one.read(10)


@pytest.mark.parametrize(
    ("stream", "given", "said"),
    [
        (entries(4, 4), [4], "entry 5:4 behind 5:4"),
        (entries(4, 3), [4], "entry 5:3 behind 5:4"),
        (entries(1, 2) + b"HTTP", [1, 2], "a frame of"),
    ],
)
def test_a_violation_is_told_behind_what_was_read_before(stream: bytes, given: list[int], said: str) -> None:
    one, transport = reader()
    transport.coming += [stream]
    assert [entry.position.entry for entry in one.read(10)] == given
    with pytest.raises(ProtocolViolation, match=said):
        one.read(10)
    assert one.position == EntryPosition(5, given[-1])


def test_an_entry_before_the_start_is_an_error_at_once() -> None:
    """What a broker delivers to whoever begins beyond the end: all of it, from the first."""
    one, transport = reader(after=EntryPosition(9, 0))
    transport.coming += [entries(0)]
    with pytest.raises(ProtocolViolation, match="was the topic deleted and made again"):
        one.read(10)


def test_the_last_position_is_asked_for_and_entries_that_come_meanwhile_are_kept() -> None:
    last = message("MessageIdData", ledgerId=5, entryId=8)

    def answer(said: Any) -> bytes:
        return entries(1) + command_frame(
            "GET_LAST_MESSAGE_ID_RESPONSE", request_id=said.request_id, last_message_id=last
        )

    one, _ = reader(answers={"GET_LAST_MESSAGE_ID": answer})

    assert one.last_position() == EntryPosition(5, 8)
    assert [entry.position.entry for entry in one.read(10)] == [1]


def test_the_last_position_of_a_consumer_that_was_closed_is_not_waited_for() -> None:
    one, transport = reader(answers={"GET_LAST_MESSAGE_ID": lambda _: CLOSED})
    with pytest.raises(ConsumerLost):
        one.last_position()
    assert transport.is_closed


def test_payloads_are_kept_only_for_whoever_wants_them() -> None:
    for keep, expected in ((False, None), (True, b"x")):
        one, transport = reader(keep_payload=keep)
        transport.coming += [entries(1)]
        assert [entry.payload for entry in one.read(10)] == [expected]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda said: command_frame("ERROR", request_id=said.request_id, error=11, message="no topic"), BrokerRefused),
        (lambda _: CLOSED, ConsumerLost),
        (lambda _: b"", BrokerSilent),
        (lambda _: b"\x15\x03\x03\x00", ProtocolViolation),
    ],
)
def test_a_reader_that_cannot_be_opened_leaves_no_connection(answer: Any, error: type[Exception]) -> None:
    dialer, brokers = dialed({"SUBSCRIBE": answer})
    with pytest.raises(error):
        EntryReader(dialer, TOPIC)
    assert brokers.opened[-1].is_closed


def test_leaving_closes_and_what_is_closed_says_so() -> None:
    one, transport = reader(after=EARLIEST)
    with one:
        pass
    assert transport.is_closed
    with pytest.raises(BrokerLost, match="it was closed here; open another one"):
        one.read(10)
    with pytest.raises(BrokerLost):
        one.last_position()


def test_a_lost_connection_is_told_with_its_address() -> None:
    one, transport = reader()
    transport.ends_with = "reset"
    with pytest.raises(BrokerLost, match="no connection to b:1: reset") as lost:
        one.read(10)
    assert lost.value.address == "b:1"


def acknowledger(answers: dict[str, Any] | None = None, **options: Any) -> tuple[EntryAcknowledger, PlayedTransport]:
    dialer, brokers = dialed(answers)
    return EntryAcknowledger(dialer, TOPIC, "billing", **options), brokers.opened[-1]


def positions(count: int) -> list[EntryPosition]:
    return [EntryPosition(5, entry) for entry in range(count)]


def acks(transport: PlayedTransport) -> list[Any]:
    return [said for name, said in transport.requests if name == "ACK"]


def confirmed(said: Any) -> bytes:
    return command_frame("ACK_RESPONSE", request_id=said.request_id, consumer_id=said.consumer_id)


@pytest.mark.parametrize(("kind", "number"), [(SubscriptionType.SHARED, 1), (SubscriptionType.KEY_SHARED, 3)])
def test_it_joins_as_a_consumer_that_takes_nothing(kind: Any, number: int) -> None:
    _, transport = acknowledger(name="me", kind=kind)
    (subscribe,) = (said for name, said in transport.requests if name == "SUBSCRIBE")
    assert (subscribe.subscription, subscribe.subType, subscribe.durable, subscribe.consumer_name) == (
        *("billing", number, True),
        "me",
    )
    assert "FLOW" not in transport.names()


@pytest.mark.parametrize(
    ("count", "sizes"), [(0, []), (1, [1]), (1_000, [1_000]), (1_001, [1_000, 1]), (2_500, [1_000, 1_000, 500])]
)
def test_positions_go_out_by_the_thousand(count: int, sizes: list[int]) -> None:
    one, transport = acknowledger()
    one.acknowledge(positions(count))
    assert [len(said.message_id) for said in acks(transport)] == sizes
    assert [(said.ledgerId, said.entryId) for ack in acks(transport) for said in ack.message_id] == positions(count)


def test_no_more_commands_are_under_way_than_the_limit() -> None:
    waiting: list[Any] = []

    def answer(said: Any) -> bytes:
        waiting.append(said)
        assert len(waiting) <= MAX_UNANSWERED
        if len(waiting) < MAX_UNANSWERED and said.request_id < 8:
            return b""
        answers = b"".join(map(confirmed, waiting))
        waiting.clear()
        return answers

    one, transport = acknowledger({"ACK": answer})
    one.acknowledge(positions(7_000))

    assert len(acks(transport)) == 7


def test_answers_may_come_in_any_order_and_all_at_once() -> None:
    waiting: list[Any] = []

    def answer(said: Any) -> bytes:
        waiting.append(said)
        return b"" if len(waiting) < 3 else b"".join(map(confirmed, reversed(waiting)))

    one, transport = acknowledger({"ACK": answer})
    one.acknowledge(positions(3_000))

    assert len(acks(transport)) == 3


@pytest.mark.parametrize("which", [1, 2, 3])
def test_a_refusal_of_any_of_them_is_told_and_ends_it(which: int) -> None:
    seen: list[Any] = []

    def answer(said: Any) -> bytes:
        seen.append(said)
        refused = command_frame(
            "ACK_RESPONSE", request_id=said.request_id, consumer_id=1, error=22, message="not allowed"
        )
        return refused if len(seen) == which else confirmed(said)

    one, transport = acknowledger({"ACK": answer})
    with pytest.raises(BrokerRefused, match=r"refused to acknowledge 1000 entries .NotAllowedError.: not allowed"):
        one.acknowledge(positions(3_000))

    assert transport.is_closed
    with pytest.raises(BrokerLost):
        one.acknowledge(positions(1))


@pytest.mark.parametrize(
    ("answer", "came_before", "error", "said"),
    [
        (CLOSED, [], ConsumerLost, "what it had not confirmed may be done or not"),
        (b"", [CLOSED], ConsumerLost, "the broker closed the consumer"),
        (b"", [], BrokerSilent, "it may have done it"),
    ],
    ids=["closed meanwhile", "closed before", "given up in time"],
)
def test_what_is_not_confirmed_is_told(
    answer: bytes, came_before: list[bytes], error: type[Exception], said: str
) -> None:
    one, transport = acknowledger({"ACK": lambda _: answer})
    transport.coming += came_before
    with pytest.raises(error, match=said):
        one.acknowledge(positions(1))
    assert transport.is_closed


def test_keeping_alive_answers_pings_and_finds_out_that_it_is_closed() -> None:
    one, transport = acknowledger()
    transport.coming += [command_frame("PING")]
    one.keep_alive()
    assert transport.names()[-1] == "PONG"
    transport.coming += [CLOSED]
    with pytest.raises(ConsumerLost):
        one.keep_alive()


def test_leaving_waits_until_the_broker_has_seen_it() -> None:
    one, transport = acknowledger()
    one.leave()
    assert (transport.names()[-1], transport.is_closed) == ("CLOSE_CONSUMER", True)


@pytest.mark.parametrize(
    ("module", "absent"),
    [("", {"google_crc32c", "socket", "ssl", "pulsar", "_pulsar"}), (".consumers", {"pulsar", "_pulsar"})],
)
def test_imports_cost_nothing_and_load_no_client_of_pulsar(module: str, absent: set[str]) -> None:
    code = f"import sys, timewheel.broker.protocol{module}; assert not {absent} & set(sys.modules), sys.modules.keys()"
    done = ran([sys.executable, "-c", code], cwd=ROOT)
    assert done.returncode == 0, done.stderr
