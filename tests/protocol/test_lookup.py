"""A lookup follows brokers to the one that serves the topic, and never out of TLS or in circles."""

from __future__ import annotations

from typing import Any

import pytest

from timewheel.broker.protocol.commands import LookedUp
from timewheel.broker.protocol.dialing import MAX_REDIRECTS, Ask, Lookup, Target
from timewheel.broker.protocol.errors import LookupFailed
from timewheel.broker.protocol.session import Address, ServiceUrl

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
    ],
)
def test_what_follows_from_an_answer(service: ServiceUrl, changes: dict[str, Any], step: Ask | Target) -> None:
    assert Lookup(service, "t").answered(answer(**changes)) == step


def test_it_begins_at_the_service_url_without_authority() -> None:
    assert Lookup(PLAIN, "t").first == Ask(PLAIN.addresses, is_authoritative=False)


@pytest.mark.parametrize(
    ("service", "changes", "said"),
    [
        (SECURE, {"tls_url": None}, "no address with TLS"),  # credentials must not go on without it
        (SECURE, {"tls_url": "pulsar://owner:6650"}, "'pulsar://owner:6650' as its address with TLS"),
        (SECURE, {"is_redirect": True, "tls_url": "pulsar://owner:6650"}, "as its address with TLS"),
        (PLAIN, {"url": None}, "no address without TLS"),
        (PLAIN, {"url": "nonsense"}, "'nonsense', which is no address"),
        (PLAIN, {"url": "pulsar://owner:port"}, "which is no address"),
    ],
)
def test_an_answer_that_leads_nowhere_says_why(service: ServiceUrl, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(LookupFailed, match=said):
        Lookup(service, "persistent://a/b/c").answered(answer(**changes))


def test_brokers_that_send_the_question_in_circles_are_given_up() -> None:
    lookup = Lookup(PLAIN, "t")
    for _ in range(MAX_REDIRECTS):
        assert isinstance(lookup.answered(answer(is_redirect=True)), Ask)

    with pytest.raises(LookupFailed, match="sent the question on 21 times, the limit is 20"):
        lookup.answered(answer(is_redirect=True))
