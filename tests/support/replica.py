"""A replica of a service in a process of its own: as a program, it notes each timer that it handles.

Its argument is a `Replica`, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import pulsar

from timewheel.consumers import DelayedConsumer, DelayedMessage
from timewheel.consumers.inbox import SqliteInbox
from timewheel.consumers.source import Partition
from timewheel.core import Plan

HoldRules = Literal["right", "held timers are not let go"]


def never_lost(_: Partition) -> bool:
    """Replace `Partition.is_lost`: what is held waits on when its connection is lost."""
    return False


def break_holds(rules: HoldRules) -> None:
    """Break the rules for this process, permanently."""
    if rules != "right":
        assert hasattr(Partition, "is_lost")
        setattr(Partition, "is_lost", never_lost)  # noqa: B010 - a method of a class with slots


SUBSCRIPTION = "billing"
WORKERS = 4
Kind = Literal["held", "keeping", "inbox"]
"""With the SDK: as it is; the control, which keeps what it holds when its connection is lost; with an inbox."""


@dataclass(frozen=True)
class Replica:
    """What a replica is to do."""

    name: str
    service_url: str
    folder: str
    plan: str
    plain_topic: str = ""  # handled by a plain client beside the plan's due topic; empty: none
    kind: Kind = "held"

    def command(self) -> list[str]:
        """Return the command line that runs it."""
        return [sys.executable, "-m", "tests.support.replica", json.dumps(asdict(self))]


class Handling(NamedTuple):
    """A timer as a replica handled it."""

    replica: str
    at_ms: int
    late_ms: int


class _Notes:
    def __init__(self, job: Replica, kind: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(Path(job.folder) / f"{kind}-{job.name}.jsonl", flags)

    def add(self, timer_id: str, due_ms: int) -> None:
        at_ms = time.time_ns() // 1_000_000
        os.write(self._file, (json.dumps([timer_id, at_ms, at_ms - due_ms]) + "\n").encode())


def handled(folder: Path, kind: str) -> dict[str, list[Handling]]:
    """Return all handlings of each timer, in order, as the replicas of a kind noted them."""
    found: dict[str, list[Handling]] = {}
    for path in folder.glob(f"{kind}-*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            timer_id, at_ms, late_ms = json.loads(line)
            found.setdefault(timer_id, []).append(Handling(path.stem, at_ms, late_ms))
    return {timer_id: sorted(each, key=lambda one: one.at_ms) for timer_id, each in found.items()}


def _handle_plain(client: pulsar.Client, job: Replica, stop: threading.Event) -> None:
    notes = _Notes(job, "plain")
    consumer = client.subscribe(job.plain_topic, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Shared)
    while not stop.is_set():
        try:
            message = consumer.receive(200)
        except pulsar.Timeout:
            continue
        timer_id, due_ms = message.data().decode().split()
        notes.add(timer_id, int(due_ms))
        consumer.acknowledge(message)


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    job = Replica(**json.loads(sys.argv[1]))
    if job.kind == "keeping":
        break_holds("held timers are not let go")
    stop = threading.Event()
    client = pulsar.Client(job.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    plain = threading.Thread(target=_handle_plain, args=(client, job, stop))
    if job.plain_topic:
        plain.start()
    notes = _Notes(job, job.kind)
    inbox = SqliteInbox(Path(job.folder) / "inbox") if job.kind == "inbox" else None

    def handle(message: DelayedMessage) -> None:
        assert message.timer_id is not None
        assert message.due_at is not None
        notes.add(message.timer_id, round(message.due_at.timestamp() * 1_000))

    with DelayedConsumer(client, Plan.load(job.plan), SUBSCRIPTION, relay=False, inbox=inbox) as consumer:
        _print("ready")
        consumer.run(handle, workers=WORKERS)
        counts = consumer.counts
    stop.set()
    if job.plain_topic:
        plain.join()
    client.close()
    _print(str(counts))


if __name__ == "__main__":
    main()
