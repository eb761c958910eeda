"""Entries are acknowledged in commands of a thousand, each of which is confirmed, or an error tells that it is not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.manual_clock import ManualClock
from tests.support.played_brokers import PlayedBrokers, PlayedTransport, found_at
from tests.support.pulsar_messages import command_frame
from timewheel.broker.protocol.commands import SubscriptionType
from timewheel.broker.protocol.consumers import MAX_UNANSWERED, EntryAcknowledger
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.errors import BrokerLost, BrokerRefused, BrokerSilent, ConsumerLost
from timewheel.client.positions import EntryPosition

TOPIC = "persistent://public/default/t"
CLOSED = command_frame("CLOSE_CONSUMER", consumer_id=1, request_id=9)


def acknowledger(answers: dict[str, Any] | None = None, **options: Any) -> tuple[EntryAcknowledger, PlayedTransport]:
    clock = ManualClock()
    brokers = PlayedBrokers(clock, {"b:1": {"LOOKUP": found_at("pulsar://b:1"), **(answers or {})}})
    dialer = Dialer("pulsar://b:1", clock=clock, open_transport=brokers.open)
    return EntryAcknowledger(dialer, TOPIC, "billing", **options), brokers.opened[-1]


def positions(count: int) -> list[EntryPosition]:
    return [EntryPosition(5, entry) for entry in range(count)]


def acks(transport: PlayedTransport) -> list[Any]:
    return [said for name, said in transport.requests if name == "ACK"]


def confirmed(said: Any) -> bytes:
    return command_frame("ACK_RESPONSE", request_id=said.request_id, consumer_id=said.consumer_id)


def test_it_joins_as_a_consumer_that_takes_nothing() -> None:
    _, transport = acknowledger(name="me")
    (subscribe,) = (said for name, said in transport.requests if name == "SUBSCRIBE")

    assert (subscribe.subscription, subscribe.subType, subscribe.durable, subscribe.consumer_name) == (
        *("billing", 1, True),
        "me",
    )
    assert "FLOW" not in transport.names()


def test_on_key_shared_it_joins_as_such() -> None:
    _, transport = acknowledger(kind=SubscriptionType.KEY_SHARED)
    (subscribe,) = (said for name, said in transport.requests if name == "SUBSCRIBE")

    assert subscribe.subType == 3


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


def test_a_consumer_that_is_closed_meanwhile_will_never_be_answered_and_is_told_at_once() -> None:
    one, transport = acknowledger({"ACK": lambda _: CLOSED})

    with pytest.raises(ConsumerLost, match="what it had not confirmed may be done or not"):
        one.acknowledge(positions(1))
    assert transport.is_closed


def test_a_consumer_that_was_closed_before_is_told_by_the_next_acknowledgement() -> None:
    one, transport = acknowledger({"ACK": lambda _: b""})
    transport.coming += [CLOSED]

    with pytest.raises(ConsumerLost):
        one.acknowledge(positions(1))


def test_a_broker_that_does_not_confirm_is_given_up_in_time() -> None:
    one, transport = acknowledger({"ACK": lambda _: b""})

    with pytest.raises(BrokerSilent, match="it may have done it"):
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


def test_a_context_ends_with_the_connection() -> None:
    one, transport = acknowledger()
    with one:
        pass

    assert transport.is_closed
