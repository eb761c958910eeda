"""The inbox around a handler: claims a key before it, marks the key done after it, and renews the claim meanwhile."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable

from timewheel.client.hooks import Alarms, Fault, Hooks
from timewheel.core.clock import Clock
from timewheel.core.rng import Random
from timewheel.events import InboxDidNotAnswer, InboxLeaseLost, InboxNotNotified

from .inbox.protocol import Answer, Inbox, InboxUnavailable, Owners, inbox_key, kept_for_ms
from .message import DelayedMessage, InFlight
from .middleware import Middleware, Postpone, SkipTimer

LEASE_MS = 30_000
RENEWALS_PER_LEASE = 3
AGAIN_MS = 1_000  # delay before a store that did not answer is asked again
LONGEST_WAIT_MS = 5_000
"""Longest delay before a key that another owner has is claimed again: it may be done long before its lease ends."""
JOIN_TIMEOUT_MS = 5_000


class InboxGuard(Middleware):
    """Lets each timer of a subscription be handled once, as far as its store can ensure it."""

    def __init__(
        self,
        inbox: Inbox,
        due_topic: str,
        subscription: str,
        *,
        keep_ms: int,
        goes_on: Callable[[Exception], bool] | None,
        clock: Clock,
        rng: Random,
        hooks: Hooks,
    ) -> None:
        self._inbox = inbox
        self._place = (due_topic, subscription)
        self._keep_ms = keep_ms
        self._goes_on = goes_on  # True: the timer is published anew, and stays claimed until `settled`
        self._clock = clock
        self._hooks = hooks
        self._alarms = Alarms(hooks, clock)
        self._fault = Fault(clock)
        self._owners = Owners(rng)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._claimed: dict[str, str] = {}
        self._stopping = False
        self._thread: threading.Thread | None = None

    def before(self, message: DelayedMessage) -> None:
        key = self._key(message)
        if key is None:
            return
        owner = self._owners.new()
        try:
            claim = self._inbox.claim(key, owner, LEASE_MS)
        except InboxUnavailable as error:
            with self._lock:
                self._fault.persists()
            if self._fault.lasts:
                self._alarms.raised(InboxDidNotAnswer(error=str(error)))
            raise Postpone(dt.timedelta(milliseconds=AGAIN_MS)) from error
        with self._lock:
            self._fault.ended()
        if claim.answer is Answer.DONE:
            raise SkipTimer("it was done before")
        if claim.answer is Answer.TAKEN:
            raise Postpone(dt.timedelta(milliseconds=min(claim.again_ms, LONGEST_WAIT_MS)))
        if self._goes_on is not None:
            try:
                has_ended = self._has_ended(message, owner)
            except BaseException:
                self._release(key, owner)
                raise
            if has_ended:
                # A copy of an attempt whose successor is stored: handling it would begin a second chain of attempts.
                self._release(key, owner)
                raise SkipTimer("it was tried again before")
        with self._lock:
            self._claimed[key] = owner
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._renew, name="timewheel-inbox", daemon=True)
                self._thread.start()

    def after(self, message: DelayedMessage) -> None:
        key, owner = self._unclaimed(message)
        if key is None or owner is None:
            return
        # By its envelope, which a plain message beside a shadow has as well: with the time of its arrival.
        forget_ms = kept_for_ms(message.handle.due_ms, self._clock.now_ms(), self._keep_ms)
        try:
            was_mine = self._inbox.done(key, owner, forget_ms)
        except InboxUnavailable as error:
            self._hooks.emit(InboxNotNotified(timer_id=message.timer_id, error=str(error)))
            return
        if not was_mine:
            self._hooks.emit(InboxLeaseLost(timer_id=message.timer_id))

    def failed(self, message: DelayedMessage, error: BaseException) -> None:
        is_answer = isinstance(error, SkipTimer | Postpone)
        if self._goes_on is not None and isinstance(error, Exception) and not is_answer and self._goes_on(error):
            return  # until `settled`, so that no copy is handled meanwhile
        key, owner = self._unclaimed(message)
        if key is not None and owner is not None:
            self._release(key, owner)

    def settled(self, timer: InFlight, is_stored: bool) -> None:
        """Release a timer that was to be tried again or parked: it is stored anew, or given back to the broker."""
        envelope = timer.arrival.envelope
        if envelope is None:
            return
        key = inbox_key(*self._place, envelope.timer_id, envelope.generation)
        with self._lock:
            owner = self._claimed.pop(key, None)
        if owner is None:
            return
        if is_stored:
            ended = inbox_key(*self._place, envelope.timer_id, envelope.generation, envelope.life.attempt)
            forget_ms = kept_for_ms(envelope.due_ms, self._clock.now_ms(), self._keep_ms)
            try:
                self._inbox.done(ended, owner, forget_ms)
            except InboxUnavailable as error:
                self._hooks.emit(InboxNotNotified(timer_id=envelope.timer_id, error=str(error)))
        self._release(key, owner)

    def stop(self) -> None:
        """Stop renewing claims. The user closes the store."""
        with self._lock:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._clock.join(self._thread, JOIN_TIMEOUT_MS)
        self._alarms.flush(at_end=True)

    def _has_ended(self, message: DelayedMessage, owner: str) -> bool:
        envelope = message.handle.arrival.envelope
        assert envelope is not None, "it has an id"
        ended = inbox_key(*self._place, envelope.timer_id, envelope.generation, envelope.life.attempt)
        try:
            # Only a lookup: a claim that ends by itself at once.
            return self._inbox.claim(ended, owner, 1).answer is Answer.DONE
        except InboxUnavailable as error:
            with self._lock:
                self._fault.persists()
            if self._fault.lasts:
                self._alarms.raised(InboxDidNotAnswer(error=str(error)))
            raise Postpone(dt.timedelta(milliseconds=AGAIN_MS)) from error

    def _release(self, key: str, owner: str) -> None:
        try:
            self._inbox.release(key, owner)
        except InboxUnavailable:
            return  # the lease ends by itself

    def _key(self, message: DelayedMessage) -> str | None:
        """Return the key of a message; None without an id, by which a copy could be recognised."""
        if message.timer_id is None or message.generation is None:
            return None
        return inbox_key(*self._place, message.timer_id, message.generation)

    def _unclaimed(self, message: DelayedMessage) -> tuple[str | None, str | None]:
        key = self._key(message)
        with self._lock:
            return key, None if key is None else self._claimed.pop(key, None)

    def _renew(self) -> None:
        while True:
            with self._lock:
                if not self._stopping:
                    self._clock.wait(self._changed, LEASE_MS // RENEWALS_PER_LEASE)
                if self._stopping:
                    return
                claimed = list(self._claimed.items())
            for key, owner in claimed:
                try:
                    self._inbox.renew(key, owner, LEASE_MS)
                except Exception as error:  # noqa: BLE001 - a store may be the user's own; without renewals leases end
                    self._alarms.raised(InboxDidNotAnswer(error=str(error)))
                    break
