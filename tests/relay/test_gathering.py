"""When the groups of a partition go, and which hops go together; what becomes of them: test_forwarding_worlds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pulsar
import pytest

from tests.support.manual_clock import ManualClock
from timewheel.client.results import SEEN_BEFORE
from timewheel.core.grouping import GROUP_BYTES, GROUP_MESSAGES, default_linger_ms
from timewheel.relay.driver.hop_producers import Confirmations, HopBatch, Member
from timewheel.relay.driver.source import Handle
from timewheel.relay.machine.relay_held import Gathering

TOPIC = "persistent://acme/crm/held"


# The moment


@pytest.mark.parametrize(("guard_ms", "linger_ms"), [(300_000, 1_000), (10_000, 1_000), (2_000, 200), (0, 0)])
def test_the_default_is_a_second_or_a_tenth_of_the_guard(guard_ms: int, linger_ms: int) -> None:
    assert default_linger_ms(guard_ms) == linger_ms


@pytest.mark.parametrize(
    ("joins", "send_at_ms"),
    [
        ([(50_000, 100)], 1_100),
        ([(50_000, 100), (50_000, 700)], 1_100),  # the first decides
        ([(2_100, 100)], 300),  # a tenth of its room
        ([(50_000, 100), (1_200, 700)], 750),  # until one comes that must go before
        ([(100, 100)], 100),
    ],
)
def test_all_go_when_the_first_must(joins: list[tuple[int, int]], send_at_ms: int) -> None:
    gathering = Gathering(1_000)
    for latest_ms, now_ms in joins:
        gathering.join(latest_ms, now_ms)
    assert gathering.send_at_ms == send_at_ms
    assert gathering.members == len(joins)


@pytest.mark.parametrize(("now_ms", "due"), [(1_000, False), (1_999, False), (2_000, True), (9_000, True), (999, True)])
def test_they_go_at_that_moment_and_when_the_clock_was_set_back(now_ms: int, *, due: bool) -> None:
    gathering = Gathering(1_000)
    gathering.join(1_000_000, 1_000)
    assert gathering.is_due(now_ms) is due


def test_without_members_nothing_goes() -> None:
    gathering = Gathering(1_000)
    assert not gathering.is_due(5_000)
    gathering.join(9_000, 1_000)
    gathering.leave()
    assert not gathering.is_due(5_000)
    gathering.join(9_000, 1_000)
    gathering.sent()
    assert not gathering.is_due(5_000)


# The members


def group(*sequence_ids: int, mark: int = -1, size: int = 1) -> HopBatch:
    found = HopBatch(TOPIC, -1, None, mark)
    for ordinal, sequence_id in enumerate(sequence_ids):
        found.add(Member(ordinal, None, {}, size), sequence_id)
    return found


@pytest.mark.parametrize(
    ("sequence_ids", "mark", "sequence_id", "takes"),
    [
        ([], 15, 20, True),
        ([20], 15, 30, True),
        ([10], 15, 15, True),
        ([10], 15, 16, False),  # it would straddle the mark
        ([10, 15], 15, 20, False),
        ([10], -1, 20, True),  # the broker knows nothing of this producer
    ],
)
def test_no_group_straddles_the_mark(sequence_ids: list[int], mark: int, sequence_id: int, *, takes: bool) -> None:
    assert group(*sequence_ids, mark=mark).takes(sequence_id, 1) is takes


def test_a_group_has_bounds_by_count_and_by_bytes() -> None:
    assert not group(*range(1, GROUP_MESSAGES + 1)).takes(GROUP_MESSAGES + 1, 1)
    assert group(1, size=GROUP_BYTES - 10).takes(2, 10)
    assert not group(1, size=GROUP_BYTES - 10).takes(2, 11)
    assert group().takes(1, 5 * GROUP_BYTES), "one alone may be larger"


def test_a_group_has_the_number_of_its_last_position() -> None:
    assert group(10, 12, 15).end == 15


# The outcome


def message_id(batch_index: int, ledger: int = 7) -> Any:
    return SimpleNamespace(batch_index=lambda: batch_index, ledger_id=lambda: ledger)


def told(members: HopBatch, result: Any, of_last: Any) -> Confirmations:
    confirmations = Confirmations(Handle(ManualClock()), ManualClock())
    confirmations.on_group(members, result, of_last)
    return confirmations


def test_the_last_message_tells_the_outcome_of_all() -> None:
    assert told(group(10, 12, 15), pulsar.Result.Ok, message_id(2)).take() == ([0, 1, 2], [])
    assert told(group(10), pulsar.Result.Ok, message_id(0)).take() == ([0], [])


def test_one_that_the_broker_had_of_an_earlier_session_is_confirmed_and_counted() -> None:
    confirmations = told(group(10, 12, mark=12), pulsar.Result.Ok, message_id(1, ledger=-1))
    assert confirmations.take() == ([0, 1], [])
    assert confirmations._handle.counts.deduplicated == 2


def test_one_that_the_broker_dropped_and_cannot_have_had_is_not_confirmed() -> None:
    """broker-facts: numbers-of-others"""
    confirmations = told(group(13, 15, mark=12), pulsar.Result.Ok, message_id(1, ledger=-1))
    assert confirmations.take() == ([], [(0, SEEN_BEFORE), (1, SEEN_BEFORE)])
    assert confirmations._handle.counts.deduplicated == 0


def test_a_failure_confirms_none() -> None:
    assert told(group(10, 12), pulsar.Result.Timeout, message_id(1)).take() == ([], [(0, "Timeout"), (1, "Timeout")])


@pytest.mark.parametrize("ledger", [7, -1])
def test_a_group_that_the_client_cut_is_neither_confirmed_nor_forgotten(ledger: int) -> None:
    cut = group(10, 12, 15)
    confirmations = told(cut, pulsar.Result.Ok, message_id(0, ledger))
    assert confirmations.take() == ([], [])
    assert list(confirmations.cut) == [(cut, False)]


def test_a_group_that_the_client_refuses_as_too_large_is_sent_one_by_one() -> None:
    large = group(10, 12)
    confirmations = told(large, pulsar.Result.MessageTooBig, message_id(-1, ledger=-1))
    assert confirmations.take() == ([], [])
    assert list(confirmations.cut) == [(large, True)]


def test_of_a_batch_that_the_client_made_one_entry_is_counted_and_every_message_confirmed() -> None:
    confirmations = Confirmations(Handle(ManualClock()), ManualClock())
    for ordinal, index in enumerate((0, 1, 2, 0, 1, -1)):  # batches of three and two, and one by itself
        confirmations.on_batched(ordinal, pulsar.Result.Ok, message_id(index))
    confirmations.on_batched(6, pulsar.Result.Ok, message_id(1, ledger=-1))
    assert confirmations._handle.counts.entries == 3
    confirmations.on_batched(7, pulsar.Result.Timeout, message_id(1))
    assert confirmations.take() == (list(range(6)), [(6, SEEN_BEFORE), (7, "Timeout")])


def test_what_the_broker_drops_is_stored_only_if_an_earlier_session_can_have_sent_it() -> None:
    confirmations = Confirmations(Handle(ManualClock()), ManualClock())
    for ordinal, is_new in enumerate((False, True)):
        confirmations.on_sent(ordinal, is_new, pulsar.Result.Ok, message_id(-1, ledger=-1))
    assert confirmations._handle.counts.deduplicated == 1
    assert confirmations.take() == ([0], [(1, SEEN_BEFORE)])
