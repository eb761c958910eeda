"""From the brokers' JSON to values; what the brokers really answer is in tests/broker/test_admin.py."""

from __future__ import annotations

import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timewheel.broker.admin.entries import read_entry
from timewheel.broker.admin.stats import (
    CursorStats,
    read_internal_stats,
    read_partitioned_stats,
    read_topic_stats,
    stats_query,
)
from timewheel.client.positions import EntryPosition
from timewheel.core.errors import AdminError


def cursor(acked_text: str) -> CursorStats:
    return CursorStats(
        mark_delete=EntryPosition(90, -1),
        read=EntryPosition(90, 4),
        gap_count=0,
        entries_since_mark_delete=0,
        consumed=0,
        cursor_ledger=93,
        state="Open",
        acked_text=acked_text,
    )


@given(st.lists(st.tuples(*[st.integers(-1, 2**62)] * 4)))
def test_any_ranges_are_read_back(ranges: list[tuple[int, int, int, int]]) -> None:
    text = "[" + ",".join(f"({a}:{b}..{c}:{d}]" for a, b, c, d in ranges) + "]"

    found = [(*acked.after, *acked.upto) for acked in cursor(text).acked_ranges()]

    assert found == ranges


def internal(ledgers: list[tuple[int, int]], current_entries: int) -> dict[str, object]:
    return {
        "numberOfEntries": 1,
        "entriesAddedCounter": 1,
        "totalSize": 1,
        "lastConfirmedEntry": "9:-1",
        "state": "LedgerOpened",
        "currentLedgerEntries": current_entries,
        "currentLedgerSize": 7 * current_entries,
        "ledgers": [{"ledgerId": ledger, "entries": entries, "size": 7 * entries} for ledger, entries in ledgers],
    }


def test_the_open_ledger_that_brokers_list_as_empty_is_counted() -> None:
    stats = read_internal_stats(internal([(5, 5_000), (9, 0)], current_entries=123))

    assert [(ledger.ledger_id, ledger.entries, ledger.size_bytes) for ledger in stats.ledgers] == [
        (5, 5_000, 35_000),
        (9, 123, 861),
    ]
    assert stats.last_confirmed == EntryPosition(9, -1)


def test_a_closed_last_ledger_is_left_as_it_is() -> None:
    stats = read_internal_stats(internal([(5, 5_000)], current_entries=0))

    assert stats.ledgers[0].entries == 5_000


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
