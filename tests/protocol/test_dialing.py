"""Whoever serves a topic is found and connected to, by redirects and through proxies, and never out of TLS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.manual_clock import ManualClock
from tests.support.played_brokers import UNREACHABLE, Answering, PlayedBrokers, found_at, silent
from tests.support.pulsar_messages import command_frame, connected
from timewheel.broker.protocol.commands import LookedUp
from timewheel.broker.protocol.consumers import EntryReader
from timewheel.broker.protocol.dialing import HOST_MS, Ask, Dialer, Target, next_step
from timewheel.broker.protocol.errors import BrokerLost, BrokerRefused, BrokerSilent, LookupFailed
from timewheel.broker.protocol.session import CONNECT_MS, REQUEST_MS, Address, Authentication, ServiceUrl
from timewheel.core.errors import BadConnection


@pytest.mark.parametrize(
    ("text", "addresses", "is_tls"),
    [
        ("pulsar://one:1234", ("one:1234",), False),
        ("pulsar://one", ("one:6650",), False),
        ("pulsar+ssl://one", ("one:6651",), True),
        ("pulsar+ssl://one:1,two,10.0.0.3:3/", ("one:1", "two:6651", "10.0.0.3:3"), True),
        ("pulsar://[::1]:7", ("[::1]:7",), False),
        ("pulsar://[::1]", ("[::1]:6650",), False),
    ],
)
def test_urls_are_addresses(text: str, addresses: tuple[str, ...], is_tls: bool) -> None:
    found = ServiceUrl.parse(text)
    assert (tuple(map(str, found.addresses)), found.is_tls) == (addresses, is_tls)


def test_an_address_of_version_6_has_no_brackets_where_it_is_connected_to() -> None:
    assert ServiceUrl.parse("pulsar://[::1]:7").addresses == (Address("::1", 7),)


@pytest.mark.parametrize(
    "text",
    [
        "", "one:6650", "http://one", "pulsar:/one", "pulsar://", "pulsar://,one", "pulsar://one,", "pulsar://one:x",
        "pulsar://one:99999", "pulsar://me:secret@one", "pulsar://one/path", "pulsar://one?secret", "pulsar://[::1",
        "PULSAR://one", "pulsar://one#secret",
    ],
)  # fmt: skip
def test_what_is_none_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(BadConnection, match="service_url") as refused:
        ServiceUrl.parse(text)
    assert "secret" not in str(refused.value)


PLAIN = ServiceUrl.parse("pulsar://front:1,other:1")
SECURE = ServiceUrl.parse("pulsar+ssl://front:2")


def answer(**changes: Any) -> LookedUp:
    found: dict[str, Any] = {
        "request_id": 1,
        "is_redirect": False,
        "url": "pulsar://owner:6650",
        "tls_url": "pulsar+ssl://owner:6651",
        "is_authoritative": False,
        "through_service": False,
        **changes,
    }
    return LookedUp(**found)


@pytest.mark.parametrize(
    ("service", "changes", "step"),
    [
        (PLAIN, {}, Target((Address("owner", 6650),), None)),
        (SECURE, {}, Target((Address("owner", 6651),), None)),
        (PLAIN, {"tls_url": None}, Target((Address("owner", 6650),), None)),
        (SECURE, {"url": None}, Target((Address("owner", 6651),), None)),
        (PLAIN, {"is_redirect": True}, Ask((Address("owner", 6650),), is_authoritative=False)),
        (
            SECURE,
            {"is_redirect": True, "is_authoritative": True},
            Ask((Address("owner", 6651),), is_authoritative=True),
        ),
        (PLAIN, {"through_service": True}, Target(PLAIN.addresses, "owner:6650")),
        (SECURE, {"through_service": True}, Target(SECURE.addresses, "owner:6651")),
        (SECURE, {"through_service": True, "tls_url": "pulsar://owner:6650"}, Target(SECURE.addresses, "owner:6650")),
        (PLAIN, {"through_service": True, "url": "pulsar+ssl://owner:6651"}, Target(PLAIN.addresses, "owner:6651")),
    ],
)
def test_what_follows_from_an_answer(service: ServiceUrl, changes: dict[str, Any], step: Ask | Target) -> None:
    assert next_step(service, "t", answer(**changes)) == step


@pytest.mark.parametrize(
    ("service", "changes", "said"),
    [
        (SECURE, {"tls_url": None}, "no address with TLS"),  # credentials must not go on without it
        (SECURE, {"tls_url": "pulsar://owner:6650"}, "'pulsar://owner:6650' as its address with TLS"),
        (SECURE, {"is_redirect": True, "tls_url": "pulsar://owner:6650"}, "as its address with TLS"),
        (
            SECURE,
            {"is_redirect": True, "through_service": True, "tls_url": "pulsar://owner:6650"},
            "as its address with TLS",
        ),
        (PLAIN, {"url": None}, "no address without TLS"),
        (PLAIN, {"url": "nonsense"}, "'nonsense', which is no address"),
        (PLAIN, {"url": "pulsar://owner:port"}, "which is no address"),
    ],
)
def test_an_answer_that_leads_nowhere_says_why(service: ServiceUrl, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(LookupFailed, match=said):
        next_step(service, "persistent://a/b/c", answer(**changes))


TOPIC = "persistent://public/default/t"


def cluster(answers: Mapping[str, Mapping[str, Answering]]) -> tuple[Dialer, PlayedBrokers, ManualClock]:
    clock = ManualClock()
    brokers = PlayedBrokers(clock, answers)
    dialer = Dialer(
        "pulsar://front:1",
        authentication=Authentication.by_token(lambda: "t0ken"),
        clock=clock,
        open_transport=brokers.open,
    )
    return dialer, brokers, clock


def test_a_broker_that_serves_the_topic_itself_is_not_connected_to_twice() -> None:
    dialer, brokers, _ = cluster({"front:1": {"LOOKUP": found_at("pulsar://front:1")}})
    session = dialer.reach(TOPIC)
    (only,) = brokers.opened
    assert (session.server, only.names(), only.is_closed) == ("played", ["CONNECT", "LOOKUP"], False)
    assert only.requests[0][1].auth_data == b"t0ken"


def test_the_owner_is_connected_to_and_the_one_that_was_asked_is_left() -> None:
    dialer, brokers, _ = cluster({"front:1": {"LOOKUP": found_at("pulsar://owner:2")}, "owner:2": {}})
    dialer.reach(TOPIC)
    asked, owner = brokers.opened
    assert (asked.is_closed, owner.is_closed, owner.names()) == (True, False, ["CONNECT"])
    assert not owner.requests[0][1].HasField("proxy_to_broker_url")


def test_a_redirect_is_followed_with_the_authority_that_it_gives() -> None:
    dialer, brokers, _ = cluster(
        {
            "front:1": {"LOOKUP": found_at("pulsar://knows:2", response=0, authoritative=True)},
            "knows:2": {"LOOKUP": found_at("pulsar://owner:3")},
            "owner:3": {},
        }
    )
    dialer.reach(TOPIC)

    front, knows, _ = brokers.opened
    assert [front.requests[1][1].authoritative, knows.requests[1][1].authoritative] == [False, True]
    assert [str(one.address) for one in brokers.opened if not one.is_closed] == ["owner:3"]


def test_a_proxy_is_asked_to_connect_to_the_broker() -> None:
    found = found_at("pulsar://inside:6650", proxy_through_service_url=True)
    dialer, brokers, _ = cluster({"front:1": {"LOOKUP": found}})
    dialer.reach(TOPIC)
    asked, through = brokers.opened
    assert (str(through.address), through.requests[0][1].proxy_to_broker_url) == ("front:1", "inside:6650")
    assert asked.is_closed


def test_a_broker_that_is_its_own_proxy_is_not_connected_to_twice() -> None:
    """As Pulsar's standalone says that it is."""
    found = found_at("pulsar://front:1", proxy_through_service_url=True)
    dialer, brokers, _ = cluster({"front:1": {"LOOKUP": found}})
    dialer.reach(TOPIC)
    assert len(brokers.opened) == 1


def test_brokers_that_redirect_in_circles_are_given_up_and_all_connections_closed() -> None:
    dialer, brokers, _ = cluster(
        {
            "front:1": {"LOOKUP": found_at("pulsar://back:2", response=0)},
            "back:2": {"LOOKUP": found_at("pulsar://front:1", response=0)},
        }
    )
    with pytest.raises(LookupFailed, match="sent the question on 21 times, the limit is 20"):
        dialer.reach(TOPIC)

    assert len(brokers.opened) == 21
    assert all(one.is_closed for one in brokers.opened)


def test_a_lookup_that_is_refused_closes_the_connection_and_says_why() -> None:
    dialer, brokers, _ = cluster({"front:1": {"LOOKUP": refused(TOPIC_NOT_FOUND)}})
    with pytest.raises(BrokerRefused, match=f"refused to look up {TOPIC} .TopicNotFound.: no such topic"):
        dialer.reach(TOPIC)
    assert brokers.opened[0].is_closed


@pytest.mark.parametrize(
    ("silent_on", "waited_for", "waited_ms"),
    [("CONNECT", "answer to CONNECT", CONNECT_MS), ("LOOKUP", "answer", REQUEST_MS)],
)
def test_a_broker_that_is_silent_is_given_up_in_time_and_left(silent_on: str, waited_for: str, waited_ms: int) -> None:
    dialer, brokers, clock = cluster(
        {"front:1": {"LOOKUP": found_at("pulsar://front:1"), silent_on: silent, "PING": silent}}
    )
    began_ms = clock.monotonic_ms()
    with pytest.raises(BrokerSilent, match=waited_for):
        dialer.reach(TOPIC)
    assert clock.monotonic_ms() - began_ms == waited_ms
    assert brokers.opened[0].is_closed


def test_of_several_hosts_the_first_that_is_there_is_asked() -> None:
    clock = ManualClock()
    brokers = PlayedBrokers(clock, {"three:3": {"LOOKUP": found_at("pulsar://three:3")}})
    Dialer("pulsar://one:1,two:2,three:3", clock=clock, open_transport=brokers.open).reach(TOPIC)
    assert [str(one.address) for one in brokers.opened] == ["three:3"]
    with pytest.raises(BrokerLost, match="no connection to two:2: nobody is there"):
        Dialer("pulsar://one:1,two:2", clock=clock, open_transport=brokers.open).reach(TOPIC)


OWNER_AT = found_at("pulsar://owner:9")
SERVICE_NOT_READY, TOPIC_NOT_FOUND = 6, 11


def refused(error: int) -> Answering:
    return lambda said: command_frame(
        "LOOKUP_RESPONSE", request_id=said.request_id, response=2, error=error, message="no such topic"
    )


UNUSABLE: dict[str, tuple[Mapping[str, Answering] | None, int]] = {
    "frozen before the handshake": ({"CONNECT": silent}, HOST_MS),
    "frozen before the lookup": ({"LOOKUP": silent, "PING": silent}, HOST_MS),
    "unreachable by the network": (UNREACHABLE, HOST_MS),
    "redirecting to a frozen broker": ({"LOOKUP": found_at("pulsar://frozen:8", response=0)}, HOST_MS),
    "redirecting to a dead broker": ({"LOOKUP": found_at("pulsar://dead:7", response=0)}, 0),
    "not ready": ({"LOOKUP": refused(SERVICE_NOT_READY)}, 0),
}


def front_and_others(first: Mapping[str, Answering] | None, **others: Any) -> tuple[Dialer, PlayedBrokers, ManualClock]:
    clock = ManualClock()
    usable: dict[str, Any] = {"second:2": {"LOOKUP": OWNER_AT}, "third:3": {"LOOKUP": OWNER_AT}}
    answers = {"first:1": first, **usable, "owner:9": {}, "frozen:8": {"CONNECT": silent}, **others}
    brokers = PlayedBrokers(clock, answers)
    return Dialer("pulsar://first:1,second:2,third:3", clock=clock, open_transport=brokers.open), brokers, clock


@pytest.mark.parametrize("unusable", UNUSABLE)
def test_a_host_that_gives_no_answer_is_passed_over_in_time_and_asked_last_from_then_on(unusable: str) -> None:
    answers, waited_ms = UNUSABLE[unusable]
    dialer, brokers, clock = front_and_others(answers)
    began_ms = clock.monotonic_ms()
    assert str(dialer.reach(TOPIC).address) == "owner:9"
    assert clock.monotonic_ms() - began_ms == waited_ms
    assert [one.is_closed for one in brokers.opened if str(one.address) != "owner:9"] == [True] * (
        len(brokers.opened) - 1
    )

    brokers.opened.clear()
    dialer.reach(TOPIC)
    assert [str(one.address) for one in brokers.opened] == ["second:2", "owner:9"]
    assert clock.monotonic_ms() - began_ms == waited_ms


@pytest.mark.parametrize(
    ("host", "responds", "waited_ms"),
    [("second:2", True, 0), ("frozen:8", False, HOST_MS), ("unreachable:7", False, HOST_MS), ("dead:6", True, 0)],
)
def test_a_host_that_hangs_is_known_in_time_and_a_dead_one_is_none_of_them(
    host: str, responds: bool, waited_ms: int
) -> None:
    clock = ManualClock()
    played = {"second:2": {}, "frozen:8": {"CONNECT": silent}, "unreachable:7": UNREACHABLE}
    brokers = PlayedBrokers(clock, played)
    began_ms = clock.monotonic_ms()
    assert Dialer(f"pulsar://{host}", clock=clock, open_transport=brokers.open).responds() is responds
    assert clock.monotonic_ms() - began_ms == waited_ms
    assert all(one.is_closed for one in brokers.opened)


def test_the_host_behind_one_that_hangs_later_is_the_next() -> None:
    dialer, brokers, _ = front_and_others({"CONNECT": silent})
    dialer.reach(TOPIC)
    brokers.answers["second:2"] = {"CONNECT": silent}
    brokers.opened.clear()
    dialer.reach(TOPIC)
    assert [str(one.address) for one in brokers.opened] == ["second:2", "third:3", "owner:9"]


def test_the_last_host_has_the_whole_time() -> None:
    dialer, _, clock = front_and_others(
        {"CONNECT": silent}, **{"second:2": UNREACHABLE, "third:3": {"LOOKUP": silent, "PING": silent}}
    )
    began_ms = clock.monotonic_ms()
    with pytest.raises(BrokerSilent):
        dialer.reach(TOPIC)
    assert clock.monotonic_ms() - began_ms == 2 * HOST_MS + REQUEST_MS


def test_an_answer_that_every_host_would_give_is_taken_from_the_first() -> None:
    dialer, brokers, _ = front_and_others({"LOOKUP": refused(TOPIC_NOT_FOUND)})
    with pytest.raises(BrokerRefused, match="TopicNotFound"):
        dialer.reach(TOPIC)
    assert [str(one.address) for one in brokers.opened] == ["first:1"]


def test_an_owner_that_hangs_is_given_up_without_another_host_which_would_name_it_again() -> None:
    dialer, brokers, clock = front_and_others({"LOOKUP": found_at("pulsar://frozen:8")})
    began_ms = clock.monotonic_ms()
    with pytest.raises(BrokerSilent):
        dialer.reach(TOPIC)
    assert [str(one.address) for one in brokers.opened] == ["first:1", "frozen:8"]
    assert clock.monotonic_ms() - began_ms == CONNECT_MS


def test_a_proxy_that_hangs_is_passed_over_also_on_the_way_to_the_broker() -> None:
    through = {"LOOKUP": found_at("pulsar://inside:6650", proxy_through_service_url=True)}
    hung = {**through, "CONNECT": lambda said: b"" if said.proxy_to_broker_url else connected()}
    dialer, brokers, clock = front_and_others(hung, **{"second:2": through})
    began_ms = clock.monotonic_ms()
    session = dialer.reach(TOPIC)
    assert (str(session.address), brokers.opened[-1].requests[0][1].proxy_to_broker_url) == ("second:2", "inside:6650")
    assert clock.monotonic_ms() - began_ms == HOST_MS


def test_a_session_that_was_opened_in_haste_has_the_whole_time_for_its_requests() -> None:
    dialer, _, clock = front_and_others({"LOOKUP": found_at("pulsar://first:1"), "SUBSCRIBE": silent, "PING": silent})
    began_ms = clock.monotonic_ms()
    with pytest.raises(BrokerSilent):
        EntryReader(dialer, TOPIC)
    assert clock.monotonic_ms() - began_ms == REQUEST_MS


def test_a_certificate_is_said_to_be_what_counts_and_a_token_never_shown() -> None:
    clock = ManualClock()
    brokers = PlayedBrokers(
        clock, {"front:6651": {"LOOKUP": found_at("pulsar://x:1", brokerServiceUrlTls="pulsar+ssl://front:6651")}}
    )
    dialer = Dialer(
        "pulsar+ssl://front", authentication=Authentication("tls"), clock=clock, open_transport=brokers.open
    )
    dialer.reach(TOPIC)

    assert brokers.opened[0].requests[0][1].auth_method_name == "tls"
    assert "t0ken" not in repr(Authentication.by_token(lambda: "t0ken"))
