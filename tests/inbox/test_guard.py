"""The inbox around a handler, with a store in memory and a clock that moves when it is told."""

from __future__ import annotations

import random
import threading
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from tests.consumers.support import arrival, engine, handed
from tests.support.manual_clock import ManualClock
from timewheel.client.hooks import LASTS_AFTER_MS, Hooks
from timewheel.consumers import Postpone, RetryLater, SkipTimer
from timewheel.consumers.inbox import Answer, MemoryInbox, inbox_key
from timewheel.consumers.inbox_guard import LEASE_MS, InboxGuard
from timewheel.consumers.message import DelayedMessage
from timewheel.core.envelope import Life
from timewheel.errors import InboxUnavailable
from timewheel.hooks import Event

TOPIC = "persistent://public/default/orders"
KEEP_MS = 60_000


class Away:
    """A store that is not there while it is told so."""

    def __init__(self, inner: MemoryInbox) -> None:
        self._inner = inner
        self.is_away = False

    def __getattr__(self, name: str) -> Any:
        if self.is_away and name in {"claim", "renew", "done", "release"}:
            raise InboxUnavailable("the store", "it is away", "wait")
        return getattr(self._inner, name)


class Desk:
    """Guards of two processes over one store."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store: Any = Away(MemoryInbox(clock=self.clock))
        self.events: list[Event] = []
        self.seeds = count()

    def guard(self, *, tries_again: bool = False, only: type[Exception] = Exception) -> InboxGuard:
        return InboxGuard(
            self.store,
            TOPIC,
            "billing",
            keep_ms=KEEP_MS,
            goes_on=(lambda error: isinstance(error, only)) if tries_again else None,
            clock=self.clock,
            rng=random.Random(next(self.seeds)),
            hooks=Hooks((self.events.append,)),
        )

    def message(self, timer_id: str | None = "t", *, attempt: int = 0) -> DelayedMessage:
        now_ms = self.clock.now_ms()
        came = arrival(1, timer_id, now_ms)
        if came.envelope is not None and attempt:
            came = came._replace(envelope=came.envelope._replace(life=Life(attempt=attempt)))
        return DelayedMessage(handed(engine().received(came, now_ms, 0)), now_ms)

    def named(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_what_was_done_is_skipped_by_everyone(desk: Desk) -> None:
    one, two, message = desk.guard(), desk.guard(), desk.message()
    one.before(message)
    one.after(message)
    for guard in (one, two):
        with pytest.raises(SkipTimer):
            guard.before(message)
        guard.stop()


def test_what_another_has_is_asked_for_again_and_had_when_it_is_given_back(desk: Desk) -> None:
    one, two, message = desk.guard(), desk.guard(), desk.message()
    one.before(message)
    with pytest.raises(Postpone) as caught:
        two.before(message)
    assert 0 < caught.value.after_ms <= 5_000
    one.failed(message, ValueError())
    two.before(message)
    two.after(message)
    for guard in (one, two):
        guard.stop()


def test_a_store_that_is_away_holds_timers_and_is_told_once(desk: Desk) -> None:
    guard, message = desk.guard(), desk.message()
    desk.store.is_away = True
    for second in range(5):
        assert len(desk.named("inbox_did_not_answer")) == (second > LASTS_AFTER_MS // 1_000)
        with pytest.raises(Postpone) as caught:
            guard.before(message)
        assert caught.value.after_ms == 1_000
        desk.clock.advance(1_000)
    assert len(desk.named("inbox_did_not_answer")) == 1
    desk.store.is_away = False
    guard.before(message)
    desk.store.is_away = True
    guard.after(message)
    assert len(desk.named("inbox_not_notified")) == 1
    guard.failed(message, ValueError())  # nothing is claimed any more
    guard.stop()


def test_a_handler_that_takes_long_keeps_its_claim(desk: Desk) -> None:
    guard, message = desk.guard(), desk.message()
    guard.before(message)
    key = inbox_key(TOPIC, "billing", "t", 0)
    for _ in range(9):  # three leases
        desk.clock.await_wait(LEASE_MS // 3)
        desk.clock.advance(LEASE_MS // 3)
        desk.clock.await_wait(LEASE_MS // 3)  # it has renewed, and waits again
        assert desk.store.claim(key, "another", LEASE_MS).answer is Answer.TAKEN
    guard.after(message)
    assert desk.store.claim(key, "another", LEASE_MS).answer is Answer.DONE
    assert desk.events == []
    guard.stop()


def test_a_lease_that_was_lost_is_told(desk: Desk) -> None:
    guard, message = desk.guard(), desk.message()
    guard.before(message)
    guard.stop()  # as if the process stood still
    desk.clock.advance(LEASE_MS + 1)
    assert desk.store.claim(inbox_key(TOPIC, "billing", "t", 0), "another", LEASE_MS).answer is Answer.MINE
    guard.after(message)
    assert len(desk.named("inbox_lease_lost")) == 1


def test_a_message_without_an_id_passes(desk: Desk) -> None:
    guard, message = desk.guard(), desk.message(None)
    for _ in range(2):
        guard.before(message)
        guard.after(message)
    guard.failed(message, ValueError())
    guard.stop()


def test_an_attempt_that_went_on_is_skipped_by_everyone_and_the_next_is_not(desk: Desk) -> None:
    one, two = (desk.guard(tries_again=True) for _ in range(2))
    first = desk.message()
    one.before(first)
    one.failed(first, ValueError())
    with pytest.raises(Postpone):  # until its successor is stored, nobody else has a copy of it
        two.before(first)
    one.settled(first.handle, True)
    for guard in (one, two):
        with pytest.raises(SkipTimer):
            guard.before(first)
    second = desk.message(attempt=1)
    two.before(second)
    two.after(second)
    for message in (first, second, desk.message(attempt=2)):
        with pytest.raises(SkipTimer):
            one.before(message)


def test_without_a_policy_only_what_the_handler_wants_tried_again_stays_claimed(desk: Desk) -> None:
    one, two = (desk.guard(tries_again=True, only=RetryLater) for _ in range(2))
    first = desk.message()
    one.before(first)
    one.failed(first, ValueError())
    desk.clock.advance(1_000)  # the broker delivers it again
    one.before(first)
    one.failed(first, RetryLater())
    with pytest.raises(Postpone):
        two.before(first)
    one.settled(first.handle, True)
    with pytest.raises(SkipTimer):
        two.before(first)


def test_who_cannot_ask_whether_an_attempt_went_on_keeps_no_claim(desk: Desk) -> None:
    one, two, message = desk.guard(tries_again=True), desk.guard(tries_again=True), desk.message()
    claim, claims = desk.store.claim, 0

    def once(*arguments: Any) -> Any:
        nonlocal claims
        claims += 1
        if claims == 2:
            raise InboxUnavailable("the store", "it is away", "wait")
        return claim(*arguments)

    desk.store.claim = once
    with pytest.raises(Postpone):
        one.before(message)
    two.before(message)
    two.after(message)


def test_a_store_that_raises_errors_of_its_own_ends_no_renewals(desk: Desk) -> None:
    guard, message = desk.guard(), desk.message()
    renewed = threading.Event()
    calls = 0

    def renew(*_: Any) -> bool:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ZeroDivisionError("an error of the store's own")
        renewed.set()
        return True

    desk.store.renew = renew
    guard.before(message)
    for _ in range(2):
        desk.clock.await_wait(LEASE_MS // 3)
        desk.clock.advance(LEASE_MS // 3)
    assert renewed.wait(10)
    assert desk.named("inbox_did_not_answer")
    guard.after(message)
    guard.stop()


def test_what_was_not_stored_is_anybodys_again(desk: Desk) -> None:
    one, two, message = desk.guard(tries_again=True), desk.guard(tries_again=True), desk.message()
    one.before(message)
    one.failed(message, ValueError())
    one.settled(message.handle, False)
    two.before(message)
    two.after(message)


@pytest.mark.parametrize("error", [SkipTimer(), Postpone(timedelta(0)), SystemExit()], ids=repr)
def test_what_is_not_tried_again_is_given_back_at_once(desk: Desk, error: BaseException) -> None:
    one, two, message = desk.guard(tries_again=True), desk.guard(tries_again=True), desk.message()
    one.before(message)
    one.failed(message, error)
    two.before(message)
    two.after(message)


def test_a_store_that_is_away_when_an_attempt_went_on_is_told(desk: Desk) -> None:
    guard, message = desk.guard(tries_again=True), desk.message()
    guard.before(message)
    guard.failed(message, ValueError())
    desk.store.is_away = True
    guard.settled(message.handle, True)
    assert len(desk.named("inbox_not_notified")) == 1
    guard.settled(message.handle, True)  # nothing is claimed any more
    assert len(desk.named("inbox_not_notified")) == 1
