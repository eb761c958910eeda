"""Messages as they are read: those of plain producers beside a shadow, and those that no Python client can send."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any

import pytest

from tests.consumers.support import BOUND_MS, NOW_MS, engine, handed, republished, said
from tests.support.client_messages import NO_TEXT, client_message
from tests.support.manual_clock import ManualClock
from tests.support.plans import plan_of, shadow_of
from tests.support.stored_entry import native_entry
from timewheel.client.hooks import Hooks
from timewheel.client.positions import EntryPosition, Position
from timewheel.consumers.engine import DeliveryPolicy, Engine, Overdue
from timewheel.consumers.message import (
    Arrival,
    DelayedMessage,
    InFlight,
    Mark,
    Parked,
    ToRetry,
    arrival_of,
    beside_shadow,
    key_of,
    reading_of,
)
from timewheel.consumers.republisher import Republisher, _kept
from timewheel.core.durations import DAY_MS
from timewheel.core.envelope import (
    DUE_PROPERTY,
    FOR_PROPERTY,
    GROUP_PROPERTY,
    ID_PROPERTY,
    MAX_TIMER_ID_CHARS,
    NUDGE_PROPERTY,
    TIMER_PROPERTY,
    Envelope,
)
from timewheel.core.ids import native_id
from timewheel.core.plan import Tiered
from timewheel.shadow.machine.move_decider import MoveDecider

PART = "persistent://acme/crm/reminders-partition-3"
LEDGER, ENTRY = 7, 11
PLAN = shadow_of(Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,)), partitions=4)
ID = f"{PART}:{LEDGER}:{ENTRY}"
TIMER = Envelope("a", NOW_MS, 0)


def plain(properties: dict[str, str], batch_index: int = -1, topic: str = PART) -> Any:
    return client_message(properties, topic=topic, at=(LEDGER, ENTRY, batch_index))


def read(properties: dict[str, str], batch_index: int = -1, *, topic: str = PART) -> Arrival:
    """As a consumer of a plan with an intake reads it."""
    return beside_shadow(ManualClock(NOW_MS))(plain(properties, batch_index, topic), None)


FOR_SOMEBODY = {ID_PROPERTY: "a", TIMER_PROPERTY: "2 9 0 0 0 1 1 1", FOR_PROPERTY: "billing"}


@pytest.mark.parametrize("batch_index", [-1, 0])
@pytest.mark.parametrize("mine", ["", "audit", "billing"])
def test_a_timer_for_another_subscription_is_unreadable(mine: str, batch_index: int) -> None:
    """It comes by the topic of what that one tries again. Elsewhere a stranger has put it, and there is no way on."""
    message = plain(FOR_SOMEBODY, batch_index)
    for arrival in (reading_of(mine)(message, None), beside_shadow(ManualClock(NOW_MS), mine)(message, None)):
        if mine == "billing":
            assert arrival.envelope is not None
        else:
            assert (arrival.envelope, arrival.mark) == (None, None)
            assert "tw-for names another subscription" in str(arrival.envelope_error)
            assert said(engine().received(arrival, NOW_MS, 0)) == [("hand", ENTRY)], "with the reason"


@pytest.mark.parametrize(
    ("properties", "batch_index", "timer_id", "mark"),
    [
        ({}, -1, ID, Mark.NATIVE),
        ({"colour": "red"}, -1, ID, Mark.NATIVE),
        ({DUE_PROPERTY: "1"}, -1, ID, Mark.NATIVE),  # meant for the intake: here it says nothing
        ({}, 0, f"{ID}:0", Mark.NATIVE),
        (TIMER.properties(), -1, "a", None),
        (TIMER.properties(), 2, "a", None),
        ({ID_PROPERTY: "a"}, -1, None, None),  # garbled: no shadow moves it
        ({ID_PROPERTY: "a", TIMER_PROPERTY: "9 1 2"}, -1, None, Mark.TOO_NEW),
        ({NUDGE_PROPERTY: ""}, -1, None, Mark.NUDGE),
        ({NUDGE_PROPERTY: ""}, 0, None, Mark.NUDGE),
    ],
)
def test_what_a_message_is_beside_a_shadow(
    properties: dict[str, str], batch_index: int, timer_id: str | None, mark: Mark | None
) -> None:
    arrival = read(properties, batch_index)
    assert (arrival.envelope and arrival.envelope.timer_id, arrival.mark) == (timer_id, mark)
    # Without an intake nothing has an id that nobody gave it, and all else is the same.
    elsewhere = arrival_of(plain(properties, batch_index), None)
    native = mark is Mark.NATIVE
    assert (elsewhere.envelope, elsewhere.mark) == ((None, None) if native else (arrival.envelope, mark))


def test_the_id_is_the_one_that_the_shadow_gives_to_the_copy() -> None:
    entry = native_entry(NOW_MS, NOW_MS + 9, EntryPosition(LEDGER, ENTRY))
    copy = Envelope.read(MoveDecider(PLAN).copy(entry, PART, NOW_MS))
    assert copy is not None
    native = read({}).envelope
    assert native is not None
    assert (native.timer_id, native.generation, native.life) == (copy.timer_id, copy.generation, copy.life)


def test_a_long_name_loses_its_beginning_and_never_the_place() -> None:
    name = "persistent://acme/crm/" + "x" * 400
    first, second = (native_id(name, EntryPosition(1, entry)) for entry in (2, 3))
    assert len(first) == len(second) == MAX_TIMER_ID_CHARS
    assert (first[-4:], second[-4:]) == ("x:1:2"[-4:], "x:1:3"[-4:])


def test_the_handler_sees_the_id_and_no_due_time_that_nobody_knows() -> None:
    message = DelayedMessage(handed(engine().received(read({}), NOW_MS, 0)), NOW_MS + 9)
    assert (message.timer_id, message.generation, message.attempt, message.hops) == (ID, 0, 0, 0)
    assert (message.due_at, message.lateness, message.envelope_error) == (None, None, None)


# ------------------------------------------------------------ the original and its copy


def original() -> Arrival:
    return read({})


def copy_of(*, due_ms: int = NOW_MS) -> Arrival:
    """What the shadow made of the original: elsewhere, with its due time."""
    message = plain(Envelope(ID, due_ms, 0, hops=2).properties())
    return arrival_of(message, None)._replace(position=arrival_of(message, None).position._replace(entry=99))


@pytest.mark.parametrize(
    ("first", "second"), list(itertools.permutations([original(), copy_of()])), ids=["original first", "copy first"]
)
def test_they_are_handled_once_whichever_comes_first(first: Arrival, second: Arrival) -> None:
    one, other = first.position.entry, second.position.entry
    at_once = engine()
    timer = handed(at_once.received(first, NOW_MS, 0))
    assert said(at_once.received(second, NOW_MS, 0)) == [("drop", other)]
    assert said(at_once.done(timer)) == [("ack", one), ("ack", other)]

    later = engine()
    later.done(handed(later.received(first, NOW_MS, 0)))
    assert said(later.received(second, NOW_MS, 0)) == [("ack", other)]
    for under in (at_once, later):
        assert said(under.received(first, NOW_MS, 0)) == [("ack", one)], "neither is handled once more"
        assert under.counts.handed == 1

    failing = engine()
    timer = handed(failing.received(first, NOW_MS, 0))
    failing.received(second, NOW_MS, 0)
    assert said(failing.failed(timer)) == [("nack", one), ("nack", other)]
    assert said(failing.received(second, NOW_MS, 0)) == [("hand", other)]


def test_an_original_that_comes_while_its_copy_is_held_waits_with_it() -> None:
    under = engine()
    assert under.received(copy_of(due_ms=NOW_MS + BOUND_MS), NOW_MS, 0) == []
    assert said(under.received(original(), NOW_MS, 0)) == [("drop", ENTRY)]
    timer = handed(under.tick(NOW_MS + BOUND_MS))
    assert said(under.done(timer)) == [("ack", 99), ("ack", ENTRY)]


@pytest.mark.parametrize("redirect", [ToRetry(NOW_MS + 60_000), Parked("no")])
def test_one_that_is_tried_again_or_parked_takes_its_copy_along(redirect: ToRetry | Parked) -> None:
    under = engine()
    timer = handed(under.received(original(), NOW_MS, 0))
    assert republished(under.redirected(timer, redirect, NOW_MS)) is timer
    assert said(under.published(timer, NOW_MS)) == [("ack", ENTRY)]
    assert said(under.received(copy_of(), NOW_MS, 0)) == [("ack", 99)]


def test_one_that_was_cancelled_by_its_id_is_dropped() -> None:
    under = engine(judge=DeliveryPolicy(lambda envelope: envelope.timer_id == ID, 60_000))
    assert said(under.received(original(), NOW_MS, 0)) == [("ack", ENTRY)]
    assert under.counts.cancelled == 1


def test_nobody_knows_how_late_it_is_so_it_is_never_overdue() -> None:
    under = engine(overdue=Overdue(dt.timedelta(milliseconds=1), then="drop"))
    assert said(under.received(original(), NOW_MS, 0)) == [("hand", ENTRY)]


def test_it_is_still_counted_as_what_no_sdk_has_sent() -> None:
    under = engine()
    under.received(original(), NOW_MS, 0)
    assert (under.counts.foreign, under.counts.received, under.counts.early) == (1, 1, 0)


# ------------------------------------------------------------ nudges


@pytest.mark.parametrize("make", [engine, lambda: engine(judge=DeliveryPolicy(lambda _: False, 1))])
def test_a_stir_is_acknowledged_and_no_handler_sees_it(make: Any) -> None:
    under: Engine = make()
    assert said(under.received(read({NUDGE_PROPERTY: ""}), NOW_MS, 0)) == [("ack", ENTRY)]
    assert (under.counts.nudges, under.counts.foreign, under.counts.handed, under.held_count) == (1, 0, 0, 0)


# ------------------------------------------------------------ what is parked


@pytest.mark.parametrize(("arrival", "adds"), [(original(), True), (copy_of(), False)])
def test_what_is_parked_can_be_found_by_its_id(arrival: Arrival, adds: bool) -> None:
    plan = plan_of(
        Tiered(window_ms=60_000, tiers_ms=(60_000, 3_600_000)),
        max_delay_ms=3_600_000,
        relay="service",
        retry=True,
        intake=True,
    )
    client: Any = None
    republisher = Republisher(client, plan, "billing", ManualClock(NOW_MS), Hooks(()))
    timer, envelope = InFlight(f"0:{ID}", arrival, 0, redirect=Parked("no such customer")), arrival.envelope
    assert envelope is not None
    topic, deliver_at_ms, properties = republisher._redirect(timer, envelope, NOW_MS, 0)
    assert (topic, deliver_at_ms) == (f"{plan.due_topic}.tw.parked.billing", 0)
    client_s = {GROUP_PROPERTY: "no stamp", FOR_PROPERTY: "nobody", "colour": "red"}
    stray = InFlight("a", read(client_s), 0, redirect=ToRetry(NOW_MS))
    assert _kept(stray) == {"colour": "red"}, "or they would count beside the line of version 2 that it gets"
    unread = InFlight(f"@{arrival.position}", arrival._replace(envelope=None), 0, redirect=timer.redirect)
    assert TIMER_PROPERTY not in republisher._redirect(unread, None, NOW_MS, 0)[2], (
        "nobody makes up what could not be read"
    )
    stored = {**arrival.message.properties(), **properties}
    found = Envelope.read(stored)
    assert found is not None
    assert found.timer_id == ID
    assert (TIMER_PROPERTY in properties) is adds


def test_properties_that_are_no_text_are_an_envelope_error_and_stop_nothing() -> None:
    arrival = arrival_of(client_message(NO_TEXT), None)
    assert arrival.envelope is None
    assert arrival.envelope_error is not None
    assert "utf-8" in arrival.envelope_error
    assert arrival.position == Position(1, 2, -1)


def test_a_key_that_is_no_text_goes_to_any_worker() -> None:
    assert key_of(client_message(key=NO_TEXT)) == ""
