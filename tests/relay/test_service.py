"""A relay service: its watchdog leaves one alone that is only slow to start, and its pages tell how it is."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import httpx
import pytest

from timewheel.relay.driver.source import PartitionState
from timewheel.relay.machine.interface import Counts
from timewheel.relay.relay import PartitionStatus, RelayStatus
from timewheel.relay.service import Service
from timewheel.serving import LOOPBACK, Answer, CannotListen, HttpServer
from timewheel.testing import eventually

SERVICE = """
import time
from timewheel.relay.service import Service

class Relay:
    def start(self):
        time.sleep(3)
    def stop(self, drain_ms):
        pass
    @property
    def alive(self):
        service.end_from_signal()
        return True

service = Service([Relay()], watchdog_ms=2_000)
service.run()
"""


def test_a_start_that_waits_for_a_broker_longer_than_the_watchdog_is_no_stuck_service() -> None:
    """Without a broker the client gives up after 30 s, as did the watchdog, with all stacks instead of the reason."""
    done = subprocess.run([sys.executable, "-c", SERVICE], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@dataclass
class FakeRelay:
    """One partition, which is as it is told to be."""

    alive: bool = True
    ready: bool = True
    stopped: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        pass

    def stop(self, drain_ms: int) -> None:
        del drain_ms
        self.stopped.set()

    def story(self) -> dict[str, Any]:
        return {**self.status().story(), "more": 1}

    def status(self) -> RelayStatus:
        partition: Any = {"state": PartitionState.RUNNING, "connected": self.ready, "alive": self.alive}
        rest: Any = {"head_release_ms": None, "newest_release_ms": None, "reason": None, **asdict(Counts())}
        return RelayStatus(
            relay_id="r",
            ready=self.ready,
            partitions=(PartitionStatus(topic="tier", in_flight=0, in_flight_bytes=0, **partition, **rest),),
        )


class Running:
    """A service of that relay, in a thread: its watchdog is too slow to end the tests."""

    def __init__(self, relay: FakeRelay, **options: Any) -> None:
        relays: Any = [relay]
        self.service = Service(relays, address=(LOOPBACK, 0), **options)
        self._thread = threading.Thread(target=self.service.run)

    def __enter__(self) -> Self:
        self._thread.start()
        eventually(lambda: self.service.port is not None and self.ask("/livez").status_code == 200, 10)
        return self

    def __exit__(self, *_: object) -> None:
        self.service.end()
        self._thread.join(10)

    def ask(self, path: str) -> httpx.Response:
        return httpx.get(f"http://{LOOPBACK}:{self.service.port}{path}", timeout=10, trust_env=False)


def test_one_that_is_not_ready_lives() -> None:
    relay = FakeRelay(ready=False)
    with Running(relay) as running:
        assert running.ask("/livez").json()["live"] is True
        assert (running.ask("/readyz").status_code, running.ask("/readyz").json()["ready"]) == (503, False)
        relay.ready = True
        assert (running.ask("/readyz").status_code, running.ask("/readyz").json()["ready"]) == (200, True)
        assert running.ask("/readyz").json()["relays"][0]["more"] == 1, "what it tells beside its status"
    assert relay.stopped.is_set()


def test_one_with_a_stuck_partition_does_not_and_says_which() -> None:
    relay = FakeRelay()
    with Running(relay) as running:
        relay.alive = False
        answer = running.ask("/livez")
        assert (answer.status_code, answer.json()["stuck"]) == (503, ["tier"])
        relay.alive = True
        assert running.ask("/livez").status_code == 200


def test_more_pages_can_stand_beside_its_own() -> None:
    with Running(FakeRelay(), pages={"/metrics": lambda: Answer(200, b"none yet\n")}) as running:
        assert running.ask("/metrics").text == "none yet\n"


def test_an_address_that_is_taken_is_told_before_anything_starts() -> None:
    taken = HttpServer(LOOPBACK, 0, {})
    relays: Any = [FakeRelay()]
    with pytest.raises(CannotListen, match=rf"cannot listen on {LOOPBACK} port {taken.port}: Address already in use"):
        Service(relays, address=(LOOPBACK, taken.port)).run()
    taken.close()
