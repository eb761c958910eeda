"""A process that reschedules a timer and is killed with -9 midway: the new timer is stored, the old not yet cancelled.

`arguments` returns its command line. It never gets further: it is killed when it passes the cancellation to the client.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import pulsar

from tests.support.through import Through, ThroughClient
from timewheel.core.names import Names, partition_topic
from timewheel.core.plan import Plan
from timewheel.producers import DelayedProducer, Timer

NEW = b"new"


def arguments(service_url: str, plan_file: str, older: Timer, due_ms: int) -> Sequence[str]:
    """Return the command line that reschedules ``older`` to ``due_ms``, and dies."""
    given = (service_url, plan_file, older.id, str(older.due_ms), str(older.generation), str(due_ms))
    return [sys.executable, "-m", "tests.support.reschedule_worker", *given]


class _Deadly(Through):
    def send_async(self, *_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    service_url, plan_file, timer_id, older_due_ms, generation, due_ms = sys.argv[1:]
    plan = Plan.load(plan_file)
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    log = partition_topic(Names(plan).cancellations, 0)
    client: Any = ThroughClient(
        pulsar.Client(service_url, logger=quiet),
        producer=lambda made, topic, _: _Deadly(made) if topic == log else made,
    )
    older = Timer(timer_id, int(older_due_ms), generation=int(generation))
    DelayedProducer(client, plan).reschedule(older, NEW, deliver_at=int(due_ms))


if __name__ == "__main__":
    main()
