"""Which entries are looked at, how many at once, batches, and what a sample says about the whole."""

from __future__ import annotations

import json
import random
import struct
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import combinations
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.broker_stats import internal_json
from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.entries import BatchedMessage, BatchGarbled, StoredEntry, messages_of_batch
from timewheel.broker.admin.topics import MAX_UNANSWERED, Topics
from timewheel.client.positions import EntryPosition
from timewheel.core.envelope import Envelope
from timewheel.core.errors import AdminDenied, AdminError, AdminMissing, AdminUnreachable, OwnerUnreachable
from timewheel.inspect.entries import Entries, Run
from timewheel.inspect.errors import NothingToSample
from timewheel.inspect.sample import (
    COLUMNS,
    IN_FLIGHT,
    MAX_SAMPLES,
    NOTE,
    Sample,
    SampledEntry,
    draw,
    figures_of,
    half_gini,
    sample,
    sampled,
    write_sample,
)
from timewheel.spark_planner.history.columns import HISTORY_COLUMNS

if TYPE_CHECKING:
    from pathlib import Path

TOPIC = "persistent://acme/crm/reminders"
STORED = [("a", Run(5, 0, 2)), ("a", Run(9, 0, 0)), ("b", Run(2, 0, 1))]


def entry(publish_ms: int, delay_ms: int = 0, **facts: Any) -> SampledEntry:
    usual: dict[str, Any] = {"size_bytes": 10, "key": None, "is_delayed": delay_ms > 0, "is_overdue": False}
    usual |= {"batch_messages": 0, "hops": None}
    return SampledEntry(publish_ms=publish_ms, due_ms=publish_ms + delay_ms, **(usual | facts))


def a_sample(*entries: SampledEntry, population: int, unread: int = 0) -> Sample:
    return Sample(
        topic=TOPIC, partitions=4, population=population, seed=7, sampled_at_ms=1_000, entries=entries, unread=unread
    )


# --- which entries


def test_all_numbers_lead_to_all_entries_once() -> None:
    expected = [(topic, EntryPosition(run.ledger, index)) for topic, run in STORED for index in range(run.entries)]
    assert list(Entries(STORED).places()) == expected


@given(population=st.integers(0, 300), samples=st.integers(1, 300), seed=st.integers())
def test_a_draw_repeats_nothing_and_can_be_repeated(population: int, samples: int, seed: int) -> None:
    drawn = draw(population, samples, seed)
    assert len(drawn) == len(set(drawn)) == min(samples, population)
    assert set(drawn) <= set(range(population))
    assert drawn == draw(population, samples, seed)


def test_each_entry_has_the_same_chance_and_so_has_each_pair() -> None:
    drawn = [draw(5, 2, seed) for seed in range(5_000)]
    # 2 of 5: each number in 2,000 of 5,000 draws, each of the 10 pairs in 500; standard deviations are 35 and 21.
    singles = Counter(number for numbers in drawn for number in numbers)
    pairs = Counter(tuple(sorted(numbers)) for numbers in drawn)
    assert [abs(singles[number] - 2_000) < 5 * 35 for number in range(5)] == [True] * 5
    assert [abs(pairs[pair] - 500) < 5 * 21 for pair in combinations(range(5), 2)] == [True] * 10


def test_a_draw_takes_memory_for_the_sample_and_not_for_the_topic() -> None:
    tracemalloc.start()
    try:
        drawn = draw(10**15, 10_000, 0)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(drawn) == 10_000
    assert peak_bytes < 5_000_000  # 10,000 numbers in a list and a set


# --- how they are looked at: against a broker made up by the test, since a real one cannot be held in mid-call


class OneLedger:
    """A topic without partitions with so many entries in one ledger; each is answered by ``answer``."""

    def __init__(self, entries: int, answer: Any) -> None:
        self._entries = entries
        self._answer = answer
        self.inspected: list[int] = []
        self._lock = threading.Lock()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path.endswith("/partitions"):
            return httpx.Response(200, json={"partitions": 0})
        if path.endswith("/internalStats"):
            return httpx.Response(200, json=internal_json([(3, self._entries, 0)]))
        number = int(path.rpartition("/")[2])
        with self._lock:
            self.inspected.append(number)
        return self._answer(number)  # type: ignore[no-any-return]

    def admin(self) -> AdminClient:
        return AdminClient("http://broker:8080", transport=httpx.MockTransport(self), retry_for_s=0)


def stored(number: int) -> httpx.Response:
    headers = {
        "X-Pulsar-Message-ID": f"3:{number}",
        "X-Pulsar-publish-time": f"2026-03-01T00:00:{number % 60:02d}Z",
        "X-Pulsar-deliver-at-time": "2026-03-02T00:00:00Z",
    }
    return httpx.Response(200, headers=headers, content=b"renew")


def gone(_number: int) -> httpx.Response:
    return httpx.Response(404, json={"reason": "Message not found"})


def test_so_many_calls_are_under_way_at_once_and_no_more() -> None:
    together = threading.Barrier(IN_FLIGHT)  # passes only if as many calls as that are waiting for their answer
    under_way, most = 0, 0
    lock = threading.Lock()

    def answer(number: int) -> httpx.Response:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        together.wait(timeout=20)
        with lock:
            under_way -= 1
        return stored(number)

    broker = OneLedger(5 * IN_FLIGHT, answer)
    progress: list[tuple[int, int]] = []
    with broker.admin() as admin:
        taken = sample(admin, TOPIC, now_ms=0, on_progress=lambda done, total: progress.append((done, total)))

    assert len(taken.entries) == 5 * IN_FLIGHT
    assert most == IN_FLIGHT
    assert progress == [(done, 40) for done in range(41)]


def taken_from(answer: Callable[[int], httpx.Response], entries: int = 100) -> Sample:
    with OneLedger(entries, answer).admin() as admin:
        return sample(admin, TOPIC, now_ms=0)


def test_an_entry_that_is_gone_is_asked_for_once_more_and_counted() -> None:
    broker = OneLedger(100, lambda number: gone(number) if number < 5 else stored(number))
    with broker.admin() as admin:
        taken = sample(admin, TOPIC, now_ms=0)
    assert (len(taken.entries), taken.unread, taken.population) == (95, 5, 100)
    assert taken.scale == pytest.approx(100 / 95)
    assert [Counter(broker.inspected)[number] for number in range(7)] == [2, 2, 2, 2, 2, 1, 1]


def test_an_entry_that_can_be_read_a_moment_later_is_in_the_sample() -> None:
    failed: set[int] = set()

    def answer(number: int) -> httpx.Response:
        if number < 5 and number not in failed:
            failed.add(number)
            return httpx.Response(500, json={"reason": "Topic is being unloaded"})
        return stored(number)

    taken = taken_from(answer)
    assert (len(taken.entries), taken.unread) == (100, 0)


def out_of_time(_number: int) -> httpx.Response:
    """As brokers answer for a message of the year 292,278,994."""
    return httpx.Response(200, headers={"X-Pulsar-Message-ID": "3:1", "X-Pulsar-publish-time": "+292278994-08-17"})


def silence(_number: int) -> httpx.Response:
    raise httpx.ReadTimeout("nothing came")


@pytest.mark.parametrize("odd", [out_of_time, silence])
def test_entries_that_cannot_be_read_for_their_own_sake_are_counted_apart(odd: Any) -> None:
    """Anybody who may produce can store some."""
    taken = taken_from(lambda number: odd(number) if number % 8 == 0 else stored(number), 160)
    assert (len(taken.entries), taken.unread, taken.unreadable) == (140, 20, 20)


def test_what_is_gone_is_not_among_what_cannot_be_read() -> None:
    def answer(number: int) -> httpx.Response:
        return gone(number) if number < 3 else out_of_time(number) if number < 8 else stored(number)

    taken = taken_from(answer)
    assert (taken.unread, taken.unreadable) == (8, 5)


def denied(_number: int) -> httpx.Response:
    return httpx.Response(403, json={"reason": "no permission to peek"})


def owner_away(_number: int) -> httpx.Response:
    raise OwnerUnreachable("GET entry", "no connection to its owner; try again", sent=False)


@pytest.mark.parametrize(
    ("answer", "error", "said", "most"),
    [
        (gone, NothingToSample, r"Message not found.*take fewer", 200),  # a tenth, and what was under way
        (silence, AdminUnreachable, "nothing came", 100),
        (denied, AdminDenied, "no permission to peek", 50),
        (owner_away, OwnerUnreachable, "no connection to its owner; try again", 50),
    ],
)
def test_what_concerns_more_than_an_entry_ends_it_long_before_all_are_asked_for(
    answer: Any, error: type[Exception], said: str, most: int
) -> None:
    broker = OneLedger(1_000, answer)
    with broker.admin() as admin, pytest.raises(error, match=said):
        sample(admin, TOPIC, now_ms=0)
    assert len(broker.inspected) < most


@pytest.mark.parametrize("samples", [0, -1, MAX_SAMPLES + 1])
def test_the_number_of_samples_has_limits(samples: int) -> None:
    with OneLedger(1, stored).admin() as admin, pytest.raises(ValueError, match="from 1 to 1,000,000 samples"):
        sample(admin, TOPIC, now_ms=0, samples=samples)


def stored_entry(**facts: Any) -> StoredEntry:
    usual: dict[str, Any] = {
        "position": EntryPosition(1, 0), "payload": b"12345", "publish_at_ms": 1_050, "event_at_ms": None,
        "deliver_at_ms": None, "properties": {}, "producer": "p", "sequence_id": 0, "partition_key": None,
        "ordering_key": None, "batch_messages": None, "null_payload": False, "encrypted": False,
    }  # fmt: skip
    return StoredEntry(**(usual | facts))


@pytest.mark.parametrize(
    ("facts", "publish_ms", "due_ms", "is_delayed", "hops"),
    [
        ({}, 1_050, 1_050, False, None),
        ({"deliver_at_ms": 9_000}, 1_050, 9_000, True, None),
        # The producer took it at 1,000 and asked the broker for 1.5 ticks before the due time.
        ({"deliver_at_ms": 8_500, "properties": Envelope("t", 10_000, 1_000).properties()}, 1_000, 10_000, True, 0),
        # In a tier, held by a relay: the broker delays nothing.
        ({"properties": Envelope("t", 10_000, 1_000).properties()}, 1_000, 10_000, True, 0),
        # Moved on: `entered_ms` is its last release, and when it was first sent is not known.
        ({"properties": Envelope("t", 10_000, 1_000, hops=3).properties()}, 1_050, 10_000, True, 3),
        ({"deliver_at_ms": 9_000, "properties": {"tw-id": "t", "tw-timer": "3 later"}}, 1_050, 9_000, True, None),
    ],
)  # fmt: skip
def test_a_row_goes_by_the_envelope_where_there_is_one(
    facts: dict[str, Any], publish_ms: int, due_ms: int, is_delayed: bool, hops: int | None
) -> None:
    row = sampled(stored_entry(**facts))
    assert (row.publish_ms, row.due_ms, row.is_delayed, row.hops) == (publish_ms, due_ms, is_delayed, hops)
    assert row.is_timewheel == (hops is not None)


# --- what it says


@given(st.lists(st.integers(0, 10**12), min_size=2, max_size=30).map(sorted))
def test_half_the_mean_difference_is_that_of_all_pairs(values: list[int]) -> None:
    pairs = [abs(one - other) for one, other in combinations(values, 2)]
    assert half_gini(values)[0] == pytest.approx(sum(pairs) / len(pairs) / 2, abs=1e-3)


def test_the_law_of_a_uniform_window_is_a_sixth_of_it() -> None:
    assert half_gini(range(60_001))[0] == pytest.approx(60_000 / 6, rel=1e-4)
    assert half_gini([42] * 10) == (0, 0)
    assert half_gini([42]) == (0, 0)


def test_the_figures_of_a_small_sample() -> None:
    entries = [
        entry(0, 8_000),
        entry(10_000, 4_000, hops=2),
        entry(20_000, is_delayed=True, is_overdue=True),
        entry(30_000, batch_messages=5),
    ]
    figures = figures_of(a_sample(*entries, population=40, unread=1))

    assert (figures.rows, figures.population, figures.scale, figures.unread) == (4, 40, 10.0, 1)
    assert (figures.delayed, figures.undelayed, figures.overdue) == (3, 1, 1)
    assert (figures.batches, figures.batched_messages, figures.timewheel_entries) == (1, 5, 1)
    assert (figures.first_publish_ms, figures.last_publish_ms) == (0, 30_000)
    assert figures.entries_per_second == pytest.approx(40 / (30 * 5 / 3))  # 4 entries span 3/5 of the whole
    assert figures.delay_mean_ms == 3_000  # of 8, 4, 0, 0 s
    # Deviations 5, 1, -3, -3 s: variance 44/3; 36 of 40 are unseen.
    assert figures.delay_mean_error_ms == pytest.approx(1.96 * 1_000 * (44 / 3 / 4 * 36 / 39) ** 0.5)
    assert (figures.delay_p50_ms, figures.delay_p90_ms, figures.delay_max_ms) == (0, 8_000, 8_000)
    assert figures.law_gaps == pytest.approx(0.8 * (4 + 8 + 8 + 4 + 4 + 0) / 6 / 2)


def test_who_reads_all_does_not_err() -> None:
    figures = figures_of(a_sample(entry(0, 5_000), entry(10_000, 1_000), population=2))
    assert figures.scale == 1
    assert (figures.delay_mean_error_ms, figures.law_gaps_error, figures.share_error) == (0, 0, 0)
    assert figures.entries_per_second == 0.2
    assert figures.law_gaps == pytest.approx(0.2 * 4 / 2)


def test_a_single_entry_has_no_rate() -> None:
    figures = figures_of(a_sample(entry(7, 5_000), population=100))
    assert (figures.entries_per_second, figures.law_gaps, figures.law_gaps_error) == (0, None, None)
    assert figures.delay_p99_ms == 5_000


@pytest.mark.parametrize(("last_ms", "law_gaps"), [(9_999, None), (10_000, pytest.approx(2 / 10 * 5 / 2))])
def test_the_law_speaks_of_a_topic_that_is_older_than_its_delays(last_ms: int, law_gaps: float | None) -> None:
    figures = figures_of(a_sample(entry(0, 10_000), entry(last_ms, 5_000), population=2))
    assert figures.law_gaps == law_gaps


def test_the_truth_lies_within_the_stated_errors_in_19_of_20_samples() -> None:
    source = random.Random(4)
    delays_ms = [int(source.expovariate(1 / 600_000)) for _ in range(2_000)]
    delays_ms += [source.randrange(3_600_000, 86_400_000) for _ in range(1_000)]
    whole = [entry(number * 100_000, delay_ms) for number, delay_ms in enumerate(delays_ms)]
    truth = figures_of(a_sample(*whole, population=3_000))
    assert truth.law_gaps is not None

    held: Counter[str] = Counter()
    for seed in range(400):
        taken = [whole[number] for number in sorted(draw(3_000, 300, seed))]
        figures = figures_of(a_sample(*taken, population=3_000))
        held["mean"] += abs(figures.delay_mean_ms - truth.delay_mean_ms) <= figures.delay_mean_error_ms
        rate = figures.entries_per_second / truth.entries_per_second  # taken as known by the error
        assert figures.law_gaps is not None
        assert figures.law_gaps_error is not None
        held["law"] += abs(figures.law_gaps / rate - truth.law_gaps) <= figures.law_gaps_error / rate
        long = sum(one.due_ms - one.publish_ms > 3_600_000 for one in taken) / 300
        held["share"] += abs(long - sum(delay_ms > 3_600_000 for delay_ms in delays_ms) / 3_000) <= figures.share_error
        assert rate == pytest.approx(1, rel=0.05)

    # 380 of 400 expected, standard deviation 4.4. The bound of shares holds for all delays at once, so more for one.
    assert 360 <= held["mean"] <= 395
    assert 360 <= held["law"] <= 395
    assert held["share"] >= 395


# --- the file


def test_the_file_has_the_planners_columns_and_says_what_it_is(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    taken = a_sample(entry(1_000, 5_000, key="k"), entry(2_000, size_bytes=0), population=10)
    write_sample(taken, figures_of(taken), tmp_path / "delays.parquet")

    table = pq.read_table(tmp_path / "delays.parquet")
    assert tuple(table.column_names) == COLUMNS == HISTORY_COLUMNS
    assert table.to_pylist() == [
        {"publish_ms": 1_000, "due_ms": 6_000, "size_bytes": 10, "key": "k", "topic": TOPIC},
        {"publish_ms": 2_000, "due_ms": 2_000, "size_bytes": 0, "key": None, "topic": TOPIC},
    ]
    note = json.loads(table.schema.metadata[NOTE])
    asked = {"format": 1, "topic": TOPIC, "partitions": 4, "population": 10, "rows": 2, "seed": 7}
    assert {name: note[name] for name in asked} == asked
    assert note["sampled_at_ms"] == 1_000
    assert note["scale"] == 5


FOUND: Any = object()


class Source:
    """Gives what it is told to, once each, and then no answer."""

    def __init__(self) -> None:
        self.next: list[Any] = []

    def entry(self, topic: str, _: EntryPosition) -> Any:
        given = self.next.pop(0) if self.next else AdminUnreachable(f"READ {topic}", "timed out", sent=True)
        if isinstance(given, Exception):
            raise given
        return given

    def close(self) -> None:
        """Nothing is open."""


def looking() -> tuple[Source, Callable[[], Any]]:
    source, http = Source(), None
    topics = Topics(http, source)  # type: ignore[arg-type]
    return source, lambda: topics.entry(TOPIC, EntryPosition(1, 2))


def unanswered(inspect: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        with pytest.raises(AdminError, match="the entry cannot be read: timed out") as caught:
            inspect()
        assert not isinstance(caught.value, AdminUnreachable)


def test_so_many_looks_in_a_row_without_an_answer_are_no_entry_s_trouble() -> None:
    _, inspect = looking()
    unanswered(inspect, MAX_UNANSWERED - 1)
    with pytest.raises(AdminUnreachable):
        inspect()


def test_an_owner_that_gives_no_answer_to_one_look_does_not_end_them_all() -> None:
    source, inspect = looking()
    source.next = [OwnerUnreachable("READ", "timed out", sent=True), FOUND]
    with pytest.raises(AdminError, match="the entry cannot be read: timed out") as caught:
        inspect()
    assert not isinstance(caught.value, OwnerUnreachable)
    assert inspect() is FOUND


@pytest.mark.parametrize("answer", [FOUND, AdminMissing(404, "READ", "none"), AdminError(200, "READ", "does not open")])
def test_any_answer_shows_that_the_broker_is_there(answer: Any) -> None:
    source, inspect = looking()
    for _ in range(3):
        unanswered(inspect, MAX_UNANSWERED - 1)
        source.next = [answer]
        if answer is FOUND:
            assert inspect() is FOUND
        else:
            with pytest.raises(type(answer)):
                inspect()


def test_what_was_never_sent_is_told_at_once() -> None:
    source, inspect = looking()
    source.next = [AdminUnreachable("READ", "refused", sent=False)]
    with pytest.raises(AdminUnreachable, match="refused"):
        inspect()


def varint(number: int) -> bytes:
    found = b""
    while number >= 0x80:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def message(payload: bytes, properties: dict[str, str], key: str | None, more: bytes = b"") -> bytes:
    """As `SingleMessageMetadata` of PulsarApi.proto says: properties 1, partition_key 2, payload_size 3."""
    metadata = b"".join(
        field(1, field(1, name.encode()) + field(2, value.encode())) for name, value in properties.items()
    )
    metadata += b"" if key is None else field(2, key.encode())
    metadata += field(3, len(payload)) + more
    return struct.pack(">I", len(metadata)) + metadata + payload


PROPERTIES = st.dictionaries(st.text(max_size=20), st.text(max_size=300), max_size=4)


@given(st.lists(st.tuples(st.binary(max_size=300), PROPERTIES, st.none() | st.text(max_size=20)), max_size=5))
def test_what_was_put_into_a_batch_comes_out(messages: list[tuple[bytes, dict[str, str], str | None]]) -> None:
    # Other fields are skipped: event_time 5, sequence_id 8, a fixed64 and a fixed32 of a later version.
    more = field(5, 1_700_000_000_000) + field(8, 300) + varint(40 << 3 | 1) + b"8" * 8 + varint(41 << 3 | 5) + b"4" * 4
    batch = b"".join(message(*one, more) for one in messages)
    assert tuple(messages_of_batch(batch, len(messages))) == tuple(
        BatchedMessage(properties=properties, partition_key=key, payload_bytes=len(payload), payload=payload)
        for payload, properties, key in messages
    )


@pytest.mark.parametrize(
    "batch",
    [
        b"",
        b"\0\0\0\xff",  # metadata longer than what is there, and empty
        message(b"payload", {"a": "b"}, None)[:-1],
        struct.pack(">I", 2) + bytes([1 << 3 | 3, 0]),  # a kind that protobuf has no longer
        struct.pack(">I", 12) + b"\xff" * 12,  # a number without an end
        struct.pack(">I", 4) + field(2, b"\xff\xff"),  # no text
    ],
)
def test_what_is_no_batch_is_told(batch: bytes) -> None:
    with pytest.raises(BatchGarbled):
        list(messages_of_batch(batch, 1))


@given(st.binary(max_size=60), st.integers(0, 3))
def test_no_bytes_do_more_harm_than_that(batch: bytes, count: int) -> None:
    with suppress(BatchGarbled):
        assert len(list(messages_of_batch(batch, count))) == count


def test_a_null_value_has_no_size() -> None:
    (found,) = messages_of_batch(struct.pack(">I", 11) + field(3, (1 << 64) - 1), 1)
    assert (found.payload_bytes, found.payload) == (0, b"")


def test_an_absurd_count_costs_what_its_bytes_hold() -> None:
    found = messages_of_batch(message(b"payload", {}, None), (1 << 31) - 1)
    assert next(found).payload == b"payload"
    with pytest.raises(BatchGarbled):
        next(found)
