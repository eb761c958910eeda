from __future__ import annotations

from collections.abc import Callable
from urllib.parse import unquote, unquote_plus

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from timewheel.broker.admin.names import namespace_path, subscription_of, subscription_path, tenant_path, topic_path
from timewheel.core.errors import BadName

parts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/"), min_size=1).filter(
    lambda part: part not in {".", ".."}
)


@given(tenant=parts, namespace=parts, local=parts)
def test_a_topic_keeps_its_four_segments_whatever_its_name_holds(tenant: str, namespace: str, local: str) -> None:
    url = httpx.URL("http://broker:8080/admin/v2" + topic_path(f"persistent://{tenant}/{namespace}/{local}") + "/stats")

    segments = url.raw_path.decode().split("/")

    assert [unquote(segment) for segment in segments] == [
        "", "admin", "v2", "persistent", tenant, namespace, local, "stats"
    ]  # fmt: skip


@pytest.mark.parametrize("make", [tenant_path, lambda name: subscription_path("persistent://a/b/c", name)])
def test_half_of_a_character_is_in_no_name(make: Callable[[str], str]) -> None:
    with pytest.raises(BadName, match="lone surrogate"):
        make("a\ud800b")


@example(subscription="a+b")
@example(subscription="a%2Fb")
@given(
    subscription=st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda s: s not in {".", ".."})
)
def test_a_subscription_survives_the_two_unquotings_of_the_broker(subscription: str) -> None:
    url = httpx.URL("http://broker:8080/admin/v2" + subscription_path("persistent://a/b/c", subscription))

    last = url.raw_path.decode().split("/")[-1]

    assert unquote_plus(unquote(last)) == subscription  # once by the web server, once by the broker's URLDecoder


@pytest.mark.parametrize(
    ("cursor", "subscription"),
    [
        ("billing", "billing"),
        # As 4.0.7 and 4.2.4 list them.
        ("a%3Ab%2Fc+d%25%C3%A9", "a:b/c d%é"),
        ("a%2Bb", "a+b"),
        ("a%253Ab", "a%3Ab"),
        ("x%7Ey*z", "x~y*z"),
        ("pulsar.dedup", "pulsar.dedup"),
        ("__compaction", "__compaction"),
        # No encoding of anything: plain names of readers.
        ("rr:x-reader-fec1df495b", "rr:x-reader-fec1df495b"),
        ("a%3ab", "a%3ab"),
        ("50%", "50%"),
        ("%FF", "%FF"),
    ],
)
def test_a_cursor_is_its_subscriptions(cursor: str, subscription: str) -> None:
    assert subscription_of(cursor) == subscription


@pytest.mark.parametrize(
    "topic",
    [
        "reminders",
        "acme/crm/reminders",
        "persistent://acme/crm",
        "persistent://acme/crm/a/b",
        "persistent://acme/crm/",
        "persistent://acme//reminders",
        "persistent://acme/crm/..",  # would be a call about the namespace
        "persistent://acme/../x",
        "kafka://acme/crm/reminders",
        "",
    ],
)
def test_what_is_no_full_topic_name_is_refused_by_name(topic: str) -> None:
    with pytest.raises(BadName) as refused:
        topic_path(topic)

    assert refused.value.name == topic
    assert refused.value.kind == "topic"


@pytest.mark.parametrize("namespace", ["acme", "acme/crm/x", "acme/", "/crm", "acme/..", "persistent://acme/crm"])
def test_what_is_no_namespace_is_refused(namespace: str) -> None:
    with pytest.raises(BadName):
        namespace_path(namespace)


@pytest.mark.parametrize("tenant", ["", ".", "..", "a/b"])
def test_what_is_no_tenant_is_refused(tenant: str) -> None:
    with pytest.raises(BadName):
        tenant_path(tenant)


@pytest.mark.parametrize("subscription", ["", ".", ".."])  # ".." would make a delete one of the topic
def test_a_subscription_that_would_lead_elsewhere_is_refused(subscription: str) -> None:
    with pytest.raises(BadName):
        subscription_path("persistent://a/b/c", subscription)
