"""`timewheel relay run --processes`: several processes that are one to whoever runs them."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.broker.relay_service import RelayProcess
from tests.broker.relay_stage import Stage, plan_of
from timewheel.cli.relay_processes import AGAIN_LONGEST_MS, Child
from timewheel.core.names import RELAY_SUBSCRIPTION
from timewheel.testing import Broker, eventually

PARTITIONS = 4


@pytest.fixture
def stage(pulsar_broker: Broker) -> Iterator[Stage]:
    with Stage(pulsar_broker, plan_of(partitions=PARTITIONS)) as made:
        yield made


def readers(stage: Stage) -> set[str]:
    """The relays that read the partitions of the longest tier: of each the one that is active."""
    partitions = stage.admin.topics.partitioned_stats(stage.tiers[0], clients=True).partitions.values()
    return {one.subscriptions[RELAY_SUBSCRIPTION].active_consumer or "" for one in partitions}


def children(relay: RelayProcess) -> list[psutil.Process]:
    return [psutil.Process(one["pid"]) for one in relay.status()["processes"]]


def move(stage: Stage, prefix: str) -> None:
    """Timers through every partition, to the due topic."""
    before = len(stage.copies())
    sent = stage.hold((4_600 for _ in range(200)), prefix=prefix)
    stage.await_due(before + len(sent), 60)


def test_they_share_the_work_are_started_again_and_end_together(stage: Stage, tmp_path: Path) -> None:
    more = ["--processes", "2"]
    with RelayProcess(stage.broker, stage.plan, tmp_path, relay_id="host", more=more) as relay:
        relay.await_ready()
        eventually(lambda: {name.rpartition("-")[2] for name in readers(stage)} == {"0", "1"}, 60)
        move(stage, "a")
        for number in (0, 1):
            told = httpx.get(f"http://127.0.0.1:{relay.port + 1 + number}/metrics", timeout=10).text
            assert re.search(rf'timewheel_relay_ready{{[^}}]*relay_id="host-{number}"}} 1.0', told)

        killed, other = children(relay)
        killed.kill()
        eventually(lambda: not relay.status()["ready"], 60)
        assert relay.ask("/livez").status_code == 200, "it is started again by its parent, and not by an orchestrator"
        eventually(lambda: [one["restarts"] for one in relay.status()["processes"]] == [1, 0], 60)
        eventually(lambda: relay.status()["ready"], 60)
        assert other.is_running()
        move(stage, "b")
        stage.await_all_acknowledged()
        stage.assert_no_copies()

        running = children(relay)
        assert relay.terminate() == 0, relay.log.read_text()
        assert "relay_process_ended" in relay.log.read_text()
        assert not any(child.is_running() for child in running)
        assert not relay.ready_file.exists()


def test_they_end_when_who_started_them_is_killed(stage: Stage, tmp_path: Path) -> None:
    with RelayProcess(stage.broker, stage.plan, tmp_path, more=["--processes", "2"]) as relay:
        relay.await_ready()
        running = children(relay)
        os.kill(relay.process.pid, signal.SIGKILL)
        psutil.wait_procs(running, timeout=60)
        assert not any(child.is_running() for child in running)


def test_what_ends_one_at_its_start_ends_all_of_them_and_is_told(pulsar_broker: Broker, tmp_path: Path) -> None:
    with RelayProcess(pulsar_broker, plan_of(), tmp_path, more=["--processes", "2"]) as relay:
        assert relay.process.wait(60) == 1
        log = relay.log.read_text()
    assert "timewheel topics ensure" in log
    assert "Traceback" not in log


def child_that(does: str, tmp_path: Path) -> Child:
    started = Child("r-0", [sys.executable, "-c", f"import os; {does}"], tmp_path / "ready", random.Random(1))
    started.start()
    return started


def inspected(child: Child, now_ms: int) -> int | None:
    """What a look finds once the process has ended."""
    child.join(30)
    return child.inspect(now_ms)


def test_one_that_is_killed_before_it_was_ever_ready_is_started_again(tmp_path: Path) -> None:
    """A machine short of memory kills whom it likes, and so early too."""
    child = child_that("os.kill(os.getpid(), 9)", tmp_path)
    for number in range(3):
        now_ms = number * 2 * AGAIN_LONGEST_MS
        assert inspected(child, now_ms) is None
        assert child.restarts == number
        assert child.inspect(now_ms + AGAIN_LONGEST_MS) is None
        assert child.restarts == number + 1
    child.join(30)


def test_one_that_has_been_ready_is_started_again_whatever_it_ends_with(tmp_path: Path) -> None:
    child = child_that(f"open({str(tmp_path / 'ready')!r}, 'w').close(); os.read(0, 1); os._exit(7)", tmp_path)
    eventually(lambda: child.ready, 60)
    assert child.inspect(0) is None
    child.end()
    assert inspected(child, 0) is None
    assert not child.ready, "the file is still there"
    assert child.inspect(AGAIN_LONGEST_MS) is None
    assert child.restarts == 1
    child.end()
    child.join(30)


def test_one_that_refuses_at_its_start_is_not_started_again(tmp_path: Path) -> None:
    assert inspected(child_that("os._exit(3)", tmp_path), 0) == 3


def test_of_one_process_nothing_changes(stage: Stage, tmp_path: Path) -> None:
    with RelayProcess(stage.broker, stage.plan, tmp_path, more=["--processes", "1"]) as relay:
        relay.await_ready()
        found: dict[str, Any] = relay.status()
        assert [one["ready"] for one in found["relays"]] == [True]
        assert psutil.Process(relay.process.pid).children() == []
