"""The load of a chaos test: bursts of timers, and the outcome of each send."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.chaos_ledger import now_ms
from tests.support.through import BeforeSends, ThroughClient
from timewheel.core.envelope import ID_PROPERTY
from timewheel.core.errors import SendOutcomeUnknown, TimewheelError
from timewheel.core.plan import Plan
from timewheel.producers import DelayedProducer, Timer

PERSISTS_S = 45.0
LEAST_PAUSE_S = 1.0
JOIN_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The pattern of sends.

    Args:
        burst: Timers that are sent at once. A relay-held burst is one batch and one release: many hops are in flight at
            the same moment, so a kill among them has an effect.
        every_s: Seconds between two bursts.
        shortest_ms: The shortest delay.
        longest_ms: The longest.
        limit: Timers in all; then the load ends by itself.
    """

    burst: int = 120
    every_s: float = 0.6
    shortest_ms: int = 6_000
    longest_ms: int = 16_000
    limit: int = 100_000


@dataclass(slots=True)
class Sent:
    """A send."""

    due_ms: int  # when the timer is due
    confirmed_ms: int = 0  # when the broker had confirmed it; 0: it has not
    # how often the producer passed it to its client: again, if it cannot know whether the first is stored
    sends: int = 0
    begun_ms: int = 0  # begin of the call that has no outcome yet; 0: each has
    longest_ms: int = 0  # the longest time from a call to its outcome
    unknown: int = 0  # calls whose outcome is unknown

    @property
    def confirmed(self) -> bool:
        """True if the broker has confirmed it."""
        return self.confirmed_ms > 0

    def waited_ms(self, at_ms: int) -> int:
        """Return the longest time that a caller waited for an outcome, until now."""
        return max(self.longest_ms, at_ms - self.begun_ms if self.begun_ms else 0)


class Load:
    """Sends timers in a background thread until it is stopped.

    Args:
        client: A `pulsar.Client`.
        plan: The plan.
        traffic: Number, interval and delays of the timers.
        seed: Seed of the delays.
        before_burst: Called before each burst; False: skip the burst.
        first_id: The number in the first timer's id.
        stored: Called with each confirmed timer.
        name: The first part of each timer's id.
        persists: Whether a timer that the broker did not confirm is sent again under its id, after a second at least,
            also for a while after `stop`.
        producer_options: Passed on to the producer.
    """

    def __init__(
        self,
        client: Any,
        plan: Plan,
        traffic: Traffic,
        seed: int,
        *,
        before_burst: Callable[[], bool] = lambda: True,
        first_id: int = 0,
        stored: Callable[[Timer], None] = lambda _timer: None,
        name: str = "t",
        persists: bool = False,
        **producer_options: Any,
    ) -> None:
        self._first_id, self._stored = first_id, stored
        self._name, self._persists = name, persists
        self._again: deque[str] = deque()
        self.sent: dict[str, Sent] = {}
        self.failures: list[str] = []
        self._traffic = traffic
        self._random = random.Random(seed)
        self._before_burst = before_burst
        counting: Any = ThroughClient(client, producer=lambda made, *_: BeforeSends(made, self._passed))
        self._producer = DelayedProducer(counting, plan, **producer_options)
        self._confirmed = 0
        self._error: Exception | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-load", daemon=True)

    @property
    def confirmed_count(self) -> int:
        """Number of sends that the broker has confirmed."""
        return self._confirmed

    def confirmed(self) -> set[str]:
        """Return the ids of confirmed timers."""
        return {timer_id for timer_id, sent in list(self.sent.items()) if sent.confirmed}

    def sends(self) -> Mapping[str, int]:
        """Return how often each timer was passed to the client."""
        return {timer_id: sent.sends for timer_id, sent in list(self.sent.items())}

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop sending, and wait until every outcome is known; a second call does nothing."""
        self._ended.set()
        self._thread.join(JOIN_TIMEOUT_S)
        assert not self._thread.is_alive(), "the load is stuck in a send"
        self._producer.close()
        if self._error is not None:
            raise self._error

    def _passed(self, options: Mapping[str, Any]) -> None:
        self.sent[options["properties"][ID_PROPERTY]].sends += 1

    def _run(self) -> None:
        try:
            self._send_bursts()
        except Exception as error:  # noqa: BLE001 - raised again by `stop`, in the test's own thread
            self._error = error

    def _send_bursts(self) -> None:
        while not self._ended.is_set() and len(self.sent) < self._traffic.limit:
            if self._before_burst():
                for _ in range(self._traffic.burst):
                    timer_id = f"{self._name}{self._first_id + len(self.sent):06d}"
                    due_ms = now_ms() + self._random.randint(self._traffic.shortest_ms, self._traffic.longest_ms)
                    self.sent[timer_id] = Sent(due_ms)
                    self._send(timer_id)
            self._ended.wait(self._traffic.every_s)
            self._send_again()
        give_up_s = time.monotonic() + PERSISTS_S
        while self._persists and self._confirmed < len(self.sent) and time.monotonic() < give_up_s:
            threading.Event().wait(LEAST_PAUSE_S)
            self._send_again()

    def _send_again(self) -> None:
        for _ in range(len(self._again)):
            self._send(self._again.popleft())

    def _send(self, timer_id: str) -> None:
        sent = self.sent[timer_id]

        def told(error: TimewheelError | None, timer: Timer | None) -> None:
            sent.longest_ms = sent.waited_ms(now_ms())
            sent.begun_ms = 0
            if error is None and timer is not None:
                sent.confirmed_ms = now_ms()
                self._confirmed += 1
                self._stored(timer)
                return
            sent.unknown += isinstance(error, SendOutcomeUnknown)
            self.failures.append(f"{timer_id}: {error}")
            if self._persists:
                self._again.append(timer_id)

        sent.begun_ms = now_ms()
        try:
            self._producer.send_async(timer_id.encode(), told, deliver_at=sent.due_ms, timer_id=timer_id)
        except TimewheelError as error:  # refused at once, as while the broker is down
            told(error, None)
