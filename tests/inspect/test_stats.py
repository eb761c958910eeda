"""From the brokers' JSON, names and settings to values; what brokers really answer is in tests/broker/test_admin.py."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from urllib.parse import unquote, unquote_plus

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.core.test_tokens import token_of
from tests.support.broker_stats import cursor_stats, internal_json
from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.entries import read_entry
from timewheel.broker.admin.http import MAX_REASON_CHARACTERS, error_of
from timewheel.broker.admin.names import namespace_path, subscription_of, subscription_path, tenant_path, topic_path
from timewheel.broker.admin.stats import read_internal_stats, read_partitioned_stats, read_topic_stats, stats_query
from timewheel.client.positions import EntryPosition
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.errors import AdminDenied, AdminError, AdminMissing, BadName
from timewheel.hooks import Event
from timewheel.inspect.profile import profile_of


@given(st.lists(st.tuples(*[st.integers(-1, 2**62)] * 4)))
def test_any_ranges_are_read_back(ranges: list[tuple[int, int, int, int]]) -> None:
    text = "[" + ",".join(f"({a}:{b}..{c}:{d}]" for a, b, c, d in ranges) + "]"
    found = [(*acked.after, *acked.upto) for acked in cursor_stats(acked_text=text).acked_ranges()]
    assert found == ranges


def test_the_open_ledger_that_brokers_list_as_empty_is_counted() -> None:
    stored = internal_json([(5, 5_000, 35_000), (9, 0, 0)], currentLedgerEntries=123, currentLedgerSize=861)
    stats = read_internal_stats(stored)
    assert [(ledger.ledger_id, ledger.entries, ledger.size_bytes) for ledger in stats.ledgers] == [
        (5, 5_000, 35_000),
        (9, 123, 861),
    ]
    assert stats.last_confirmed == EntryPosition(9, -1)


def test_a_closed_last_ledger_is_left_as_it_is() -> None:
    stored = internal_json([(5, 5_000, 35_000)], currentLedgerEntries=0, currentLedgerSize=0)
    assert read_internal_stats(stored).ledgers[0].entries == 5_000


@pytest.mark.parametrize(("failed_after_ms", "is_failing"), [(None, False), (-1, False), (1, True)])
def test_a_ledger_that_could_not_be_made_counts_until_one_is_made(
    failed_after_ms: int | None, is_failing: bool
) -> None:
    def text(ms: int) -> str:
        return f"2026-11-27T09:18:39.{ms:03}Z"

    times = {"lastLedgerCreatedTimestamp": text(500)}
    if failed_after_ms is not None:
        times["lastLedgerCreationFailureTimestamp"] = text(500 + failed_after_ms)
    stats = read_internal_stats({**internal_json(), **times})
    assert (stats.no_ledger_since_ms is not None) is is_failing


def test_clients_that_were_not_asked_for_are_unknown_not_absent() -> None:
    stored = {"publishers": [], "subscriptions": {"s": {"type": "Shared", "consumers": []}}}
    without = read_topic_stats(stored, clients=False)
    with_clients = read_topic_stats(stored, clients=True)
    assert (without.publishers, without.subscriptions["s"].consumers) == (None, None)
    assert (with_clients.publishers, with_clients.subscriptions["s"].consumers) == (0, ())


def test_gaps_of_a_topic_are_those_of_all_its_subscriptions() -> None:
    stored = {
        "metadata": {"partitions": 2},
        "subscriptions": {
            "a": {"nonContiguousDeletedMessagesRanges": 3},
            "b": {"nonContiguousDeletedMessagesRanges": 4},
        },
    }

    stats = read_partitioned_stats(stored, clients=False)

    assert stats.total.gap_count == 3 + 4
    assert (stats.partition_count, stats.partitions) == (2, {})


def test_what_costs_the_broker_is_asked_for_only_on_demand() -> None:
    cheap = stats_query(precise_backlog=False, clients=False)
    dear = stats_query(precise_backlog=True, clients=True)
    assert cheap["getPreciseBacklog"] == "false"
    assert cheap["excludeConsumers"] == cheap["excludePublishers"] == "true"
    assert dear["getPreciseBacklog"] == "true"
    assert "excludeConsumers" not in dear


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-11-21T02:22:40.9Z", 1795227760900),
        ("2026-11-21T02:22:40Z", 1795227760000),
        ("2026-11-21T02:22:40.001Z", 1795227760001),
        ("2026-11-21T03:22:40.912+01:00", 1795227760912),
    ],
)
def test_times_of_an_entry_are_exact_milliseconds(text: str, ms: int) -> None:
    answer = httpx.Response(200, headers={"X-Pulsar-Message-ID": "97:0", "X-Pulsar-publish-time": text}, content=b"x")

    entry = read_entry(answer)

    assert entry.publish_at_ms == ms
    assert entry.position == EntryPosition(97, 0)
    assert not entry.is_replicated
    assert (entry.deliver_at_ms, entry.event_at_ms, entry.batch_messages, entry.null_payload) == (
        None,
        None,
        None,
        False,
    )


def test_headers_of_an_entry_are_read_as_latin_1_also_where_they_happen_to_be_utf_8() -> None:
    raw = [
        (b"X-Pulsar-Message-ID", b"97:0"),
        (b"X-Pulsar-publish-time", b"2026-11-21T02:22:40.9Z"),
        (b"X-Pulsar-partition-key", "Ã¼".encode("latin-1")),  # its bytes are also UTF-8 for another letter
    ]
    assert read_entry(httpx.Response(200, headers=raw)).partition_key == "Ã¼"


def test_properties_are_read_in_one_header_and_in_a_header_each() -> None:
    whole = {"tw-id": "sub-42", "Key": "a: b", "key": "", "x": "ü "}
    required = [(b"X-Pulsar-Message-ID", b"97:0"), (b"X-Pulsar-publish-time", b"2026-11-21T02:22:40.9Z")]
    in_one = [(b"X-Pulsar-PROPERTY", json.dumps(whole).encode())]
    each = [(f"X-Pulsar-PROPERTY-{key}".encode(), value.encode("latin-1")) for key, value in whole.items()]
    for headers in (in_one, each):
        assert read_entry(httpx.Response(200, headers=[*required, *headers])).properties == whole
    assert read_entry(httpx.Response(200, headers=required)).properties == {}


@pytest.mark.parametrize(
    "odd",
    [
        {"X-Pulsar-publish-time": "+292278994-08-17T07:12:55.807Z"},
        {"X-Pulsar-deliver-at-time": "-292275055-05-16T16:47:04.192Z"},
        {"X-Pulsar-num-batch-message": "2147483647"},
        {"X-Pulsar-num-batch-message": "-1"},
        {"X-Pulsar-Message-ID": "nothing"},
        {"X-Pulsar-Message-ID": None},
    ],
)
def test_what_a_producer_wrote_and_cannot_be_read_is_an_error_of_that_entry(odd: dict[str, str | None]) -> None:
    usual = {"X-Pulsar-Message-ID": "1:2", "X-Pulsar-publish-time": "2026-11-25T10:00:00Z"}
    headers = {name: value for name, value in (usual | odd).items() if value is not None}
    answer = httpx.Response(200, headers=headers, content=b"x" * 11, request=httpx.Request("GET", "http://b/entry/2"))
    with pytest.raises(AdminError, match=r"GET /entry/2 failed .200.: the entry cannot be read"):
        read_entry(answer)


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


def of_subscription(name: str) -> str:
    return subscription_path("persistent://a/b/c", name)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (namespace_path, ["acme", "acme/crm/x", "acme/", "/crm", "acme/..", "persistent://acme/crm"]),
        (tenant_path, ["", ".", "..", "a/b", "a\ud800b"]),
        (of_subscription, ["", ".", "..", "a\ud800b"]),  # ".." would make a delete one of the topic
    ],
)
def test_a_name_that_would_lead_elsewhere_is_refused(make: Callable[[str], str], names: list[str]) -> None:
    for name in names:
        with pytest.raises(BadName, match="lone surrogate" if "\ud800" in name else re.escape(name) or "empty"):
            make(name)


TOPIC_CALL = "POST /admin/v2/persistent/acme/crm/reminders/messageTTL"


@pytest.mark.parametrize(
    ("status", "kind", "builtin"),
    [(401, AdminDenied, PermissionError), (403, AdminDenied, PermissionError), (404, AdminMissing, LookupError)],
)
def test_the_error_says_whose_fault_by_its_type(status: int, kind: type, builtin: type) -> None:
    error = error_of(httpx.Response(status, json={"reason": "because"}), TOPIC_CALL, None)
    assert isinstance(error, kind)
    assert isinstance(error, builtin)
    assert (error.status, error.endpoint) == (status, TOPIC_CALL)


SETTINGS_CALL = "GET /admin/v2/brokers/configuration/runtime"


@pytest.mark.parametrize(
    ("call", "token", "said"),
    [
        (TOPIC_CALL, token_of({"sub": "bob"}), ["no way", "the token's role is 'bob'", "an admin of tenant 'acme'"]),
        (
            *(TOPIC_CALL, token_of({"sub": "bob", "exp": 1_700_000_000})),
            ["the token's role is 'bob', valid until 2023-11-14 22:13:20Z"],
        ),
        (SETTINGS_CALL, None, ["no token was sent", "superuser"]),
    ],
)
def test_a_denial_names_endpoint_reason_role_and_what_would_be_needed(
    call: str, token: str | None, said: list[str]
) -> None:
    text = str(error_of(httpx.Response(403, json={"reason": "no way"}), call, token))
    assert call in text
    assert [words for words in said if words not in text] == []


def test_of_a_stack_trace_only_the_message_remains() -> None:
    # As 4.0.7 and 4.2.4 answer when an entry is asked for that is not written yet.
    trace = (
        "\n --- An unexpected error occurred in the server ---\n\n"
        "Message: LastConfirmedEntry is 97:1 when reading entry 2\n\n"
        "Stacktrace:\n\norg.apache.bookkeeper.mledger.ManagedLedgerException: LastConfirmedEntry is 97:1\n\tat x.y(Z)"
    )
    error = error_of(httpx.Response(500, json={"reason": trace}), TOPIC_CALL, None)
    assert type(error) is AdminError
    assert error.reason == "LastConfirmedEntry is 97:1 when reading entry 2"


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (httpx.Response(405, html="<html><h2>HTTP ERROR 405</h2></html>"), "Method Not Allowed"),
        (httpx.Response(503, text="try later"), "try later"),
        (httpx.Response(503, json=["odd"]), '["odd"]'),
        (httpx.Response(503), "Service Unavailable"),
        (httpx.Response(500, json={"reason": "x" * 5_000}), "x" * MAX_REASON_CHARACTERS + "..."),
    ],
)
def test_every_answer_yields_a_short_reason(response: httpx.Response, reason: str) -> None:
    assert error_of(response, TOPIC_CALL, None).reason == reason


@pytest.mark.parametrize(("version", "line"), [("4.0.7", "4.0"), ("4.2.4", "4.2"), ("5.0.0", "5.0")])
def test_a_role_that_may_not_read_settings_gets_the_versions_defaults_and_a_warning(version: str, line: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/brokers/version"):
            return httpx.Response(200, text=version)
        return httpx.Response(403, json={"reason": "not a superuser"})

    events: list[Event] = []
    with AdminClient("http://b:1", transport=httpx.MockTransport(answer), hooks=(events.append,)) as admin:
        profile = profile_of(admin)

    assert profile.name == version
    assert profile.gap_limit_ranges == BrokerProfile.named(line).gap_limit_ranges
    assert profile.ack_format == BrokerProfile.named(line).ack_format
    assert [event.name for event in events] == ["broker_configuration_denied"]


STOPPED = {
    "markDeletePosition": "371:-1", "readPosition": "371:0", "waitingReadOp": False, "pendingReadOps": 0,
    "subscriptionHavePendingRead": False, "subscriptionHavePendingReplayRead": False, "state": "NoLedger",
    "totalNonContiguousDeletedMessagesRange": 0, "numberOfEntriesSinceFirstNotAckedMessage": 214,
    "messagesConsumedCounter": 0, "cursorLedger": -1, "individuallyDeletedMessages": "[]",
}  # fmt: skip
"""The cursor that a broker of 4.0.7 read no more after an outage of its bookies."""


@pytest.mark.parametrize(
    ("facts", "is_read"),
    [
        ({}, False),
        ({"waitingReadOp": True}, True),
        ({"pendingReadOps": 1}, True),
        ({"subscriptionHavePendingRead": True}, True),
        ({"subscriptionHavePendingReplayRead": True}, True),
    ],
)
def test_a_cursor_is_read_while_any_read_is_under_way(facts: dict[str, object], is_read: bool) -> None:
    stats = read_internal_stats(internal_json(cursors={"billing": STOPPED | facts}))
    assert stats.cursors["billing"].is_read is is_read


@pytest.mark.parametrize(
    ("facts", "permits", "is_expected"),
    [
        ({"msgBacklog": 214}, 1_000, True),
        ({"msgBacklog": 214}, 0, False),
        ({"msgBacklog": 0}, 1_000, False),
        ({"msgBacklog": 214, "msgDelayed": 214}, 1_000, False),
        ({"msgBacklog": 214, "unackedMessages": 1}, 1_000, False),
        ({"msgBacklog": 214, "type": "Failover", "activeConsumerName": "one"}, 1_000, True),
        ({"msgBacklog": 214, "type": "Failover", "activeConsumerName": "another"}, 1_000, False),
    ],
)
def test_a_subscription_should_be_read_if_what_waits_is_due_and_asked_for(
    facts: dict[str, object], permits: int, is_expected: bool
) -> None:
    consumers = [{"consumerName": "one", "availablePermits": permits}]
    stored = {"publishers": [], "subscriptions": {"billing": {"type": "Shared", "consumers": consumers, **facts}}}
    assert read_topic_stats(stored, clients=True).subscriptions["billing"].should_be_read is is_expected
