"""Messages that a consumer can neither hand out nor publish: bounded in number, and parked in the end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.consumers.support import BOUND_MS, NOW_MS, arrival, engine, handed, republished, said
from tests.support.client_messages import client_message
from timewheel.client.positions import Position
from timewheel.consumers.engine import MAX_FAILURES, MAX_GIVEN_BACK, SHARE, Engine
from timewheel.consumers.message import Arrival, InFlight, Mark, Parked, ToRetry

DELAY_MS = 60_000
FAR_MS = NOW_MS + 3_600_000


def too_new(entry: int, redeliveries: int = 0) -> Arrival:
    return Arrival(
        client_message(redeliveries=redeliveries), None, Position(1, entry, -1), None, "version 3", Mark.TOO_NEW
    )


def unreadable(entry: int, redeliveries: int = 0) -> Arrival:
    return Arrival(client_message(redeliveries=redeliveries), None, Position(1, entry, -1), None, "garbled")


def parked(commands: list[Any]) -> InFlight:
    timer = republished(commands)
    assert isinstance(timer.redirect, Parked)
    return timer


# ------------------------------------------------------------ of a later version


def test_what_a_later_version_wrote_is_given_back_a_while_and_then_parked() -> None:
    under = engine(parks=True, max_held=1_000)
    for redeliveries in range(MAX_GIVEN_BACK):
        assert said(under.received(too_new(1, redeliveries), NOW_MS, 0)) == [("nack", 1)]
    timer = parked(under.received(too_new(1, MAX_GIVEN_BACK), NOW_MS, 0))
    assert "version 3" in timer.redirect.reason  # type: ignore[union-attr]
    assert said(under.received(too_new(1, MAX_GIVEN_BACK), NOW_MS, 0)) == [("nack", 1)], "while it is being parked"
    assert said(under.published(timer, NOW_MS)) == [("ack", 1)]
    assert (under.counts.parked, under.counts.held) == (1, 0)
    assert said(under.received(too_new(1, 0), NOW_MS, 0)) == [("ack", 1)], "with its batch, for another part of that"


@pytest.mark.parametrize("parks", [True, False])
def test_of_many_at_once_only_a_share_waits_with_the_broker(parks: bool) -> None:
    """At the broker's bound for a consumer nothing more is delivered, and what was given back comes before all else."""
    under = engine(parks=parks, max_held=40, redelivery_delay_ms=DELAY_MS)
    for entry in range(40 // SHARE):
        assert said(under.received(too_new(entry), NOW_MS, 0)) == [("nack", entry)]
    commands = under.received(too_new(99), NOW_MS, DELAY_MS - 1)
    if parks:
        parked(commands)
    else:
        # Held as long as the broker may be early with what it was asked for, then handed out as unreadable.
        assert commands == []
        assert under.tick(NOW_MS + BOUND_MS - 1) == []
        timer = handed(under.tick(NOW_MS + BOUND_MS))
        assert timer.arrival.envelope_error == "version 3"
        assert said(under.done(timer)) == [("ack", 99)]
    assert said(under.received(too_new(100), NOW_MS, DELAY_MS)) == [("nack", 100)], "others come later"


# ------------------------------------------------------------ publishes that fail


def far(under: Engine, entry: int, timer_id: str, redeliveries: int = 0) -> InFlight:
    """A timer that came far too early, and is being published again."""
    commands = under.received(
        arrival(entry, timer_id, FAR_MS, copy=client_message(redeliveries=redeliveries)), NOW_MS, 0
    )
    return republished(commands or under.tick(NOW_MS + BOUND_MS))


@pytest.mark.parametrize(("parks", "redeliveries"), [(False, 99), (True, 0), (True, MAX_GIVEN_BACK - 1)])
def test_what_cannot_be_published_again_waits_with_the_broker(parks: bool, redeliveries: int) -> None:
    under = engine(parks=parks, max_held=100)
    timer, now_ms = far(under, 1, "a", redeliveries), NOW_MS + BOUND_MS
    for _ in range(MAX_FAILURES - 1):
        assert under.not_published(timer, now_ms) == []
        now_ms += BOUND_MS
        assert republished(under.tick(now_ms)) is timer
    assert said(under.not_published(timer, now_ms)) == [("nack", 1)]
    assert under.counts.held == 0


def test_and_is_parked_when_it_has_come_again_and_again() -> None:
    under = engine(parks=True, max_held=100)
    timer, now_ms = far(under, 1, "a", MAX_GIVEN_BACK), NOW_MS + BOUND_MS
    for _ in range(MAX_FAILURES):
        assert under.not_published(timer, now_ms) == []
        now_ms += BOUND_MS
        assert republished(under.tick(now_ms)) is timer
    assert isinstance(timer.redirect, Parked)
    assert "could not be published again" in timer.redirect.reason
    assert said(under.published(timer, now_ms)) == [("ack", 1)]
    assert said(under.received(arrival(7, "a", FAR_MS), now_ms, 0)) == [("ack", 7)], "a copy of it is one more letter"


def test_timers_that_cannot_be_published_take_no_more_than_a_share_of_the_room() -> None:
    """Some hundred of them once filled all of it, and nothing else was received any more."""
    under = engine(max_held=40)
    timers = [far(under, number, f"t{number}") for number in range(20)]
    kept = [not under.not_published(timer, NOW_MS + BOUND_MS) for timer in timers]
    assert kept == [True] * (40 // SHARE) + [False] * 10
    assert under.held_count == 40 // SHARE
    assert not under.full
    assert said(under.received(arrival(99, "due", NOW_MS), NOW_MS, 0)) == [("hand", 99)]


@pytest.mark.parametrize("redirect", [ToRetry(FAR_MS), Parked("no")])
def test_nor_do_those_that_a_handler_wants_elsewhere(redirect: ToRetry | Parked) -> None:
    under = engine(max_held=8)
    timers = [handed(under.received(arrival(number, f"t{number}", NOW_MS), NOW_MS, 0)) for number in range(4)]
    for timer in timers:
        assert republished(under.redirected(timer, redirect, NOW_MS)) is timer
    ends = [said(under.not_published(timer, NOW_MS)) for timer in timers]
    assert ends == [[], [], [("let go", 2), ("nack", 2)], [("let go", 3), ("nack", 3)]]


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 2)), max_size=60), st.booleans())
def test_whatever_fails_the_count_of_those_that_do_comes_back_to_none(
    plays: list[tuple[int, bool, int]], parks: bool
) -> None:
    under, now_ms, publishing = engine(max_held=8, parks=parks), NOW_MS, dict[str, InFlight]()
    for number, is_stored, redeliveries in plays:
        name = f"t{number}"
        if name not in publishing and f"0:{name}" not in under._in_flight and not under.full:
            came = arrival(number, name, FAR_MS, copy=client_message(redeliveries=redeliveries * MAX_GIVEN_BACK))
            commands = under.received(came, now_ms, 0)
        elif name in publishing:
            timer = publishing.pop(name)
            commands = under.published(timer, now_ms) if is_stored else under.not_published(timer, now_ms)
        else:
            now_ms += BOUND_MS
            commands = under.tick(now_ms)
        publishing.update({one.timer.key[2:]: one.timer for one in commands if hasattr(one, "timer")})  # type: ignore[union-attr]
        failing = sum(timer.failures > 0 for timer in under._in_flight.values())
        assert under._giving_back._failing == failing
    assert under.held_count <= 8


# ------------------------------------------------------------ without an id


@pytest.mark.parametrize(
    ("redirect", "redeliveries", "parks", "is_parked"),
    [
        (Parked("no"), 0, True, True),
        (Parked("no"), 99, False, False),
        (ToRetry(FAR_MS), 0, True, False),
        (ToRetry(FAR_MS), MAX_GIVEN_BACK - 1, True, False),
        (ToRetry(FAR_MS), MAX_GIVEN_BACK, True, True),
        (ToRetry(FAR_MS), 99, False, False),
    ],
)
def test_what_has_no_id_is_parked_once_its_handler_has_failed_often_enough(
    redirect: ToRetry | Parked, redeliveries: int, parks: bool, is_parked: bool
) -> None:
    under = engine(parks=parks)
    timer = handed(under.received(unreadable(1, redeliveries), NOW_MS, 0))
    commands = under.redirected(timer, redirect, NOW_MS)
    if is_parked:
        gone = parked(commands)
        limit = f"again {redeliveries} times (limit {MAX_GIVEN_BACK})"
        assert isinstance(redirect, Parked) or limit in str(gone.redirect)
        assert said(under.published(gone, NOW_MS)) == [("ack", 1)]
        assert said(under.received(unreadable(1), NOW_MS, 0)) == [("ack", 1)], "with its batch"
    else:
        assert said(commands) == [("let go", 1), ("nack", 1)]


# ------------------------------------------------------------ copies


def test_copies_of_one_timer_take_no_more_than_half_of_the_room() -> None:
    """A handler may take an hour, and whoever knows the id could fill all of it meanwhile."""
    under = engine(max_held=40)
    timer = handed(under.received(arrival(0, "a", NOW_MS), NOW_MS, 0))
    kept = [said(under.received(arrival(entry, "a", NOW_MS), NOW_MS, 0))[0][0] for entry in range(1, 31)]
    assert kept == ["drop"] * 20 + ["nack"] * 10
    assert not under.full
    assert len(under.done(timer)) == 1 + 20
    assert said(under.received(arrival(30, "a", NOW_MS), NOW_MS, 0)) == [("ack", 30)]
