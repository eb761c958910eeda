"""The reader of the log of cancellations, with a client that is made up: what it says when nothing comes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pulsar
import pytest

from tests.support.manual_clock import ManualClock
from timewheel.client import cancellation_log
from timewheel.client.cancellation_log import RETRY_MS, CancellationLog
from timewheel.client.hooks import LOST_AFTER_MS, Hooks
from timewheel.client.reopening import ATTEMPT_MS
from timewheel.core.cancellations import Cancellation
from timewheel.core.clock import SystemClock
from timewheel.core.durations import DAY_MS
from timewheel.core.envelope import Envelope
from timewheel.core.plan import Cancel, Native, Plan
from timewheel.hooks import Event
from timewheel.testing import eventually

NOW_MS = 1_763_700_000_000
PLAN = Plan(due_topic="persistent://a/b/c", subscriptions=("s",), scheme=Native(), cancel=Cancel())


class Stuck:
    """A client whose first readers say that there is more, and give nothing."""

    def __init__(self, stuck: int) -> None:
        self.stuck = stuck
        self.opened = 0
        self.closed = 0

    def get_topic_partitions(self, topic: str) -> list[str]:
        return [f"{topic}-partition-0"]

    def create_producer(self, *_: Any, **__: Any) -> Any:
        raise pulsar.AuthorizationError("produces nothing")

    def create_reader(self, *_: Any, **__: Any) -> Any:
        self.opened += 1
        return _Reader(self, is_stuck=self.opened <= self.stuck)


class _Reader:
    def __init__(self, client: Stuck, *, is_stuck: bool) -> None:
        self._client = client
        self._is_stuck = is_stuck

    def is_connected(self) -> bool:
        return True

    def has_message_available(self) -> bool:
        return self._is_stuck

    def read_next(self, timeout_millis: int) -> Any:
        raise pulsar.Timeout(f"nothing in {timeout_millis} ms")

    def close(self) -> None:
        self._client.closed += 1


@pytest.mark.parametrize(
    ("after_ms", "reported"),
    [(3, ["cancellations_not_read", "cancellations_read_again"]), (60_000, [])],
    ids=["lasts", "heals"],
)
def test_a_reader_that_gives_nothing_is_opened_anew_and_told_if_that_lasts(
    after_ms: int, reported: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancellation_log, "RETRY_MS", 1)
    monkeypatch.setattr(cancellation_log, "NOT_READ_AFTER_MS", after_ms)
    client: Any = Stuck(2)
    events: list[Event] = []
    log = CancellationLog(client, PLAN, SystemClock(), Hooks((events.append,)))
    log.start()
    question = log.ask()
    eventually(lambda: client.opened == 3)
    assert client.closed == 2
    assert log.await_answer(question, 10_000)
    eventually(lambda: log.ready)
    log.stop()
    assert [event.name for event in events] == reported


class Away:
    """A client whose readers have no connection until a broker serves the log, and the first one never again."""

    def __init__(self) -> None:
        self._client = self
        self.is_served = True
        self.is_first_lost = False
        self.readers: list[Any] = []

    def get_topic_partitions(self, topic: str) -> list[str]:
        return [f"{topic}-partition-0"]

    def create_reader(self, *_: Any, **__: Any) -> Any:
        assert self.is_served, "it would wait for the client's operation time-out"
        number = len(self.readers)
        self.readers.append(
            SimpleNamespace(
                is_connected=lambda: number > 0 or not self.is_first_lost,
                has_message_available=lambda: False,
                close=lambda: None,
            )
        )
        return self.readers[-1]

    def create_producer_async(self, _: str, __: Any, on_opened: Any) -> None:
        name = "Ok" if self.is_served else "Timeout"
        on_opened(SimpleNamespace(value=not self.is_served, name=name), SimpleNamespace(close_async=lambda _: None))

    def lose(self) -> None:
        self.is_served, self.is_first_lost = False, True


def test_a_reader_that_stays_away_is_replaced_once_a_broker_serves_the_log() -> None:
    clock, client = ManualClock(), Away()
    events: list[Event] = []
    made_up: Any = client
    log = CancellationLog(made_up, PLAN, clock, Hooks((events.append,)))
    log.start()
    eventually(lambda: log.ready)

    def passes(ready: bool) -> None:
        clock.advance(RETRY_MS)
        eventually(lambda: RETRY_MS in clock.left_ms or (ready and log.ready), poll=0.001)

    client.lose()
    question = log.ask()
    for _ in range(3 * LOST_AFTER_MS // RETRY_MS):
        passes(ready=False)
    assert (len(client.readers), log.is_answered(question)) == (1, False)
    client.is_served = True
    for _ in range(ATTEMPT_MS // RETRY_MS + 2):
        passes(ready=True)
    assert log.is_answered(question)
    assert len(client.readers) == 2
    clock.advance(LOST_AFTER_MS)
    log.stop()
    assert [event.name for event in events] == ["cancellations_not_read", "cancellations_read_again"]


def read_once(client: Any, events: list[Any]) -> CancellationLog:
    """The log, after it has answered, and been stopped."""
    log = CancellationLog(client, PLAN, SystemClock(), Hooks((events.append,)))
    log.start()
    assert log.await_answer(log.ask(), 10_000)
    log.stop()
    return log


class Full:
    """A client whose log has so many lines, each of another timer."""

    def __init__(self, lines: int, garbage: int = 0) -> None:
        timers = [Cancellation("timer", f"t{number}", 1, 2 * NOW_MS) for number in range(lines)]
        self.left = [b"hello"] * garbage + [one.line().encode() for one in timers]

    def get_topic_partitions(self, topic: str) -> list[str]:
        return [f"{topic}-partition-0"]

    def create_reader(self, *_: Any, **__: Any) -> Any:
        return self

    def is_connected(self) -> bool:
        return True

    def has_message_available(self) -> bool:
        return bool(self.left)

    def read_next(self, timeout_millis: int) -> Any:
        del timeout_millis
        return self

    def data(self) -> bytes:
        return self.left.pop()

    def properties(self) -> dict[str, str]:
        return {}

    def publish_timestamp(self) -> int:
        return 2 * NOW_MS

    def message_id(self) -> Any:
        return pulsar.MessageId.earliest

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (8, []),
        (9, ["many_cancellations"]),
        (10, ["many_cancellations"]),
        (11, ["cancellations_refused", "many_cancellations"]),
    ],
)
def test_beyond_what_a_process_is_made_for_new_names_are_refused_and_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, lines: int, said: list[str]
) -> None:
    monkeypatch.setattr(cancellation_log, "MAX_LIVE", 10)
    events: list[Event] = []
    client: Any = Full(lines)
    log = CancellationLog(client, PLAN, SystemClock(), Hooks((events.append,)))
    log.start()
    assert log.await_answer(log.ask(), 10_000)
    eventually(lambda: len(events) == len(said))
    assert (len(log.table), log.ready) == (min(lines, 10), True)
    # `Full` gives its last line first.
    assert all(
        log.table.is_cancelled(Envelope(f"t{number}", NOW_MS, NOW_MS)) for number in range(max(0, lines - 10), lines)
    )
    log.stop()
    assert [event.name for event in events] == said


def test_what_is_over_stands_in_nobodys_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation_log, "MAX_LIVE", 10)
    events: list[Event] = []
    client: Any = Full(10)
    client.left += [Cancellation("timer", f"over{number}", 1, NOW_MS - DAY_MS).line().encode() for number in range(50)]
    log = read_once(client, events)
    assert {one.name for one in log.table.live()} == {f"t{number}" for number in range(10)}
    assert {event.name for event in events} == {"many_cancellations"}


class Unreadable(Full):
    """A log of which the client cannot give what five messages say, and none is given twice."""

    def properties(self) -> dict[str, str]:
        if len(self.left) >= 3:
            b"\xff".decode()
        return {}

    def data(self) -> bytes:
        return self.taken

    def read_next(self, timeout_millis: int) -> Any:
        del timeout_millis
        self.taken = self.left.pop()
        return self


def test_what_the_client_cannot_read_is_one_message_and_no_more() -> None:
    events: list[Any] = []
    log = read_once(Unreadable(8), events)
    assert {one.name for one in log.table.live()} == {"t0", "t1", "t2"}
    assert {event.name for event in events} == {"cancellations_unknown"}
    assert sum(event.count for event in events) == 5


def test_a_log_full_of_what_is_none_of_ours_is_one_alarm_with_a_count() -> None:
    events: list[Any] = []
    log = read_once(Full(3, garbage=5_000), events)
    assert len(log.table) == 3
    assert [event.name for event in events] == ["cancellations_unknown", "cancellations_unknown"], (
        "at once, and the rest at the end"
    )
    assert sum(event.count for event in events) == 5_000


class Hiding:
    """A client behind whose newest message another one stands that it hands to nobody, whenever it is asked."""

    def __init__(self) -> None:
        self.probes = 0
        self.left: list[int] = []

    def get_topic_partitions(self, topic: str) -> list[str]:
        return [f"{topic}-partition-0"]

    def create_reader(self, *_: Any, **__: Any) -> Any:
        return self

    def create_producer(self, *_: Any, **__: Any) -> Any:
        return self

    def send(self, _: bytes) -> Any:
        self.probes += 1
        self.left.append(self.probes)
        return self.message_id()

    def is_connected(self) -> bool:
        return True

    def has_message_available(self) -> bool:
        return True

    def read_next(self, timeout_millis: int) -> Any:
        if not self.left:
            raise pulsar.Timeout(f"nothing in {timeout_millis} ms")
        self.left.pop()
        return self

    def data(self) -> bytes:
        return b""

    def properties(self) -> dict[str, str]:
        return {}

    def publish_timestamp(self) -> int:
        return NOW_MS

    def message_id(self) -> Any:
        return pulsar.MessageId(-1, 7, 2 * self.probes, -1)

    def close(self) -> None:
        """Nothing is open."""


def test_hidden_entries_that_go_on_coming_keep_no_question_from_its_answer() -> None:
    """What was confirmed before a question stands before the probe that was sent after it."""
    client: Any = Hiding()
    log = CancellationLog(client, PLAN, SystemClock(), Hooks(()))
    log.start()
    try:
        for _ in range(5):
            assert log.await_answer(log.ask(), 1_000)
        assert log.ready
    finally:
        log.stop()
