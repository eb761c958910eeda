"""Reading the intake: a due time becomes a timer by stored data alone, and what is none says why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timewheel.core.durations import MAX_DURATION_MS
from timewheel.core.envelope import MAX_TIME_MS, MAX_TIMER_ID_CHARS, MIN_DUE_MS, Envelope, Life
from timewheel.core.errors import EnvelopeError, EnvelopeTooNew
from timewheel.core.plan import MIN_STAY_MS, Plan
from timewheel.relay.machine.readings import ENTERED_SLACK_MS, PROBE, parsed, taken_in

PUBLISHED = 1_767_139_200_000
DAY = 86_400_000
DUE = PUBLISHED + DAY
OWN_ID = "persistent://acme/crm/reminders.tw.intake-partition-3:17:42"
REVISION = 5

TIMER = {"tw-id": "sub-42", "tw-timer": f"1 {DUE} 0 1 {PUBLISHED} 3"}


def read(properties: dict[str, str], max_delay_ms: int = 30 * DAY) -> object:
    return taken_in(properties, PUBLISHED, OWN_ID, plan(max_delay_ms))


def plan(max_delay_ms: int) -> Plan:
    return Plan(due_topic="persistent://a/b/c", subscriptions=("s",), revision=REVISION, max_delay_ms=max_delay_ms)


@pytest.mark.parametrize(
    ("properties", "envelope", "goes_on"),
    [
        pytest.param(
            {"tw-due": f"{DUE}", "colour": "red"},
            Envelope(OWN_ID, DUE, PUBLISHED, revision=REVISION),
            {"tw-id": OWN_ID, "tw-timer": f"1 {DUE} 0 0 {PUBLISHED} {REVISION}", "colour": "red"},
            id="a due time is a timer, named by its place",
        ),
        pytest.param(
            {"tw-due": f"{DUE}", "tw-id": "order-7"},
            Envelope("order-7", DUE, PUBLISHED, revision=REVISION),
            {"tw-id": "order-7", "tw-timer": f"1 {DUE} 0 0 {PUBLISHED} {REVISION}"},
            id="or by its sender",
        ),
        pytest.param(
            {"tw-due": f"{DUE}", "tw-id": ""},
            Envelope(OWN_ID, DUE, PUBLISHED, revision=REVISION),
            {"tw-id": OWN_ID, "tw-timer": f"1 {DUE} 0 0 {PUBLISHED} {REVISION}"},
            id="an empty name is none",
        ),
        pytest.param(
            {"tw-due": f"{MIN_DUE_MS}"},
            Envelope(OWN_ID, MIN_DUE_MS, PUBLISHED, revision=REVISION),
            {"tw-id": OWN_ID, "tw-timer": f"1 {MIN_DUE_MS} 0 0 {PUBLISHED} {REVISION}"},
            id="what is past is due at once",
        ),
        pytest.param(
            {"tw-due": f"{DUE}", "tw-from": "1:2 3", "tw-new": "x"},
            Envelope(OWN_ID, DUE, PUBLISHED, revision=REVISION),
            {"tw-id": OWN_ID, "tw-timer": f"1 {DUE} 0 0 {PUBLISHED} {REVISION}", "tw-new": "x"},
            id="where it was moved from stays behind, and what is not ours goes along",
        ),
        pytest.param(
            {**TIMER, "tw-from": "17:42 1767139100000"},
            Envelope("sub-42", DUE, PUBLISHED, hops=1, revision=3),
            TIMER,
            id="a moved copy has its own envelope",
        ),
        pytest.param(
            {**TIMER, "tw-due": "garbled"},
            Envelope("sub-42", DUE, PUBLISHED, hops=1, revision=3),
            TIMER,
            id="beside an envelope nobody asks for a due time",
        ),
        pytest.param(
            {"tw-id": "a", "tw-timer": f"2 {DUE} 0 0 {PUBLISHED} 3 1 {DUE}", "tw-group": "7 order", "tw-for": "mailer"},
            Envelope("a", DUE, PUBLISHED, revision=3, life=Life(1, DUE, "order", 7, "mailer")),
            {"tw-id": "a", "tw-timer": f"2 {DUE} 0 0 {PUBLISHED} 3 1 {DUE}", "tw-group": "7 order", "tw-for": "mailer"},
            id="a group is part of an envelope",
        ),
    ],
)
def test_what_becomes_a_timer(properties: dict[str, str], envelope: Envelope, goes_on: dict[str, str]) -> None:
    assert read(properties) == envelope
    assert properties == goes_on


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({}, "neither tw-due"),
        ({"tw-id": "order-7"}, "neither tw-due"),
        ({"tw-due": ""}, "garbled"),
        ({"tw-due": "tomorrow"}, "garbled"),
        ({"tw-due": "+1767225600000"}, "garbled"),
        ({"tw-due": "1767225600000\n"}, "garbled"),
        ({"tw-due": "1_767_225_600_000"}, "garbled"),
        ({"tw-due": "١٧٦٧"}, "garbled"),
        ({"tw-due": f"{DUE}000"}, "garbled"),
        ({"tw-due": "9" * 5_000}, "garbled"),
        ({"tw-due": f"{MAX_TIME_MS + 1}"}, "beyond the year 9999"),
        ({"tw-due": f"{DUE // 1_000}"}, "before 1978: milliseconds since 1970 are needed, not seconds"),
        ({"tw-due": "0"}, "before 1978"),
        ({"tw-due": f"{PUBLISHED + 31 * DAY}"}, "is 31d after the publish, beyond the plan's max_delay of 30d"),
        ({"tw-due": f"{DUE}", "tw-id": "x" * (MAX_TIMER_ID_CHARS + 1)}, "longer than 256 characters"),
        ({"tw-due": f"{DUE}", "tw-group": "7 order"}, "need tw-timer"),
        ({"tw-due": f"{DUE}", "tw-for": "mailer"}, "need tw-timer"),
        ({"tw-timer": f"1 {DUE} 0 0 {PUBLISHED} 3", "tw-due": f"{DUE}"}, "missing or empty"),
        ({"tw-id": "a", "tw-timer": "1 tomorrow", "tw-due": f"{DUE}"}, "garbled"),
    ],
)
def test_what_does_not_says_why_and_stays_as_it_was(properties: dict[str, str], says: str) -> None:
    before = dict(properties)
    reading = read(properties)
    assert isinstance(reading, EnvelopeError)
    assert says in str(reading)
    assert properties == before


def test_the_longest_delay_is_the_last_that_is_taken_in() -> None:
    assert isinstance(read({"tw-due": f"{DUE}"}, max_delay_ms=DAY), Envelope)
    assert isinstance(read({"tw-due": f"{DUE}"}, max_delay_ms=DAY - 1), EnvelopeError)


def test_the_end_of_a_long_place_is_its_name() -> None:
    own_id = "persistent://acme/crm/" + "x" * 300 + ":17:42"
    reading = taken_in({"tw-due": f"{DUE}"}, PUBLISHED, own_id, plan(DAY))
    assert isinstance(reading, Envelope)
    assert reading.timer_id == own_id[-256:]


def test_what_a_later_version_wrote_is_a_dead_letter_for_that_version() -> None:
    """A stranger can write any version, and what stands behind it must not wait for it."""
    assert isinstance(read({"tw-id": "a", "tw-timer": "3 whatever"}), EnvelopeTooNew)


@pytest.mark.parametrize("beyond_ms", [0, 1])
def test_an_envelope_is_held_to_the_longest_delay_too(beyond_ms: int) -> None:
    properties = {"tw-id": "a", "tw-timer": f"1 {PUBLISHED + 30 * DAY + beyond_ms} 0 0 {PUBLISHED} 3"}
    reading = read(properties)
    assert isinstance(reading, EnvelopeError if beyond_ms else Envelope)
    assert not beyond_ms or "max_delay = " in str(reading)


@pytest.mark.parametrize("off_ms", [-PUBLISHED, -ENTERED_SLACK_MS - 1, ENTERED_SLACK_MS + 1, DAY])
def test_a_timer_has_entered_with_its_publish_whatever_it_says(off_ms: int) -> None:
    properties = {"tw-id": "a", "tw-timer": f"1 {DUE} 7 2 {PUBLISHED + off_ms} 3"}
    assert read(properties) == Envelope("a", DUE, PUBLISHED, 7, 2, 3)
    assert properties["tw-timer"] == f"1 {DUE} 7 2 {PUBLISHED} 3"
    line = f"1 {DUE} 7 2 {PUBLISHED + ENTERED_SLACK_MS} 3"
    assert read(near := {"tw-id": "a", "tw-timer": line}) == Envelope("a", DUE, PUBLISHED + ENTERED_SLACK_MS, 7, 2, 3)
    assert near["tw-timer"] == line


def test_a_relay_s_own_probe_is_known() -> None:
    assert read({"tw-probe": "relay-1"}) is PROBE


texts = st.text(max_size=5) | st.integers(-5, MAX_TIME_MS * 2).map(str) | st.just("x" * 300)
ours = st.sampled_from(["tw-id", "tw-timer", "tw-due", "tw-from", "tw-group", "tw-for", "tw-probe", "tw-nudge"])
numbers = st.integers(0, MAX_TIME_MS) | st.sampled_from([0, PUBLISHED, DUE, 999_999])
lines = st.tuples(st.sampled_from([1, 2, 3]), st.lists(numbers, min_size=5, max_size=7)).map(
    lambda drawn: " ".join(map(str, (drawn[0], *drawn[1])))
) | st.tuples(numbers, numbers).map(lambda pair: f"1 {pair[0]} 0 0 {pair[1]} 3")


@given(
    properties=st.dictionaries(ours | st.text(max_size=3), texts | lines, max_size=8),
    published=st.integers(0, MAX_TIME_MS),
    max_delay=st.integers(MIN_STAY_MS, MAX_DURATION_MS),
)
def test_what_goes_on_reads_as_what_came_in(properties: dict[str, str], published: int, max_delay: int) -> None:
    before = dict(properties)
    reading = taken_in(properties, published, OWN_ID, plan(max_delay))
    if not isinstance(reading, Envelope):
        assert properties == before
        assert reading is not None, "the intake knows no message that it has nothing to say about"
        return
    assert not {"tw-due", "tw-from"} & set(properties)
    assert "tw-from" in before or reading.due_ms - published <= max_delay
    assert abs(reading.entered_ms - published) <= ENTERED_SLACK_MS
    assert parsed(properties) == reading, "the next relay reads the same timer"
    own = {"tw-id", "tw-timer", "tw-due", "tw-from"}
    assert {name: text for name, text in properties.items() if name not in own} == {
        name: text for name, text in before.items() if name not in own
    }
    again = dict(before)
    assert taken_in(again, published, OWN_ID, plan(max_delay)) == reading
    assert again == properties, "a replay meets the same"
