"""The envelope: written and read back, and never anything but an EnvelopeError for what is garbled."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timewheel.core.envelope import (
    FIRST_LIFE,
    FOR_PROPERTY,
    GROUP_PROPERTY,
    ID_PROPERTY,
    MAX_GENERATION,
    MAX_GROUP_CHARS,
    MAX_TIME_MS,
    MAX_TIMER_ID_CHARS,
    TIMER_PROPERTY,
    Envelope,
    Life,
)
from timewheel.core.errors import EnvelopeError, EnvelopeTooNew

GOOD = "1 1767225600000 0 2 1767139200000 3"
LONG = "2 1767225600000 1767139200000123 2 1767139200000 3 4 1767200000000"

lives = st.one_of(
    st.just(FIRST_LIFE),
    st.builds(
        Life,
        attempt=st.integers(0, 999_999),
        first_due_ms=st.integers(0, MAX_TIME_MS),
        group=st.text(min_size=1, max_size=MAX_GROUP_CHARS),
        group_stamp=st.integers(0, MAX_GENERATION),
        only_for=st.text(max_size=40),
    ),
    st.tuples(st.integers(0, 999_999), st.integers(0, MAX_TIME_MS)).map(lambda pair: Life(*pair)),
)

envelopes = st.builds(
    Envelope,
    timer_id=st.text(min_size=1, max_size=MAX_TIMER_ID_CHARS),
    due_ms=st.integers(0, MAX_TIME_MS),
    entered_ms=st.integers(0, MAX_TIME_MS),
    generation=st.integers(0, 999_999_999) | st.integers(0, MAX_GENERATION),
    hops=st.integers(0, 999_999),
    revision=st.integers(1, 2**31 - 1),
    life=lives,
)


def test_an_envelope_is_two_properties_readable_by_eye() -> None:
    envelope = Envelope(timer_id="sub-42", due_ms=1767225600000, entered_ms=1767139200000, hops=2, revision=3)
    assert envelope.properties() == {"tw-id": "sub-42", "tw-timer": GOOD}


@given(envelopes)
def test_an_envelope_survives_the_round_trip(envelope: Envelope) -> None:
    assert Envelope.read(envelope.properties()) == envelope


@given(envelopes, st.dictionaries(st.text(), st.text()))
def test_user_properties_beside_it_do_not_matter(envelope: Envelope, user: dict[str, str]) -> None:
    assert Envelope.read({**user, **envelope.properties()}) == envelope


@pytest.mark.parametrize("properties", [{}, {"user": "x"}, {"tw-other": "kept for later"}])
def test_a_message_without_our_properties_has_no_envelope(properties: dict[str, str]) -> None:
    assert Envelope.read(properties) is None


@pytest.mark.parametrize(
    ("timer", "timer_id", "complaint"),
    [
        (None, "a", "missing"),
        (GOOD, None, "missing"),
        (GOOD, "", "empty"),
        (None, "", "empty"),
        ("", "a", "garbled"),
        (GOOD + "\n", "a", "garbled"),
        (GOOD + " 7", "a", "garbled"),
        ("1 -5 0 0 0 1", "a", "garbled"),
        ("1 \u0661\u0667 0 2 17 3", "a", "garbled"),
        ("01 1767225600000 0 2 1767139200000 3", "a", "garbled"),
        ("1 1767225600000 0 1000000 1767139200000 3", "a", "garbled"),  # 10**6 hops
        ("1 253402300800000 0 0 0 1", "a", "9999"),  # 10000-01-01T00:00:00Z
        ("1 0 0 0 253402300800000 1", "a", "9999"),
        ("3 1767225600000 0 2 1767139200000 3", "a", "version 3, this timewheel reads version 2; upgrade it"),
        ("2 1767225600000 0 2 1767139200000 3", "a", "garbled"),  # without attempt and first due time
        ("1 1767225600000 1767139200000123 2 1767139200000 3", "a", "garbled"),  # a stamp has no room in version 1
        ("2 1 0 0 0 1 0 253402300800000", "a", "9999"),
        (LONG + " 1", "a", "garbled"),
        ("0 1", "a", "garbled"),
        ("9" * 5_000, "a", "garbled"),  # int() of it would raise a ValueError of its own
        ("1 " + "9" * 5_000 + " 0 0 0 1", "a", "garbled"),
        (GOOD, "x" * (MAX_TIMER_ID_CHARS + 1), "256"),
    ],
)
def test_a_garbled_envelope_is_refused_with_the_reason(timer: str | None, timer_id: str | None, complaint: str) -> None:
    properties = {"user": "x"}
    if timer is not None:
        properties[TIMER_PROPERTY] = timer
    if timer_id is not None:
        properties[ID_PROPERTY] = timer_id
    with pytest.raises(EnvelopeError, match=complaint) as caught:
        Envelope.read(properties)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(("line", "version"), [("3", 3), ("17 and more", 17), ("999999999 1", 999_999_999)])
def test_a_later_version_is_told_from_garbage(line: str, version: int) -> None:
    with pytest.raises(EnvelopeTooNew) as caught:
        Envelope.read({TIMER_PROPERTY: line, ID_PROPERTY: "a"})
    assert caught.value.version == version


_near_misses = st.lists(
    st.sampled_from(["1", "0", "2", "3", " ", "-", "9" * 14, "9" * 16, "x", "\n", "\u0663", "\ud800"]), max_size=14
).map("".join)


@given(st.text() | _near_misses, st.text())
def test_no_text_raises_anything_but_an_envelope_error(timer: str, timer_id: str) -> None:
    try:
        envelope = Envelope.read({TIMER_PROPERTY: timer, ID_PROPERTY: timer_id})
    except EnvelopeError:
        return
    assert envelope is not None
    assert Envelope.read(envelope.properties()) == envelope


def test_what_only_some_timers_have_is_readable_by_eye_too() -> None:
    life = Life(attempt=4, first_due_ms=1767200000000, group="order 7", group_stamp=1767139200000123, only_for="emails")
    envelope = Envelope("sub-42", 1767225600000, 1767139200000, 1767139200000123, 2, 3, life)
    assert envelope.properties() == {
        "tw-id": "sub-42",
        "tw-timer": LONG,
        "tw-group": "1767139200000123 order 7",
        "tw-for": "emails",
    }


@given(envelopes)
def test_version_1_is_written_wherever_it_has_room(envelope: Envelope) -> None:
    plain = envelope._replace(life=FIRST_LIFE)
    assert envelope.line().startswith("1 ") == (envelope == plain and envelope.generation < 10**9)


@given(envelopes, st.integers(0, MAX_TIME_MS))
def test_a_hop_changes_the_line_alone(envelope: Envelope, entered_ms: int) -> None:
    hopped = envelope.hopped(entered_ms)
    assert hopped == envelope._replace(entered_ms=entered_ms, hops=min(envelope.hops + 1, 999_999))
    assert {**envelope.properties(), TIMER_PROPERTY: hopped.line()} == hopped.properties()


@pytest.mark.parametrize(("entered_ms", "written"), [(-1, 0), (MAX_TIME_MS + 1, MAX_TIME_MS)])
def test_a_hop_of_one_that_is_due_in_1970_or_9999_can_be_read_again(entered_ms: int, written: int) -> None:
    """Its slot begins before that by a head start, or its stay ends after it."""
    hopped = Envelope("a", 0, 0).hopped(entered_ms)
    assert hopped.entered_ms == written
    assert Envelope.read(hopped.properties()) == hopped


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        (GROUP_PROPERTY, "order 7", "tw-group is garbled"),
        (GROUP_PROPERTY, "17", "tw-group is garbled"),
        (GROUP_PROPERTY, "17 ", "tw-group is garbled"),
        (GROUP_PROPERTY, "", "tw-group is garbled"),
        (GROUP_PROPERTY, "9" * 17 + " x", "tw-group is garbled"),
        (GROUP_PROPERTY, "17 " + "x" * (MAX_GROUP_CHARS + 1), "longer than 256"),
        (FOR_PROPERTY, "x" * 1_025, "longer than 1024"),
    ],
)
def test_what_stands_beside_the_line_is_read_as_strictly(name: str, value: str, complaint: str) -> None:
    with pytest.raises(EnvelopeError, match=complaint):
        Envelope.read({ID_PROPERTY: "a", TIMER_PROPERTY: LONG, name: value})


def test_a_group_beside_a_line_of_version_1_is_not_ours() -> None:
    found = Envelope.read({ID_PROPERTY: "a", TIMER_PROPERTY: GOOD, GROUP_PROPERTY: "garbled"})
    assert found is not None
    assert found.life is FIRST_LIFE
