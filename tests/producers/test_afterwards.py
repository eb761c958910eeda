from __future__ import annotations

import pytest

from timewheel.client.results import Outcome
from timewheel.core import Calendar, Envelope, Plan, Ring, Router, Tiered, Wheel
from timewheel.core.errors import PayloadTooLarge, SendFailed, SendOutcomeUnknown, TimewheelError
from timewheel.producers.base_producer import MAX_ATTEMPTS, send_outcome
from timewheel.producers.prepare import Outgoing, prepare

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOON_MS = 20_000 * DAY_MS + 12 * HOUR_MS


def router_of(scheme: Calendar | Tiered | Wheel) -> Router:
    return Router(Plan(due_topic="persistent://acme/crm/reminders", subscriptions=("billing",), scheme=scheme))


TIERED = router_of(Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS,)))
CALENDAR = router_of(Calendar())
WHEEL = router_of(Wheel(rings=(Ring(slot_ms=DAY_MS, slots=33),)))


def sent(router: Router, due_ms: int, *, at_ms: int = NOON_MS) -> Outgoing:
    return prepare(router, at_ms, 0, str, b"x", bytes, deliver_at=due_ms, timer_id="sub-42", properties={"a": "b"})


def after(
    router: Router,
    outgoing: Outgoing,
    outcome: Outcome,
    *,
    now_ms: int = NOON_MS,
    attempts: int = 1,
    stored: bool = False,
) -> Outgoing | TimewheelError | None:
    return send_outcome(router, outgoing, outcome, "Cause", now_ms, attempts=attempts, stored=stored)


@pytest.mark.parametrize("router", [TIERED, CALENDAR, WHEEL])
def test_a_confirmed_message_is_done(router: Router) -> None:
    assert after(router, sent(router, NOON_MS + 5 * DAY_MS), Outcome.OK) is None


def test_what_a_slot_may_confirm_after_its_release_is_sent_again_to_the_due_topic() -> None:
    due_ms = NOON_MS + 5 * DAY_MS
    outgoing = sent(WHEEL, due_ms)
    # The slot starts at midnight of its day and is swept the guard of 5 minutes before.
    release_ms = NOON_MS - 12 * HOUR_MS + 5 * DAY_MS - 5 * 60_000
    assert outgoing.release_at_ms == release_ms
    # The relay's clock may be ahead by a fifth of the guard, and its sweep over already.
    too_late_ms = release_ms - 60_000
    assert after(WHEEL, outgoing, Outcome.OK, now_ms=too_late_ms - 1) is None

    again = after(WHEEL, outgoing, Outcome.OK, now_ms=too_late_ms)

    assert isinstance(again, Outgoing)
    assert again.topic == "persistent://acme/crm/reminders"
    assert again.place == "due"
    assert (again.timer_id, again.due_ms, again.payload) == ("sub-42", due_ms, b"x")
    assert again.deliver_at_ms == due_ms - 1_500
    assert Envelope.read(again.properties) == Envelope("sub-42", due_ms, too_late_ms)
    assert again.properties["a"] == "b"
    assert after(WHEEL, again, Outcome.OK, now_ms=release_ms, attempts=2, stored=True) is None


def test_once_a_copy_is_stored_nothing_says_that_it_is_not() -> None:
    due_ms = NOON_MS + 5 * DAY_MS
    again = after(WHEEL, sent(WHEEL, due_ms), Outcome.OK, now_ms=due_ms)
    assert isinstance(again, Outgoing)
    for outcome in (Outcome.REFUSED, Outcome.UNKNOWN, Outcome.TOO_LARGE, Outcome.BUSY):
        assert isinstance(after(WHEEL, again, outcome, now_ms=due_ms, attempts=2, stored=True), SendOutcomeUnknown)


def test_a_terminated_interval_is_routed_again_never_retried() -> None:
    due_ms = NOON_MS + HOUR_MS
    outgoing = sent(CALENDAR, due_ms)
    next_day_ms = NOON_MS + 12 * HOUR_MS

    again = after(CALENDAR, outgoing, Outcome.ROUTE_AGAIN, now_ms=next_day_ms)
    assert isinstance(again, Outgoing)
    assert again.topic != outgoing.topic
    assert again.deliver_at_ms == 0, "its due time is past: delivered at once"
    assert (again.timer_id, again.due_ms) == ("sub-42", due_ms)

    # The interval is still running: there is no other topic for it.
    failed = after(CALENDAR, outgoing, Outcome.ROUTE_AGAIN)
    assert isinstance(failed, SendFailed)
    assert failed.topic == f"{outgoing.topic}-partition-0"


@pytest.mark.parametrize(
    ("outcome", "at_last"),
    [
        (Outcome.REOPEN, SendFailed),  # a closed producer is replaced
        (Outcome.DROPPED, SendOutcomeUnknown),  # never called not stored
    ],
)
def test_what_is_sent_again_is_so_a_bounded_number_of_times(outcome: Outcome, at_last: type[TimewheelError]) -> None:
    outgoing = sent(TIERED, NOON_MS + 5 * DAY_MS)
    for attempts in range(1, MAX_ATTEMPTS):
        assert after(TIERED, outgoing, outcome, attempts=attempts) is outgoing
    assert isinstance(after(TIERED, outgoing, outcome, attempts=MAX_ATTEMPTS), at_last)


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (Outcome.UNKNOWN, SendOutcomeUnknown),
        (Outcome.REFUSED, SendFailed),
        (Outcome.BUSY, SendFailed),
        (Outcome.ROUTE_AGAIN, SendFailed),
        (Outcome.TOO_LARGE, PayloadTooLarge),
    ],
)
def test_every_other_outcome_has_its_own_error(outcome: Outcome, kind: type[TimewheelError]) -> None:
    error = after(TIERED, sent(TIERED, NOON_MS + HOUR_MS), outcome)
    assert type(error) is kind
    if isinstance(error, SendFailed | SendOutcomeUnknown):
        assert (error.timer_id, error.cause) == ("sub-42", "Cause")
        assert error.topic == "persistent://acme/crm/reminders-partition-0"
