"""Letters: which are meant, and where they go when they are sent again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from tests.consumers.test_forged import forged
from tests.inspect.test_whereis import NOW_MS, SCHEMES, plan_of
from timewheel.cli.dead_letters import end
from timewheel.core.durations import DAY_MS, HOUR_MS
from timewheel.core.envelope import MAX_GENERATION, Envelope, Life
from timewheel.core.names import Names
from timewheel.core.routing import Hold, Router
from timewheel.core.topology import topology
from timewheel.dead_letters import (
    DeadLetter,
    DeadLetterFilter,
    DeadLetterPosition,
    DeadLetters,
    Refused,
    ReplayResult,
    ReplayTarget,
    again,
    handled_again,
    spread,
)
from timewheel.inspect.sample import envelope_in

SOURCE = "persistent://public/default/t.tw.tier-1d-partition-2"


def dead_letter_of(envelope: Envelope | None, **more: str) -> DeadLetter:
    properties = {"colour": "red", "tw-dead-reason": "Why not", "tw-dead-from": SOURCE, **more}
    return DeadLetter(
        topic="persistent://public/default/t.tw.dead-letter-partition-0",
        place=DeadLetterPosition(12, 7),
        timer_id=None if envelope is None else envelope.timer_id,
        envelope=envelope,
        reason="Why not",
        error="",
        source=SOURCE,
        since_ms=NOW_MS,
        key=None,
        properties=properties if envelope is None else {**properties, **envelope.properties()},
        payload=b"",
    )


@given(scheme=st.sampled_from(sorted(SCHEMES)), properties=forged, due_now=st.booleans(), source=st.text())
def test_whatever_its_sender_wrote_it_goes_where_the_plan_has_a_topic_or_nowhere(
    scheme: str, properties: dict[str, str], due_now: bool, source: str
) -> None:
    plan = replace(plan_of(SCHEMES[scheme]), retry=True)
    router, names = Router(plan), {part for spec in topology(plan, NOW_MS).topics for part in spec.parts}
    dead_letter = dead_letter_of(None, **properties)
    dead_letter = replace(dead_letter, envelope=envelope_in(properties), source=source)
    for found in (
        again(router, dead_letter, NOW_MS, due_now=due_now),
        handled_again(router, dead_letter, "billing", NOW_MS, NOW_MS, 77),
    ):
        if isinstance(found, ReplayTarget):
            assert found.topic in names
            assert Envelope.read(found.properties(dead_letter.properties)) == found.envelope


def test_what_claims_the_highest_generation_is_not_parked_again_under_the_same() -> None:
    dead_letter = dead_letter_of(Envelope("x", NOW_MS, NOW_MS, generation=MAX_GENERATION))
    router = Router(replace(plan_of(SCHEMES["tiered"]), retry=True))
    assert isinstance(handled_again(router, dead_letter, "billing", NOW_MS, NOW_MS, MAX_GENERATION), Refused)


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_it_goes_where_a_producer_would_send_it_now(name: str) -> None:
    router = Router(plan_of(SCHEMES[name]))
    due_ms = NOW_MS + 7 * DAY_MS
    dead_letter = dead_letter_of(Envelope("x", due_ms, NOW_MS - DAY_MS, generation=3, hops=10_000, revision=9))

    found = again(router, dead_letter, NOW_MS)

    assert isinstance(found, ReplayTarget)
    route = router.route(due_ms, NOW_MS)
    assert found.topic == f"{route.topic}-partition-2", "the partition stays"
    assert found.deliver_at_ms == route.deliver_at_ms
    assert found.envelope is not None
    assert found.envelope == Envelope("x", due_ms, NOW_MS, generation=3, hops=0, revision=1)
    assert found.properties(dead_letter.properties) == {"colour": "red", **found.envelope.properties()}


def test_it_passes_over_a_slot_that_may_be_swept_before_it_is_stored() -> None:
    router = Router(plan_of(SCHEMES["wheel"]))
    due_ms = NOW_MS + 7 * DAY_MS
    slot = router.route(due_ms, NOW_MS)
    assert isinstance(slot, Hold)
    dead_letter = dead_letter_of(Envelope("x", due_ms, NOW_MS))

    in_time, too_late = (again(router, dead_letter, slot.release_at_ms - before_ms) for before_ms in (HOUR_MS, 1))

    assert isinstance(in_time, ReplayTarget)
    assert isinstance(too_late, ReplayTarget)
    assert in_time.topic == f"{slot.topic}-partition-2"
    assert too_late.topic != in_time.topic


def test_what_is_due_or_said_to_be_is_handled_at_once() -> None:
    router = Router(plan_of(SCHEMES["tiered"]))
    past = dead_letter_of(Envelope("x", NOW_MS - HOUR_MS, NOW_MS - DAY_MS))
    to_come = dead_letter_of(Envelope("x", NOW_MS + 7 * DAY_MS, NOW_MS))
    due_topic = "persistent://public/default/t-partition-2"
    for found in (again(router, past, NOW_MS), again(router, to_come, NOW_MS, due_now=True)):
        assert isinstance(found, ReplayTarget)
        assert (found.topic, found.deliver_at_ms) == (due_topic, 0)


def test_what_says_nothing_is_sent_only_if_somebody_says_when() -> None:
    router = Router(plan_of(SCHEMES["tiered"]))
    foreign, half = dead_letter_of(None), dead_letter_of(None, **{"tw-id": "half"})
    far = dead_letter_of(Envelope("x", NOW_MS + 400 * DAY_MS, NOW_MS))

    assert again(router, foreign, NOW_MS) == Refused(
        "it has no due time that can be read: --now sends it to be handled at once"
    )
    refused = again(router, far, NOW_MS)
    assert isinstance(refused, Refused)
    assert "beyond the plan's max_delay of" in refused.reason
    as_it_is, with_id = again(router, foreign, NOW_MS, due_now=True), again(router, half, NOW_MS, due_now=True)
    assert isinstance(as_it_is, ReplayTarget)
    assert isinstance(with_id, ReplayTarget)
    assert as_it_is.envelope is None
    assert as_it_is.properties(foreign.properties) == {"colour": "red"}
    assert with_id.envelope == Envelope("half", NOW_MS, NOW_MS)


@pytest.mark.parametrize("timer_id", ["", "inv-8"])
def test_what_another_client_sent_to_the_intake_has_a_due_time_without_an_envelope(timer_id: str) -> None:
    """Its relay refused it, as due beyond max_delay; the plan has a longer one now."""
    router, due_ms = Router(plan_of(SCHEMES["tiered"])), NOW_MS + 7 * DAY_MS
    own = {"tw-id": timer_id} if timer_id else {}
    dead_letter = dead_letter_of(None, **own, **{"tw-due": f"{due_ms}"})

    found = again(router, dead_letter, NOW_MS)

    assert isinstance(found, ReplayTarget)
    expected = timer_id or f"{dead_letter.topic}:12:7"
    envelope = Envelope(expected, due_ms, NOW_MS, revision=router.plan.revision)
    assert found.envelope == envelope
    assert found.topic == f"{router.route(due_ms, NOW_MS).topic}-partition-2"
    assert found.properties(dead_letter.properties) == {"colour": "red", **envelope.properties()}
    assert isinstance(again(router, dead_letter_of(None, **{"tw-due": "soon"}), NOW_MS), Refused)
    at_once = again(router, dead_letter, NOW_MS, due_now=True)
    assert isinstance(at_once, ReplayTarget)
    assert at_once.deliver_at_ms == 0


@pytest.mark.parametrize("name", ["tw-dead-part", "tw-parked-part", "tw-dead-encryption"])
def test_what_is_not_the_message_that_was_sent_is_not_sent_again(name: str) -> None:
    plan = replace(plan_of(SCHEMES["tiered"]), retry=True)
    dead_letter = dead_letter_of(Envelope("x", NOW_MS + HOUR_MS, NOW_MS), **{name: "payload 1/6"})
    found = again(Router(plan), dead_letter, NOW_MS, due_now=True)
    parked = handled_again(Router(plan), dead_letter, plan.subscriptions[0], NOW_MS, NOW_MS, 77)
    assert isinstance(found, Refused)
    assert found == parked
    assert "send it again" in found.reason


def test_a_wish_means_what_meets_all_of_it() -> None:
    dead_letter = dead_letter_of(Envelope("x", NOW_MS, NOW_MS))
    in_batch = replace(dead_letter, place=DeadLetterPosition(12, 7, 3))

    assert DeadLetterFilter().is_open
    assert DeadLetterFilter().means(dead_letter)
    assert DeadLetterFilter(places=frozenset({DeadLetterPosition(12, 7)})).means(in_batch), (
        "the entry stands for all in it"
    )
    assert not DeadLetterFilter(places=frozenset({DeadLetterPosition(12, 7, 4)})).means(in_batch)
    assert DeadLetterFilter(reason="WHY", source="tier-1d", timer_ids=frozenset({"x"})).means(dead_letter)
    assert not DeadLetterFilter(reason="WHY", timer_ids=frozenset({"y"})).means(dead_letter)


@pytest.mark.parametrize("as_json", [False, True])
def test_what_is_named_and_not_there_is_said(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    dead_letter = replace(dead_letter_of(Envelope("x", 1, 0)), place=DeadLetterPosition(12, 7, 3))
    found = DeadLetters(topic=dead_letter.topic, dead_letters=(dead_letter,), inspected=1, entries=1, is_cut=False)
    there = DeadLetterFilter(places=frozenset({DeadLetterPosition(12, 7)}), timer_ids=frozenset({"x"}))
    named = DeadLetterFilter(
        places=frozenset({DeadLetterPosition(12, 7), DeadLetterPosition(12, 7, 4)}), timer_ids=frozenset({"x", "nix"})
    )
    for wanted in (DeadLetterFilter(), DeadLetterFilter(reason="not to be found"), there):
        end([ReplayResult(dead_letter=dead_letter)], found, wanted, "dropped", as_json=as_json)
    capsys.readouterr()

    with pytest.raises(typer.Exit) as ended:
        end([ReplayResult(dead_letter=dead_letter)], found, named, "dropped", as_json=as_json)

    assert ended.value.exit_code == 4
    said = capsys.readouterr().out
    if as_json:
        assert json.loads(said)["missing"] == ["12:7:4", "nix"]
    else:
        assert "12:7:4: not found" in said
        assert "nix: not found" in said
    with pytest.raises(typer.Exit) as left:
        end([ReplayResult(dead_letter=dead_letter, refused="it is whole")], found, named, "dropped", as_json=as_json)
    assert left.value.exit_code == 1, "what is left is the greater trouble"


@pytest.mark.parametrize("place", [DeadLetterPosition(1, 2), DeadLetterPosition(1, 2, 0), DeadLetterPosition(0, 0)])
def test_a_place_is_read_as_it_is_written(place: DeadLetterPosition) -> None:
    assert DeadLetterPosition.parse(str(place)) == place


@pytest.mark.parametrize("text", ["", "1", "a:b", "1:2:3:4", "-1:2", "1:2:"])
def test_what_is_no_place_is_none(text: str) -> None:
    assert DeadLetterPosition.parse(text) is None


RETRYING = replace(plan_of(SCHEMES["tiered"]), retry=True)
FOR_ONE = Life(attempt=4, first_due_ms=NOW_MS - HOUR_MS, group="g", group_stamp=9, only_for=RETRYING.subscriptions[0])


def test_what_one_subscription_tries_again_goes_to_that_one_or_nowhere() -> None:
    dead_letter = dead_letter_of(Envelope("x", NOW_MS + HOUR_MS, NOW_MS, life=FOR_ONE))
    found = again(Router(RETRYING), dead_letter, NOW_MS, due_now=True)
    assert isinstance(found, ReplayTarget)
    assert found.topic == f"{Names(RETRYING).retry(FOR_ONE.only_for)}-partition-2"
    assert found.envelope is not None
    assert found.envelope.life == FOR_ONE
    refused = again(Router(plan_of(SCHEMES["tiered"])), dead_letter, NOW_MS)
    assert isinstance(refused, Refused)
    assert "has no retry topic in this plan" in refused.reason


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_a_parked_one_is_handled_again_as_another_generation_by_its_subscription(name: str) -> None:
    plan = replace(plan_of(SCHEMES[name]), retry=True)
    whose, router = plan.subscriptions[0], Router(replace(plan))
    dead_letter = dead_letter_of(Envelope("x", NOW_MS - HOUR_MS, NOW_MS, 3, 7, 9, FOR_ONE))
    at_once = handled_again(router, dead_letter, whose, NOW_MS, NOW_MS, 77)
    assert isinstance(at_once, ReplayTarget)
    assert (at_once.topic, at_once.deliver_at_ms) == (f"{Names(plan).retry(whose)}-partition-2", 0)
    life = Life(group="g", group_stamp=77, only_for=whose)
    assert at_once.envelope == Envelope("x", NOW_MS, NOW_MS, 77, 0, plan.revision, life)
    later = handled_again(router, dead_letter, whose, NOW_MS + DAY_MS, NOW_MS, 77)
    assert isinstance(later, ReplayTarget)
    assert later.topic == f"{router.route(NOW_MS + DAY_MS, NOW_MS, whose).topic}-partition-2"
    for refused in (
        handled_again(Router(plan_of(SCHEMES[name])), dead_letter, whose, NOW_MS, NOW_MS, 77),
        handled_again(router, dead_letter_of(None), whose, NOW_MS, NOW_MS, 77),
    ):
        assert isinstance(refused, Refused)


@pytest.mark.parametrize(
    ("per_s", "expected"), [(None, [0, 0, 0]), (1.0, [0, 1_000, 2_000]), (0.5, [0, 2_000, 4_000]), (3.0, [0, 333, 666])]
)
def test_so_many_are_due_each_second(per_s: float | None, expected: list[int]) -> None:
    assert [due_ms - NOW_MS for due_ms in spread(3, NOW_MS, per_s)] == expected
