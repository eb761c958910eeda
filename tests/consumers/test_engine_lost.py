"""A partition's connection is lost: which timers are let go, and that each is left to one consumer alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.consumers.support import BOUND_MS, NOW_MS, arrival, engine, handed, said
from timewheel.consumers.engine import DeliveryPolicy, Engine
from timewheel.consumers.message import Stage, ToRetry

LOST, KEPT = object(), object()
HERE_MS = NOW_MS + BOUND_MS
FAR_MS = NOW_MS + 10 * BOUND_MS


def judging() -> Engine:
    return engine(judge=DeliveryPolicy(lambda _: False, BOUND_MS))


def held(under: Engine) -> None:
    under.received(arrival(1, "a", HERE_MS, origin=LOST), NOW_MS, 0)


def too_early(under: Engine) -> None:
    under.received(arrival(1, "a", FAR_MS, origin=LOST), NOW_MS, 0)


def handed_out(under: Engine) -> None:
    handed(under.received(arrival(1, "a", NOW_MS, origin=LOST), NOW_MS, 0))


def to_be_asked(under: Engine) -> None:
    under.received(arrival(1, "a", NOW_MS, origin=LOST), NOW_MS, 0)


def asked(under: Engine) -> None:
    to_be_asked(under)
    under.asked()


def put_off(under: Engine) -> None:
    timer = handed(under.received(arrival(1, "a", NOW_MS, origin=LOST), NOW_MS, 0))
    assert under.begins(timer, NOW_MS, is_asked=True) is None
    under.postponed(timer, NOW_MS, BOUND_MS)


@pytest.mark.parametrize(
    ("make", "waits"),
    [
        (engine, held),
        (engine, too_early),
        (engine, handed_out),
        (judging, to_be_asked),
        (judging, asked),
        (engine, put_off),
    ],
)
def test_a_timer_that_waits_is_let_go_and_held_again_when_it_comes_again(
    make: Callable[[], Engine], waits: Callable[[Engine], None]
) -> None:
    under = make()
    waits(under)
    assert said(under.disconnected(LOST)) == [("lost", 1)]
    assert (under.held_count - under.unasked - len(under._asked), under.counts.let_go) == (0, 1)
    assert under.answered(NOW_MS) == [] if make is judging else under.tick(HERE_MS) == []

    assert said(under.received(arrival(1, "a", HERE_MS, origin=LOST), NOW_MS, 0)) == []
    assert (under.counts.redelivered, under.counts.early) == (
        0,
        under.counts.received - (waits not in (held, too_early)),
    )


def test_a_timer_of_another_partition_stays() -> None:
    under = engine()
    under.received(arrival(1, "a", HERE_MS, origin=KEPT), NOW_MS, 0)
    assert under.disconnected(LOST) == []
    assert said(under.tick(HERE_MS)) == [("hand", 1)]


def test_a_handler_that_has_begun_goes_on_and_the_redelivery_is_dropped() -> None:
    under = engine()
    timer = handed(under.received(arrival(1, "a", NOW_MS, origin=LOST), NOW_MS, 0))
    assert under.begins(timer, NOW_MS, is_asked=True) is None
    assert under.disconnected(LOST) == []
    assert said(under.received(arrival(1, "a", NOW_MS, origin=LOST), NOW_MS, 0)) == [("drop", 1)]
    assert said(under.done(timer)) == [("ack", 1)]


def test_a_handler_does_not_begin_with_a_timer_that_was_let_go_while_it_waited_for_a_worker() -> None:
    under = engine()
    timer = handed(under.received(arrival(1, "a", NOW_MS, origin=LOST), NOW_MS, 0))
    under.disconnected(LOST)
    assert under.begins(timer, NOW_MS, is_asked=True) == []
    again = handed(under.received(arrival(1, "a", NOW_MS, origin=LOST), NOW_MS, 0))
    assert under.begins(timer, NOW_MS, is_asked=True) == []
    assert under.begins(again, NOW_MS, is_asked=True) is None


def test_a_timer_whose_handler_wants_it_tried_again_goes_on() -> None:
    under = engine(parks=True)
    timer = handed(under.received(arrival(1, "a", NOW_MS, origin=LOST), NOW_MS, 0))
    under.redirected(timer, ToRetry(HERE_MS), NOW_MS)
    assert under.disconnected(LOST) == []
    under.not_published(timer, NOW_MS)
    assert (timer.stage, under.disconnected(LOST)) == (Stage.TOO_EARLY, [])


def test_a_timer_with_a_copy_in_another_partition_waits_on_by_that_copy() -> None:
    under = engine()
    for entry, origin in ((1, LOST), (2, KEPT), (3, LOST), (4, KEPT)):
        under.received(arrival(entry, "a", HERE_MS, origin=origin), NOW_MS, 0)
    assert said(under.disconnected(LOST)) == [("lost", 1), ("lost", 3)]
    assert (under.held_count, under.counts.let_go) == (2, 0)
    timer = handed(under.tick(HERE_MS))
    assert said(under.done(timer)) == [("ack", 2), ("ack", 4)]
    assert under.held_count == 0


def test_a_timer_that_comes_again_shows_that_the_connection_was_lost_unseen() -> None:
    under = engine()
    for entry, origin, at_ms in ((1, LOST, 0), (2, KEPT, 0), (3, LOST, 5), (4, LOST, 9)):
        under.received(arrival(entry, f"t{entry}", HERE_MS, origin=origin), NOW_MS, at_ms)
    again = under.received(arrival(3, "t3", HERE_MS, origin=LOST), NOW_MS, 200)
    assert said(again) == [("drop", 3), ("nack", 1)], "not 4, which may have come since"
    assert [entry for _, entry in said(under.tick(HERE_MS))] == [2, 3, 4]


def test_with_an_ack_timeout_a_timer_that_comes_again_shows_nothing() -> None:
    under = engine(ack_timeout_ms=4 * BOUND_MS)
    for entry in (1, 2):
        under.received(arrival(entry, f"t{entry}", HERE_MS, origin=LOST), NOW_MS, 0)
    assert said(under.received(arrival(2, "t2", HERE_MS, origin=LOST), NOW_MS, 9)) == [("drop", 2)]
