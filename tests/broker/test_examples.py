"""The examples run as they stand: each scheme as a program, the FastAPI ones as servers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.support.checkout import ROOT
from tests.support.processes import ran
from timewheel.testing import eventually
from timewheel.testing.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from timewheel.testing import Broker


LATE_MS = 900  # beside a broker and other tests; alone it is a few
ATTEMPTS = 5  # a machine that is busy makes any timer late, and not every time


@contextmanager
def served(broker: Broker, folder: Path, example: str, path: str, **settings: str) -> Iterator[httpx.Client]:
    """A running example; ends by SIGTERM, as a deployment would end it, and in order."""
    [port] = free_ports(1)
    urls = {"PULSAR_SERVICE_URL": broker.service_url, "PULSAR_ADMIN_URL": broker.admin_url}
    log = folder / "service.log"
    with log.open("a") as output:
        server = subprocess.Popen(
            [sys.executable, str(ROOT / "examples" / example)],
            env={**os.environ, **urls, "PORT": str(port), **settings},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            eventually(lambda: _answers(client, server, log, path), 60)
            yield client
        server.send_signal(signal.SIGTERM)
        # uvicorn drains, then ends itself by the signal that it was sent.
        assert server.wait(30) in {0, -signal.SIGTERM}, log.read_text()
        assert "Traceback" not in log.read_text(), log.read_text()
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def service(pulsar_broker: Broker, tmp_path: Path) -> Iterator[httpx.Client]:
    with served(pulsar_broker, tmp_path, "fastapi_reminders.py", "/reminders") as client:
        yield client


def _answers(client: httpx.Client, server: subprocess.Popen[bytes], log: Path, path: str) -> bool:
    assert server.poll() is None, log.read_text()
    try:
        return client.get(path).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def test_reminders_come_back_once_and_on_time_and_bad_ones_are_refused(service: httpx.Client) -> None:
    sent = []
    for seconds in (0, 1, 4):
        answer = service.post("/reminders", json={"customer": "Zoë", "text": f"in {seconds}", "in_seconds": seconds})
        assert answer.status_code == httpx.codes.ACCEPTED, answer.text
        sent.append(answer.json()["id"])
    for _ in range(2):  # the same id twice is handled once
        service.post("/reminders", json={"customer": "a", "text": "twice", "in_seconds": 2, "id": "sub-42"})
    too_long = service.post("/reminders", json={"customer": "a", "text": "never", "in_seconds": 3_601})
    assert (too_long.status_code, "max_delay" in too_long.text) == (422, True)

    handled = eventually(lambda: found if len(found := service.get("/reminders").json()) >= 4 else None, 60)

    assert sorted(reminded["id"] for reminded in handled) == sorted([*sent, "sub-42"])
    assert {reminded["text"] for reminded in handled} == {"in 0", "in 1", "in 4", "twice"}
    assert all(reminded["late_ms"] >= 0 for reminded in handled), handled
    latest_ms = [max(reminded["late_ms"] for reminded in handled)]
    while len(latest_ms) < ATTEMPTS and min(latest_ms) > LATE_MS:
        again = service.post("/reminders", json={"customer": "a", "text": "again", "in_seconds": 2}).json()["id"]
        latest_ms.append(eventually(lambda again=again: late_by_id(service).get(again), 60))  # type: ignore[misc]
    assert min(latest_ms) <= LATE_MS, latest_ms


def late_by_id(service: httpx.Client) -> dict[str, int]:
    """How late each reminder was, at least a millisecond."""
    return {reminded["id"]: max(1, reminded["late_ms"]) for reminded in service.get("/reminders").json()}


def test_an_order_that_is_paid_does_not_expire_and_what_expires_returns_its_stock_once(
    pulsar_broker: Broker, tmp_path: Path
) -> None:
    settings = {"ORDERS_DATABASE": str(tmp_path / "orders.sqlite3"), "ORDER_TIME_OUT_S": "3"}

    def state(service: httpx.Client, order: int) -> str:
        return str(service.get(f"/orders/{order}").json()["state"])

    def left(service: httpx.Client) -> int:
        return int(service.get("/stock/lamp").json()["left"])

    with served(pulsar_broker, tmp_path, "fastapi_orders.py", "/stock/lamp", **settings) as service:
        placed = [service.post("/orders", json={"article": "lamp", "quantity": 2}) for _ in range(4)]
        assert {one.status_code for one in placed} == {httpx.codes.CREATED}, placed[0].text
        orders = [one.json()["id"] for one in placed]
        assert left(service) == 2
        refused = service.post("/orders", json={"article": "lamp", "quantity": 3})
        assert (refused.status_code, refused.json()["detail"]) == (409, "there are only 2 left")
        for order in orders[:2]:
            assert service.post(f"/orders/{order}/payment").status_code == httpx.codes.NO_CONTENT
        assert service.post(f"/orders/{orders[0]}/payment").json()["detail"] == "it is paid"
        assert service.post("/orders/999/payment").status_code == httpx.codes.NOT_FOUND
        eventually(lambda: [state(service, order) for order in orders] == ["paid", "paid", "expired", "expired"], 60)
        assert left(service) == 6
        late = service.post(f"/orders/{orders[2]}/payment")
        assert (late.status_code, late.json()["detail"]) == (409, "it is expired")
        last = service.post("/orders", json={"article": "lamp", "quantity": 1}).json()["id"]
    # The service was stopped while a time-out waits: the next one has it.
    with served(pulsar_broker, tmp_path, "fastapi_orders.py", "/stock/lamp", **settings) as service:
        eventually(lambda: state(service, last) == "expired", 60)
        assert left(service) == 6


TIMERS = {"native": 4, "tiered": 5, "calendar_days": 5, "wheel": 4}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "tiered" else pytest.mark.short) for name in sorted(TIMERS)]
)
def test_the_example_handles_every_timer_once_and_on_time(pulsar_broker: Broker, name: str) -> None:
    latest_ms: list[float] = []
    while len(latest_ms) < ATTEMPTS and min(latest_ms, default=LATE_MS + 1) > LATE_MS:
        latest_ms.append(max(lateness_ms(pulsar_broker, name)))
    assert min(latest_ms) <= LATE_MS, latest_ms


def lateness_ms(broker: Broker, name: str) -> list[float]:
    """Run an example, in which every timer is handled once; how late each was."""
    urls = {"PULSAR_SERVICE_URL": broker.service_url, "PULSAR_ADMIN_URL": broker.admin_url}
    ended = ran([sys.executable, str(ROOT / "examples" / f"{name}.py")], env={**os.environ, **urls}, timeout=90)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    sent = re.findall(r"^sent (\S+),", ended.stdout, re.MULTILINE)
    handled = re.findall(r"^([0-9a-f-]{20,}).* late by 0:00:(\S+)$", ended.stdout, re.MULTILINE)
    assert sorted(timer_id for timer_id, _ in handled) == sorted(sent), ended.stdout
    assert len(sent) == TIMERS[name]
    assert len(ended.stdout.splitlines()) == 2 * len(sent), "its own lines, and nothing of the SDK's or the client's"
    return [float(late_s) * 1000 for _, late_s in handled]
