"""`timewheel relay run` as its operators see it: ready, in several processes, and with plans that change."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

import httpx
import psutil
import pytest

from tests.broker.due_topic import Handled, backlog, now_ms, running
from tests.broker.relay_service import RelayProcess
from tests.broker.relay_stage import BUSINESS, Stage, plan_of
from timewheel.cli.relay_processes import AGAIN_LONGEST_MS, Child
from timewheel.consumers import DelayedConsumer
from timewheel.core.envelope import Envelope
from timewheel.core.names import RELAY_SUBSCRIPTION
from timewheel.core.plan import Tiered
from timewheel.core.planfile import save_plan
from timewheel.testing import Broker, eventually


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Give the socket of a manager of services, which this process and its children are told of."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield receiver


def test_it_says_when_it_is_ready_and_drains_at_sigterm(stage: Stage, tmp_path: Path, systemd: socket.socket) -> None:
    """To whoever asks by HTTP, in a file, and to systemd, again and again."""
    with RelayProcess(stage.broker, stage.plan, tmp_path, more=["--processes", "1"]) as relay:
        relay.await_ready()
        assert [one["ready"] for one in relay.status()["relays"]] == [True]
        assert psutil.Process(relay.process.pid).children() == [], "a relay of one process is that process"
        assert [systemd.recv(100) for _ in range(2)] == [b"READY=1\nWATCHDOG=1"] * 2
        found = relay.ask("/readyz")
        assert (found.status_code, found.json()["ready"]) == (200, True)
        assert relay.ask("/livez").status_code == 200
        # One hop each, spread over two seconds.
        now = now_ms()
        for number in range(2_000):
            entered_ms = now + number - 500
            stage.put(stage.tiers[-1], Envelope(f"t{number}", entered_ms + 1_500 + 700, entered_ms))
        stage.flush()
        relay.await_forwarded(1)
        assert relay.terminate() == 0, relay.log.read_text()
        assert not relay.ready_file.exists()
    assert relay.log.read_text() == "", "nothing to complain of"
    done = len(stage.copies())
    assert 0 < done < 2_000, "it ended in the middle"
    stage.relay()
    stage.await_due(2_000)
    stage.await_all_acknowledged()
    stage.assert_no_copies()


def test_what_happens_is_told_in_lines_of_json(stage: Stage, tmp_path: Path) -> None:
    with RelayProcess(stage.broker, stage.plan, tmp_path) as relay:
        relay.await_ready()
        stage.producer(stage.tiers[0]).send(b"garbled", properties={"tw-id": "x", "tw-timer": "1 soon"})
        eventually(relay.log.read_text, 60)
        assert relay.terminate() == 0, relay.log.read_text()
    (told,) = map(json.loads, relay.log.read_text().splitlines())
    assert (told["logger"], told["event"], told["level"]) == ("timewheel", "relay_dead_letter", "warning")
    assert told["topic"] == f"{stage.tiers[0]}-partition-0"


STUCK = """
    import sys, threading
    import pulsar
    from timewheel.relay import Relay
    from timewheel.relay.service import Service
    from timewheel.core.plan import Plan

    def stuck_in_the_client(*_, **__):
        threading.Event().wait()

    class Stuck:
        def __init__(self, client):
            self.subscribe, self.get_topic_partitions = client.subscribe, client.get_topic_partitions
            self.create_producer = lambda *_, **__: self
            self.send_async = stuck_in_the_client

    client = pulsar.Client(sys.argv[1], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    relay = Relay(Stuck(client), Plan.load(sys.argv[2]), stuck_ms=6_000)
    Service([relay], watchdog_ms=3_000).run()
"""


def test_a_stuck_service_ends_itself_so_that_another_can_take_over(stage: Stage, tmp_path: Path) -> None:
    """The client lives on and the broker sees nothing wrong: only the process itself can tell."""
    save_plan(stage.plan, tmp_path / "plan.toml")
    command = [sys.executable, "-c", textwrap.dedent(STUCK), stage.broker.service_url, str(tmp_path / "plan.toml")]
    stage.hold([2_100])
    stuck = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert stuck.stderr is not None
        assert stuck.wait(60) == 1
        assert "stuck_in_the_client" in stuck.stderr.read(), "the stack says where"
    finally:
        stuck.kill()
        stuck.communicate()
    assert not stage.due()
    stage.relay()
    stage.await_due(1)


PARTITIONS = 4


@pytest.fixture
def spread(pulsar_broker: Broker) -> Iterator[Stage]:
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


def test_they_share_the_work_are_started_again_and_end_together(
    spread: Stage, tmp_path: Path, systemd: socket.socket
) -> None:
    more = ["--processes", "2"]
    with RelayProcess(spread.broker, spread.plan, tmp_path, relay_id="host", more=more) as relay:
        relay.await_ready()
        assert [systemd.recv(100) for _ in range(2)] == [b"READY=1\nWATCHDOG=1"] * 2, "else systemd ends the service"
        eventually(lambda: {name.rpartition("-")[2] for name in readers(spread)} == {"0", "1"}, 60)
        move(spread, "a")
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
        move(spread, "b")
        spread.await_all_acknowledged()
        spread.assert_no_copies()

        running = children(relay)
        assert relay.terminate() == 0, relay.log.read_text()
        assert "relay_process_ended" in relay.log.read_text()
        assert not any(child.is_running() for child in running)
        assert not relay.ready_file.exists()


def test_they_end_when_who_started_them_is_killed(spread: Stage, tmp_path: Path) -> None:
    with RelayProcess(spread.broker, spread.plan, tmp_path, more=["--processes", "2"]) as relay:
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


TIERS = Tiered(window_ms=1_500, tiers_ms=(1_500, 4_000))
OTHER_TIERS = Tiered(window_ms=2_000, tiers_ms=(2_000, 6_000))


class Load:
    """Sends timers all the while, by whichever stage is the present one, until it is told to end."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.sent: list[Envelope] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._ended.wait(0.05):
            # Through one tier and through two, on all partitions.
            self.sent += self.stage.hold([3_500, 7_000, 3_700, 7_300], prefix=f"{number}-")
            number += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def goes_on(self, count: int = 60) -> None:
        """Wait until so many more were sent."""
        until = len(self.sent) + count
        eventually(lambda: len(self.sent) >= until, 60)


@contextmanager
def two_plans(broker: Broker) -> Iterator[tuple[Stage, Stage]]:
    """A plan and the one that takes its place, with the topics of both."""
    plan = plan_of(TIERS, partitions=2)
    with Stage(broker, plan) as old, Stage(broker, replace(plan, scheme=OTHER_TIERS, revision=2)) as new:
        yield old, new


def serves(relay: RelayProcess, stage: Stage) -> bool:
    """Whether it is ready and reads the plan's holding topics."""
    answer = relay.ask("/readyz")
    read = {part["topic"].partition("-partition-")[0] for one in answer.json()["relays"] for part in one["partitions"]}
    return answer.status_code == 200 and {*stage.tiers} <= read


def change_in_order(relay: RelayProcess, new: Stage, again: Callable[[], RelayProcess]) -> RelayProcess:
    """The file changes, and nothing else is done: the relay notices."""
    del again
    save_plan(new.plan, relay.plan_file)
    eventually(lambda: serves(relay, new), 60)
    return relay


def kill_in_the_middle(relay: RelayProcess, new: Stage, again: Callable[[], RelayProcess]) -> RelayProcess:
    """It is told, takes the change up, and dies; another begins with what the file says by then."""
    save_plan(new.plan, relay.plan_file)
    relay.hang_up()
    eventually(lambda: relay.told("relay_plans_changed"), 60, poll=0.002)
    relay.kill()
    after = again()
    after.await_ready()
    eventually(lambda: serves(after, new), 60)
    return after


@pytest.mark.parametrize("change", [change_in_order, kill_in_the_middle], ids=["in-order", "killed"])
def test_timers_sent_before_during_and_after_a_reload_are_each_handled_once(
    pulsar_broker: Broker, tmp_path: Path, change: Callable[..., RelayProcess]
) -> None:
    with two_plans(pulsar_broker) as (old, new), RelayProcess(pulsar_broker, old.plan, tmp_path) as relay:
        (tmp_path / "again").mkdir()

        def again() -> RelayProcess:
            return new.enter(RelayProcess(pulsar_broker, new.plan, tmp_path / "again"))

        relay.await_ready()
        with Load(old) as load:
            load.goes_on()
            change(relay, new, again)
            load.goes_on()  # whoever sends learns of the change last
            load.stage = new
            load.goes_on()
        handled = Handled()
        with running(DelayedConsumer(new.client, new.plan, BUSINESS, relay=False), handled):
            eventually(lambda: len(handled.times) >= len(load.sent), 120)
            old.await_all_acknowledged()
            new.await_all_acknowledged()
            eventually(lambda: backlog(pulsar_broker, new.plan.due_topic, BUSINESS) == 0, 60)
        assert handled.times == Counter(envelope.timer_id for envelope in load.sent)
        assert handled.early == 0
        if change is change_in_order:
            assert relay.process.poll() is None
            hops = [line for line in relay.ask("/metrics").text.splitlines() if line.startswith("timewheel_relay_hops")]
            assert hops
            # The late lane of a relay that a slow machine makes late may store a copy.
            if not any('lane="late"' in line and not line.endswith(" 0.0") for line in hops):
                assert set(new.copies().values()) == {1}, "not even a copy for consumers to drop"


def test_plans_come_and_go_with_their_files(pulsar_broker: Broker, tmp_path: Path) -> None:
    """Two processes: the parent hands the signal on, and each of them looks at the files."""
    processes = 2
    plans = tmp_path / "plans"
    plans.mkdir()
    with Stage(pulsar_broker, plan_of(partitions=2)) as stage, Stage(pulsar_broker, plan_of(partitions=2)) as other:
        save_plan(stage.plan, plans / "first.toml")
        more = ["--processes", str(processes)]
        with RelayProcess(pulsar_broker, stage.plan, tmp_path, plans=plans, more=more) as relay:
            relay.await_ready()

            def await_reported(name: str, count: int = 1) -> list[dict[str, object]]:
                eventually(lambda: len(relay.told(name)) >= count * processes, 60, message=relay.log.read_text())
                return relay.told(name)

            (plans / "second.toml").write_text("half a pl")
            relay.hang_up()
            refused = await_reported("relay_plans_refused")
            assert "second.toml" in str(refused[0]["reason"])
            for number in range(processes):
                told = httpx.get(f"http://127.0.0.1:{relay.port + 1 + number}/metrics", timeout=10).text
                assert 'timewheel_events_total{event="relay_plans_refused",level="error"} 1.0' in told
            other.hold([2_100], prefix="waiting")
            save_plan(other.plan, plans / "second.toml")
            await_reported("relay_plans_changed")
            other.await_due(1)
            stage.hold([2_100])
            stage.await_due(1)

            kept = (plans / "first.toml").read_text()
            stage.hold([30_000] * 3, prefix="left")
            (plans / "first.toml").unlink()
            dropped = await_reported("relay_plan_dropped")
            assert {(one["due_topic"], one["waiting"]) for one in dropped} == {(stage.plan.due_topic, _entries(stage))}
            other.hold([2_100], prefix="later")
            other.await_due(2)
            assert relay.ask("/readyz").status_code == 200
            assert not _is_read(stage)

            (plans / "first.toml").write_text(kept)
            await_reported("relay_plans_changed", 3)
            stage.hold([2_100], prefix="again")
            stage.await_due(2)
            assert _entries(stage) > 0, "what was left waits for its time, as it would have"
            assert relay.terminate() == 0, relay.log.read_text()


def _partitions(stage: Stage) -> list[object]:
    return [
        partition
        for topic in stage.tiers
        for partition in stage.admin.topics.partitioned_stats(
            topic, precise_backlog=True, clients=True
        ).partitions.values()
    ]


def _entries(stage: Stage) -> int:
    """What waits in the holding topics, by the broker."""
    return sum(sub.backlog for part in _partitions(stage) for sub in part.subscriptions.values())  # type: ignore[attr-defined]


def _is_read(stage: Stage) -> bool:
    return any(sub.consumers for part in _partitions(stage) for sub in part.subscriptions.values())  # type: ignore[attr-defined]
