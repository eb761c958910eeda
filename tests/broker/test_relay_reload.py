"""A relay service follows its plan files while timers wait and come: each of them is handled once, none is left."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

import httpx
import pytest

from tests.broker.due_topic import now_ms
from tests.broker.relay_service import RelayProcess
from tests.broker.relay_stage import BUSINESS, Stage, plan_of
from timewheel.consumers import DelayedConsumer
from timewheel.consumers.errors import ReceiveTimeout
from timewheel.core.envelope import Envelope
from timewheel.core.plan import Tiered
from timewheel.core.planfile import save_plan
from timewheel.testing import Broker, eventually

TIERS = Tiered(window_ms=1_500, tiers_ms=(1_500, 4_000))
OTHER_TIERS = Tiered(window_ms=2_000, tiers_ms=(2_000, 6_000))
QUIET_MS = 3_000
"""Longer than a copy would be behind: of a hop that is made again, or that another relay takes over."""


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


class Audit:
    """What a consumer handled, and what is wrong with that."""

    def __init__(self) -> None:
        self.handled: Counter[str] = Counter()
        self.early: list[str] = []

    def take_all(self, consumer: DelayedConsumer, count: int) -> None:
        """All of them, and what comes beyond."""
        while True:
            try:
                message = consumer.receive(timeout_millis=QUIET_MS if len(self.handled) >= count else 60_000)
            except ReceiveTimeout:
                return
            assert message.timer_id is not None
            assert message.due_at is not None
            self.handled[message.timer_id] += 1
            if now_ms() < message.due_at.timestamp() * 1_000:
                self.early.append(message.timer_id)
            consumer.acknowledge(message)

    def complaints(self, sent: list[Envelope]) -> list[str]:
        """Every timer that was not handled just once, or too early."""
        wanted = {envelope.timer_id for envelope in sent}
        found = [f"{name}: handled {self.handled[name]} times" for name in wanted if self.handled[name] != 1]
        return found + [f"{name}: unknown" for name in self.handled.keys() - wanted] + self.early


def test_the_audit_sees_what_is_lost_doubled_unknown_or_early() -> None:
    audit = Audit()
    audit.handled.update(["fine", "twice", "twice", "stranger"])
    audit.early = ["early"]
    sent = [Envelope(name, 1_000, 1) for name in ("fine", "twice", "lost")]
    assert sorted(audit.complaints(sent)) == [
        "early", "lost: handled 0 times", "stranger: unknown", "twice: handled 2 times",
    ]  # fmt: skip


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
        audit = Audit()
        with DelayedConsumer(new.client, new.plan, BUSINESS, relay=False) as consumer:
            audit.take_all(consumer, len(load.sent))
        assert audit.complaints(load.sent) == []
        old.await_all_acknowledged(60)
        new.await_all_acknowledged()
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
