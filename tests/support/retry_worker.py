"""A consumer whose handlers fail, for the tests that kill it: run as ``python -m tests.support.retry_worker``.

It records each call of its handler, and kills itself with -9 at the n-th pass of a named point. No code runs between
the decision and the kill.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import sys
import threading
from dataclasses import asdict, dataclass
from typing import Any

import pulsar

from tests.support.through import Through
from timewheel.consumers import DelayedConsumer, DelayedMessage, FixedBackoff, RetryPolicy
from timewheel.consumers.inbox import SqliteInbox
from timewheel.core.plan import Plan

POINTS = ("in_handler", "before_ack", "after_ack")
"""``before_ack``: the message that will be acknowledged is done: handled, or its successor is stored and the inbox was
updated.
"""
MAX_ATTEMPTS = 6
BACKOFF = dt.timedelta(milliseconds=300)
WORKERS = 2
RECEIVER_QUEUE = 20


def is_poison(number: int) -> bool:
    """Return whether a timer's handler always fails."""
    return number % 2 == 0


def succeeds_at(number: int) -> int:
    """Return the attempt at which another timer's handler succeeds."""
    return number // 2 % 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job of a process."""

    service_url: str
    plan: str
    subscription: str
    failing: bool  # whether its handlers fail; handlers of the other subscription succeed
    calls: str
    inbox: str = ""  # the SQLite file; empty: no inbox
    point: str = ""  # where it kills itself; empty: nowhere
    passes: int = 0

    def arguments(self) -> list[str]:
        """Return the command line that runs the job."""
        return [sys.executable, "-m", "tests.support.retry_worker", json.dumps(asdict(self))]


class _Fuse:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._left = job.passes
        self._lock = threading.Lock()

    def __call__(self, point: str) -> None:
        if point != self._job.point:
            return
        with self._lock:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)


class _Client(Through):
    def __init__(self, inner: Any, passes: _Fuse) -> None:
        super().__init__(inner)
        self._passes = passes

    def subscribe(self, *arguments: Any, **options: Any) -> Any:
        return _Consumer(self._inner.subscribe(*arguments, **options), self._passes)


class _Consumer(Through):
    def __init__(self, inner: Any, passes: _Fuse) -> None:
        super().__init__(inner)
        self._passes = passes

    def acknowledge(self, message: Any) -> None:
        self._passes("before_ack")
        self._inner.acknowledge(message)
        self._passes("after_ack")


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    passes = _Fuse(job)
    calls = os.open(job.calls, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def handle(message: DelayedMessage) -> None:
        assert message.timer_id is not None
        os.write(calls, f"{message.timer_id} {message.attempt}\n".encode())  # one write: whole, or not at all
        passes("in_handler")
        number = int(message.timer_id)
        if job.failing and (is_poison(number) or message.attempt < succeeds_at(number)):
            raise ValueError(f"attempt {message.attempt}")

    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    # Longer than the absence of a topic that is unloaded under many consumers.
    client = pulsar.Client(job.service_url, logger=quiet, operation_timeout_seconds=60)
    inbox = SqliteInbox(job.inbox, synchronous="normal") if job.inbox else None
    watched: Any = _Client(client, passes)
    consumer = DelayedConsumer(
        watched,
        Plan.load(job.plan),
        job.subscription,
        relay=not job.failing,
        retry=RetryPolicy(max_attempts=MAX_ATTEMPTS, backoff=FixedBackoff(BACKOFF)),
        inbox=inbox,
        hooks=(),
        receiver_queue_size=RECEIVER_QUEUE,
    )
    with consumer:
        consumer.run(handle, workers=WORKERS)
    client.close()


if __name__ == "__main__":
    main()
