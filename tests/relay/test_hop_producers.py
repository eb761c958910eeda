"""Producers of a partition, names that others hold, groups of hops, and the outcomes of sends."""

from __future__ import annotations

from collections import deque
from functools import partial
from types import SimpleNamespace
from typing import Any

import pulsar
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.client_messages import client_message
from tests.support.manual_clock import ManualClock
from timewheel.client.native import NO_SCHEMA
from timewheel.client.positions import Position
from timewheel.client.results import SEEN_BEFORE
from timewheel.core.grouping import GROUP_BYTES, GROUP_MESSAGES, default_linger_ms
from timewheel.core.names import Names
from timewheel.core.plan import Plan
from timewheel.relay.driver.hop_producers import (
    LONGEST_RUN,
    MAX_PRODUCERS,
    Confirmations,
    HopBatch,
    HopProducers,
    HopRuns,
    Member,
    Sent,
)
from timewheel.relay.driver.source import HELD_MS, PAUSE_MS, Handle, HeldNames
from timewheel.relay.machine.order import sequence_id
from timewheel.relay.machine.relay_held import Gathering

SOURCE = "persistent://acme/crm/held-partition-3"
NAMES = Names(Plan(due_topic="persistent://acme/crm/held", subscriptions=("billing",), partitions=4))


class Opened:
    """A producer that refuses to flush when told to."""

    def __init__(self, topic: str, name: str | None) -> None:
        self.topic, self.name = topic, name
        self.refuses = False
        self.mark = -1
        self.done: list[str] = []

    def last_sequence_id(self) -> int:
        return self.mark

    def flush(self) -> None:
        self.done.append("flush")
        if self.refuses:
            raise pulsar.ConnectError("not now")

    def close(self) -> None:
        self.done.append("close")


class Client:
    """Gives such producers, each name to one holder at a time."""

    def __init__(self) -> None:
        self.opened: list[Opened] = []
        self.marks: dict[str, int] = {}  # by topic: of whoever has a fixed name there

    def create_producer(self, topic: str, *, producer_name: str | None = None, **options: Any) -> Opened:
        fixed = producer_name is not None and producer_name.startswith("tw|")
        assert ("initial_sequence_id" in options) != fixed, (
            "with a random name it needs a first number, with a fixed one the broker is asked for the last"
        )
        assert producer_name is None or all(one.name != producer_name or "close" in one.done for one in self.opened), (
            "a name that is held"
        )
        opened = Opened(topic, producer_name)
        if fixed:
            opened.mark = self.marks.get(topic, -1)
        self.opened.append(opened)
        return opened


def producers_of(client: Client, **options: Any) -> HopProducers:
    return HopProducers(
        client, SOURCE, 3, names=NAMES, fingerprint="f", max_pending=10, send_timeout_ms=1_000, **options
    )


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def full(client: Client) -> HopProducers:
    """As many open as may be."""
    producers = producers_of(client)
    for number in range(MAX_PRODUCERS):
        producers.to(f"persistent://acme/crm/t-{number}", NO_SCHEMA, named=True)
    return producers


def test_the_oldest_makes_room_and_nothing_of_it_is_under_way(client: Client, full: HopProducers) -> None:
    full.to("persistent://acme/crm/more", NO_SCHEMA, named=True)
    assert len(full) == MAX_PRODUCERS
    assert client.opened[0].done == ["flush", "close"]
    assert all(not one.done for one in client.opened[1:])


def test_one_that_refuses_to_flush_is_closed_and_its_name_is_free(client: Client, full: HopProducers) -> None:
    oldest = client.opened[0]
    oldest.refuses = True
    with pytest.raises(pulsar.ConnectError):
        full.to("persistent://acme/crm/more", NO_SCHEMA, named=True)
    assert oldest.done == ["flush", "close"]
    again = full.to("persistent://acme/crm/t-0", NO_SCHEMA, named=True)
    assert again.name == oldest.name


def test_unnamed_producers_have_random_names_and_a_first_number_of_their_own(client: Client) -> None:
    """broker-facts: numbers-used-twice"""
    producers = producers_of(client)
    for delayed in (True, False):
        producers.to("persistent://acme/crm/t", NO_SCHEMA, named=False, delayed=delayed)
    producers.to_dead_letters("persistent://acme/crm/dead")
    names = [one.name for one in client.opened]
    assert len(set(names)) == 3
    assert all(name is not None and name.startswith("tw-") for name in names)


LAST = Position(7, 5, -1)  # of the source, whose head is at 7:3


@pytest.mark.parametrize("lane", ["single", "group"])
@pytest.mark.parametrize(
    ("mark", "asks", "is_forged"),
    [
        (-1, 0, False),
        (sequence_id(Position(7, 2, -1)), 0, False),
        (sequence_id(Position(7, 3, -1)), 0, False),
        (sequence_id(Position(7, 5, -1)), 1, False),
        (sequence_id(Position(7, 5, 900)), 1, False),
        (sequence_id(Position(7, 6, -1)), 1, True),
        (sequence_id(Position(8, 0, -1)), 1, True),
        (1 << 62, 1, True),
    ],
)
def test_nothing_is_sent_under_a_name_whose_mark_its_relay_cannot_have_left(
    client: Client, lane: str, mark: int, asks: int, *, is_forged: bool
) -> None:
    """broker-facts: numbers-of-others"""
    asked: list[Position] = []
    told: list[Any] = []

    def last() -> Position:
        asked.append(LAST)
        return LAST

    tools: Any = SimpleNamespace(
        client=client,
        names=NAMES,
        router=SimpleNamespace(fingerprint="f"),
        max_in_flight=10,
        send_timeout_ms=1_000,
        alarms=SimpleNamespace(raised=told.append),
    )
    source: Any = SimpleNamespace(name=SOURCE, partition=3)
    producers = HopProducers.of(source, tools, HeldNames(), lambda: Position(7, 3, -1), last)
    topic = "persistent://acme/crm/t"
    client.marks[f"{topic}-partition-3"] = mark

    def take() -> Any:
        if lane == "single":
            return producers.to(topic, NO_SCHEMA, named=True)
        producer, its_mark = producers.for_groups(topic, NO_SCHEMA)
        assert its_mark == (-1 if is_forged else mark)
        return producer

    producer = take()
    assert take() is producer
    assert len(asked) == asks
    assert [event.destination for event in told] == [f"{topic}-partition-3"] * is_forged
    fixed = client.opened[0]
    assert (producer is fixed) is not is_forged
    assert not fixed.done, "it is the lease"
    number = sequence_id(Position(7, 4, -1))
    assert producers.is_new(producer, number) is (is_forged or number > mark)
    producers.give_back()
    assert len(producers) == 0
    assert all(one.done == ["close"] for one in client.opened)


def test_the_lease_of_a_forged_name_is_free_when_its_stand_in_makes_room(client: Client) -> None:
    producers = producers_of(client, is_forged=lambda *_: True)
    first = "persistent://acme/crm/t-0"
    client.marks[f"{first}-partition-3"] = 1 << 62
    stand_in = producers.to(first, NO_SCHEMA, named=True)
    for number in range(1, MAX_PRODUCERS + 1):
        producers.to(f"persistent://acme/crm/t-{number}", NO_SCHEMA, named=True)
    assert stand_in.done == ["flush", "close"]
    assert client.opened[0].done == ["close"]
    assert producers.to(first, NO_SCHEMA, named=True) is not stand_in, "its name can be had again"


NAME = "tw|a|b|-1|f"


def refused(held: HeldNames, *, from_ms: int, to_ms: int) -> list[bool]:
    return [held.is_strangers(NAME, now_ms) for now_ms in range(from_ms, to_ms + 1, PAUSE_MS // 2)]


def test_a_name_that_is_refused_for_long_is_a_strangers_until_it_is_given() -> None:
    held = HeldNames()
    *before, last = refused(held, from_ms=0, to_ms=HELD_MS)
    assert (any(before), last) == (False, True)
    assert held.is_strangers(NAME, 10 * HELD_MS), "also after a silence"
    assert not held.is_strangers("another", 10 * HELD_MS)
    held.is_free(NAME)
    assert not held.is_strangers(NAME, 10 * HELD_MS)


def test_a_name_may_have_been_free_between_two_refusals_that_are_far_apart() -> None:
    held = HeldNames()
    assert not any(refused(held, from_ms=0, to_ms=HELD_MS - PAUSE_MS))
    again_ms = HELD_MS + PAUSE_MS
    assert not any(refused(held, from_ms=again_ms, to_ms=again_ms + HELD_MS - PAUSE_MS))
    assert held.is_strangers(NAME, again_ms + HELD_MS)


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
    for ordinal, number in enumerate(sequence_ids):
        found.add(Member(ordinal, None, {}, size), number)
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
    assert group(10, 12, 15).end == 15, "it has the number of its last position"


# The outcome


def message_id(batch_index: int, ledger: int = 7) -> Any:
    return SimpleNamespace(batch_index=lambda: batch_index, ledger_id=lambda: ledger)


def told(members: HopBatch, result: Any, of_last: Any) -> Confirmations:
    confirmations = Confirmations(Handle(ManualClock()), ManualClock())
    confirmations.on_group(members, result, of_last)
    return confirmations


@pytest.mark.parametrize(
    ("members", "result", "of_last", "outcomes", "deduplicated"),
    [
        (group(10, 12, 15), pulsar.Result.Ok, message_id(2), ([0, 1, 2], []), 0),
        (group(10), pulsar.Result.Ok, message_id(0), ([0], []), 0),
        (group(10, 12, mark=12), pulsar.Result.Ok, message_id(1, ledger=-1), ([0, 1], []), 2),  # of an earlier session
        (  # dropped, though the broker cannot have had it (broker-facts: numbers-of-others)
            group(13, 15, mark=12),
            pulsar.Result.Ok,
            message_id(1, ledger=-1),
            ([], [(0, SEEN_BEFORE), (1, SEEN_BEFORE)]),
            0,
        ),
        (group(10, 12), pulsar.Result.Timeout, message_id(1), ([], [(0, "Timeout"), (1, "Timeout")]), 0),
    ],
)
def test_the_last_message_tells_the_outcome_of_all(
    members: HopBatch, result: Any, of_last: Any, outcomes: Any, deduplicated: int
) -> None:
    confirmations = told(members, result, of_last)
    assert confirmations.take() == outcomes
    assert confirmations._handle.counts.deduplicated == deduplicated


@pytest.mark.parametrize(
    ("result", "of_last", "refused"),
    [
        (pulsar.Result.Ok, message_id(0), False),
        (pulsar.Result.Ok, message_id(0, -1), False),
        (pulsar.Result.MessageTooBig, message_id(-1, -1), True),
        (pulsar.Result.ChecksumError, message_id(-1, -1), True),
    ],
)
def test_a_group_that_the_client_cut_or_refuses_is_neither_confirmed_nor_forgotten(
    result: Any, of_last: Any, *, refused: bool
) -> None:
    cut = group(10, 12, 15)
    confirmations = told(cut, result, of_last)
    assert confirmations.take() == ([], [])
    assert list(confirmations.cut) == [(cut, refused)]


def test_of_a_batch_that_the_client_made_one_entry_is_counted_and_every_message_confirmed() -> None:
    confirmations = Confirmations(Handle(ManualClock()), ManualClock())
    for ordinal, index in enumerate((0, 1, 2, 0, 1, -1)):  # batches of three and two, and one by itself
        confirmations.on_sent(ordinal, pulsar.Result.Ok, message_id(index))
    confirmations.on_sent(6, pulsar.Result.Ok, message_id(1, ledger=-1))
    assert confirmations._handle.counts.entries == 3
    confirmations.on_sent(7, pulsar.Result.Timeout, message_id(1))
    assert confirmations.take() == (list(range(6)), [(6, SEEN_BEFORE), (7, "Timeout")])


def test_what_the_broker_drops_is_stored_only_if_an_earlier_session_can_have_sent_it() -> None:
    confirmations = Confirmations(Handle(ManualClock()), ManualClock())
    for ordinal, is_new in enumerate((False, True)):
        confirmations.on_run([Sent(ordinal, is_new, {})], pulsar.Result.Ok, message_id(-1, ledger=-1))
    assert confirmations._handle.counts.deduplicated == 1
    assert confirmations.take() == ([0], [(1, SEEN_BEFORE)])


# Hops in runs


class Answering:
    """A producer that answers in order, when told to, or refuses a message on the spot."""

    def __init__(self) -> None:
        self.callbacks: list[Any] = []
        self.numbers: list[int] = []
        self.refuses: set[int] = set()

    def send_async(self, _content: Any, callback: Any, *, sequence_id: int, **_: Any) -> None:
        if sequence_id in self.refuses:
            callback(pulsar.Result.MemoryBufferIsFull, message_id(-1, -1))
            return
        self.numbers.append(sequence_id)
        self.callbacks.append(callback)

    def answer(self, count: int) -> None:
        for callback in self.callbacks[:count]:
            callback(pulsar.Result.Ok, message_id(-1))
        del self.callbacks[:count]

    @property
    def is_heard(self) -> bool:
        """True if the last callback that is pending is in Python: somebody is woken."""
        return not self.callbacks or isinstance(self.callbacks[-1], partial)


class Running:
    """Hops in runs, and the outcomes recorded so far."""

    def __init__(self) -> None:
        self.confirmations = Confirmations(Handle(ManualClock()), ManualClock())
        self.runs = HopRuns(self.confirmations.on_run)
        self.producers = [Answering(), Answering()]
        self.confirmed: list[int] = []
        self.failed: dict[int, str] = {}
        self.added = 0

    def add(self, producer: Answering) -> None:
        self.added += 1
        self.runs.add(producer, MESSAGE, {}, 0, self.added, Sent(self.added, True, {}))

    def take(self) -> None:
        ordinals, failures = self.confirmations.take()
        self.confirmed += ordinals
        assert not self.failed.keys() & dict(failures).keys()
        self.failed |= dict(failures)


MESSAGE = client_message()
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 1)),
        st.tuples(st.just("answer"), st.integers(1, 80)),
        st.tuples(st.just("end"), st.just(0)),
        st.tuples(st.just("refuse"), st.integers(1, 3)),
    ),
    max_size=200,
)


@given(STEPS)
def test_each_hop_of_a_run_has_its_own_outcome_once(steps: list[tuple[str, int]]) -> None:
    running = Running()
    for step, number in steps:
        match step:
            case "add":
                running.add(running.producers[number])
            case "answer":
                running.producers[number % 2].answer(number)
            case "refuse":
                for producer in running.producers:
                    producer.refuses.add(running.added + number)
            case _:
                running.runs.end()
                is_heard = all(producer.is_heard for producer in running.producers)
                assert is_heard or running.confirmations._unheard, "a run whose end wakes nobody"
        running.take()
    running.runs.end()
    for producer in running.producers:
        producer.answer(len(producer.callbacks))
    running.take()
    refused = {n for n in range(1, running.added + 1) if n in running.producers[0].refuses}
    assert running.failed == dict.fromkeys(refused, "MemoryBufferIsFull")
    assert sorted(running.confirmed) == [n for n in range(1, running.added + 1) if n not in refused]
    assert all(producer.numbers == sorted(producer.numbers) for producer in running.producers)


def test_one_hop_of_a_run_has_a_callback_in_python() -> None:
    running = Running()
    producer = running.producers[0]
    for _ in range(3 * LONGEST_RUN):
        running.add(producer)
    running.runs.end()
    assert sum(isinstance(callback, partial) for callback in producer.callbacks) == 3


def test_after_a_refusal_no_hop_is_sent_before_it_is_seen() -> None:
    running = Running()
    producer = running.producers[0]
    producer.refuses = {2}
    for _ in range(3):
        running.add(producer)
    assert producer.numbers == [1], "the third is held back"
    assert running.confirmations.outcomes == deque([(2, "MemoryBufferIsFull")])


def test_before_a_producer_is_closed_for_room_what_is_held_back_is_sent() -> None:
    producers = producers_of(Client())
    producers.send_held = lambda: order.append("sent")
    order: list[str] = []
    for n in range(MAX_PRODUCERS + 1):
        producers.to(f"persistent://acme/crm/held-{n}", NO_SCHEMA, named=True)
    assert order == ["sent"]


def test_named_producers_have_no_send_time_out() -> None:
    """After one, the client would send later messages without the earlier ones (broker-facts: exact-hops)."""
    options: list[dict[str, Any]] = []

    class Asked(Client):
        def create_producer(self, topic: str, **given: Any) -> Opened:
            options.append(given)
            return super().create_producer(topic, **given)

    producers = producers_of(Asked())
    producers.to(NAMES.dead_letter, NO_SCHEMA, named=True)
    producers.to(NAMES.dead_letter, NO_SCHEMA, named=False)
    assert [given["send_timeout_millis"] for given in options] == [0, 1_000]
