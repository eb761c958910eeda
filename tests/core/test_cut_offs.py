"""Cancellations: read and packed as they were written, merged by maximum in any order, forgotten never too early."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timewheel.core.cancellations import (
    BUCKET_MS,
    MAX_REFUSED,
    Answer,
    Cancellation,
    CancellationTable,
    Stamps,
    answer_of,
    is_too_late,
    latest_forget_ms,
    packs,
    read_cancellations,
)
from timewheel.core.durations import DAY_MS
from timewheel.core.envelope import MAX_GENERATION, MAX_TIME_MS, Envelope, Life
from timewheel.core.errors import CancellationUnreadable

NOW_MS = 1_767_225_600_000

kinds = st.sampled_from(["timer", "group"])
# Any short text, and a few letters to any length: to draw any text of any length takes longer than all else here.
short = st.text(min_size=1, max_size=8)
long = st.builds(lambda dead_letters, times: (dead_letters * times)[:256], short, st.integers(1, 256))
cancellations = st.builds(
    Cancellation,
    kind=kinds,
    name=st.sampled_from(["a", "b", "order 7"]) | short | long,
    cut=st.integers(0, MAX_GENERATION),
    forget_ms=st.integers(0, MAX_TIME_MS),
)
few = st.builds(
    Cancellation, kind=kinds, name=st.sampled_from("ab"), cut=st.integers(0, 6), forget_ms=st.integers(0, 5 * BUCKET_MS)
)


def an_envelope(timer_id: str, generation: int = 0, group: str = "", stamp: int = 0) -> Envelope:
    life = Life(group=group, group_stamp=stamp)
    return Envelope(timer_id, NOW_MS, NOW_MS, generation, life=life)


@given(st.lists(cancellations, max_size=20), st.integers(1, 4_000))
def test_packs_hold_all_and_no_more(written: list[Cancellation], max_bytes: int) -> None:
    messages = list(packs(written, max_bytes))
    assert [found for message in messages for found in read_cancellations(message)] == written
    assert all(len(message) <= max_bytes or b"\n" not in message for message in messages)


def test_a_cut_off_is_readable_by_eye() -> None:
    assert Cancellation("timer", "sub-42", 1767139200000123, 1767225600000).line() == (
        '["t","sub-42",1767139200000123,1767225600000]'
    )


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"{",
        b"17",
        b"[]",
        b'["t","a",1]',
        b'["t","a",1,2,3]',
        b'["x","a",1,2]',
        b'["t","",1,2]',
        b'["t",7,1,2]',
        b'["t","a",-1,2]',
        b'["t","a",true,2]',
        b'["t","a",1.5,2]',
        b'["t","a",99999999999999999,2]',
        b'["t","a",1,9999999999999999]',
        b'[["t"],"a",1,2]',
        b'["t","\\ud800",1,2]',
        b'{"t":"a","b":"c","d":1,"e":2}',
        b"[" * 100_000,
        b'["t","' + b"a" * 257 + b'",1,2]',
        b'["t","a",1,2]\nnothing',
    ],
)
def test_what_is_no_cut_off_is_refused(data: bytes) -> None:
    with pytest.raises(CancellationUnreadable):
        read_cancellations(data)


def test_a_line_that_cannot_be_read_costs_no_other() -> None:
    """As of a later version, in a pack with thousands that are read."""
    good = [Cancellation("timer", "a", 1, 2), Cancellation("group", "b", 3, 4)]
    data = "\n".join([good[0].line(), '["w","of a later version",1,2]', good[1].line()]).encode()
    with pytest.raises(CancellationUnreadable) as refused:
        read_cancellations(data)
    assert refused.value.readable == good


def test_a_message_of_garbled_lines_ends_with_the_hundredth() -> None:
    good = Cancellation("timer", "a", 1, 2).line().encode()
    for bad, read in ((MAX_REFUSED - 1, [Cancellation("timer", "a", 1, 2)]), (MAX_REFUSED, [])):
        with pytest.raises(CancellationUnreadable) as refused:
            read_cancellations(b"x\n" * bad + good)
        assert refused.value.readable == read


def test_none_is_remembered_for_longer_than_it_can_matter() -> None:
    latest_ms = latest_forget_ms(30 * DAY_MS, DAY_MS, NOW_MS)
    assert latest_ms == NOW_MS + 32 * DAY_MS
    written = [Cancellation("timer", "a", 1, 2 * MAX_TIME_MS), Cancellation("group", "b", 1, latest_ms - 1)]
    read = read_cancellations(b"\n".join(one.line().encode() for one in written), latest_ms)
    assert [one.forget_ms for one in read] == [latest_ms, latest_ms - 1]


@given(st.binary())
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    try:
        found = read_cancellations(data)
    except CancellationUnreadable:
        return
    assert all(isinstance(one, Cancellation) for one in found)


def is_dead_by_definition(read: list[Cancellation], envelope: Envelope) -> bool:
    return any(
        (one.kind == "timer" and one.name == envelope.timer_id and envelope.generation < one.cut)
        or (one.kind == "group" and one.name == envelope.life.group and envelope.life.group_stamp < one.cut)
        for one in read
    )


@given(st.lists(few, max_size=12), st.randoms(use_true_random=False), st.integers(0, 7), st.integers(0, 7))
def test_a_table_says_what_the_definition_says_in_any_order(
    read: list[Cancellation], rng: random.Random, generation: int, stamp: int
) -> None:
    table = CancellationTable()
    shuffled = [*read, *rng.sample(read, len(read) // 2)]
    rng.shuffle(shuffled)
    for one in shuffled:
        table.merge(one)
    for envelope in (an_envelope("a", generation), an_envelope("c", generation, "b", stamp)):
        assert table.is_cancelled(envelope) == is_dead_by_definition(read, envelope)
        why = table.why_dead(envelope)
        assert (why is not None) == table.is_cancelled(envelope)
        assert why is None or is_dead_by_definition([why], envelope)
    assert len(table) == len({(one.kind, one.name) for one in read})
    of_a = [one for one in read if (one.kind, one.name) == ("timer", "a")]
    known = table.of_timer("a")
    assert (known.cut if known else None) == max((one.cut for one in of_a), default=None)


@given(st.lists(few, max_size=12), st.integers(0, 8 * BUCKET_MS))
def test_nothing_is_forgotten_before_its_time_nor_kept_long_after(read: list[Cancellation], now_ms: int) -> None:
    table = CancellationTable()
    for one in read:
        table.merge(one)
    before = len(table)
    forgotten = table.forget(now_ms)
    last = {(one.kind, one.name): 0 for one in read}
    for one in read:
        last[one.kind, one.name] = max(last[one.kind, one.name], one.forget_ms)
    left = {(one.kind, one.name) for one in table.live()}
    assert forgotten == before - len(table)
    assert {name for name, forget_ms in last.items() if forget_ms >= now_ms} <= left
    assert {name for name, forget_ms in last.items() if forget_ms >= now_ms - BUCKET_MS} >= left


@given(st.lists(few, max_size=12))
def test_what_a_table_packs_makes_the_same_table(read: list[Cancellation]) -> None:
    table, copied = CancellationTable(), CancellationTable()
    for one in read:
        table.merge(one)
    for message in packs(table.live(), 60):
        for one in read_cancellations(message):
            copied.merge(one)
    assert set(copied.live()) == set(table.live())


def test_a_timer_that_replaces_itself_every_second_takes_no_more_memory_than_hours() -> None:
    table = CancellationTable()
    for second in range(36_000):
        table.merge(Cancellation("timer", "debounced", second, second * 1_000 + DAY_MS))
    assert len(table) == 1
    names = [name for bucket in table._buckets.values() for one_kind in bucket for name in one_kind]
    assert len(names) <= 36_000_000 // BUCKET_MS + 1


@given(st.lists(st.tuples(st.integers(0, MAX_TIME_MS), st.integers(0, MAX_GENERATION - 10_000)), max_size=20))
def test_stamps_ascend_whatever_the_clock_does(asked: list[tuple[int, int]]) -> None:
    stamps = Stamps(random.Random(7))
    made = [stamps.new(now_ms, above) for now_ms, above in asked]
    assert made == sorted(set(made)) or MAX_GENERATION in made
    assert all(stamp > above for stamp, (_, above) in zip(made, asked, strict=True))


def test_a_stamp_is_microseconds_in_sixteen_digits() -> None:
    stamp = Stamps(random.Random(7)).new(NOW_MS)
    assert stamp // 1_000 == NOW_MS
    assert len(str(stamp)) == 16


@pytest.mark.parametrize(
    ("due_ms", "confirmed_ms", "answer"),
    [
        (None, NOW_MS, Answer.UNSEEN),
        (NOW_MS, NOW_MS - 1_001, Answer.CERTAIN),
        (NOW_MS, NOW_MS - 1_000, Answer.TOO_CLOSE),
        (NOW_MS, NOW_MS, Answer.TOO_CLOSE),
        (NOW_MS, NOW_MS + DAY_MS, Answer.TOO_CLOSE),
    ],
)
def test_an_answer_promises_what_can_be_kept(due_ms: int | None, confirmed_ms: int, answer: Answer) -> None:
    assert answer_of(due_ms, confirmed_ms, 1_000) is answer


@pytest.mark.parametrize(("late_ms", "too_late"), [(-1, False), (0, False), (DAY_MS, False), (DAY_MS + 1, True)])
def test_what_comes_later_than_it_is_remembered_cannot_be_judged(late_ms: int, too_late: bool) -> None:
    assert is_too_late(an_envelope("a"), NOW_MS + late_ms, DAY_MS) is too_late


def test_one_that_was_sent_after_its_due_time_is_judged_from_then_on() -> None:
    """Its cancel is remembered from the send on, by whomever and of whichever attempt."""
    sent = Envelope("a", NOW_MS - 9 * DAY_MS, NOW_MS)
    assert not is_too_late(sent, NOW_MS + DAY_MS, DAY_MS)
    assert is_too_late(sent, NOW_MS + DAY_MS + 1, DAY_MS)
    # After a hop the time of entry says nothing of the send: an outage may lie between them.
    assert is_too_late(sent.hopped(NOW_MS), NOW_MS, DAY_MS)
