"""The reader of the log of cut-offs, with a client that is made up: what it says when nothing comes."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest

from timewheel.core.clock import SystemClock
from timewheel.core.life_cycle import Cancel
from timewheel.core.plan import Native, Plan
from timewheel.hooks import Event
from timewheel.testing import eventually
from timewheel.wire import cut_log
from timewheel.wire.cut_log import CutLog
from timewheel.wire.hooks import Hooks

PLAN = Plan(due_topic="persistent://a/b/c", subscriptions=("s",), scheme=Native(), cancel=Cancel())


class Stuck:
    """A client whose first readers say that there is more, and give nothing."""

    def __init__(self, stuck: int) -> None:
        self.stuck = stuck
        self.opened = 0
        self.closed = 0

    def get_topic_partitions(self, topic: str) -> list[str]:
        return [f"{topic}-partition-0"]

    def create_reader(self, *_: Any, **__: Any) -> Any:
        self.opened += 1
        return _Reader(self, is_stuck=self.opened <= self.stuck)


class _Reader:
    def __init__(self, client: Stuck, *, is_stuck: bool) -> None:
        self._client = client
        self._is_stuck = is_stuck

    def has_message_available(self) -> bool:
        return self._is_stuck

    def read_next(self, timeout_millis: int) -> Any:
        raise pulsar.Timeout(f"nothing in {timeout_millis} ms")

    def close(self) -> None:
        self._client.closed += 1


def test_a_reader_that_gives_nothing_is_told_and_opened_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_log, "RETRY_MS", 1)
    client: Any = Stuck(2)
    events: list[Event] = []
    log = CutLog(client, PLAN, SystemClock(), Hooks((events.append,)))
    log.start()
    question = log.ask()
    eventually(lambda: client.opened == 3)
    assert client.closed == 2
    assert log.await_answer(question, 10_000)
    eventually(lambda: log.ready)
    log.stop()
    assert [event.name for event in events] == ["cut_offs_not_read", "cut_offs_read_again"]
