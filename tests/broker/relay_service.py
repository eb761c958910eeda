"""A relay service as a process of its own, to be killed, frozen and ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import httpx

from timewheel.core.plan import Plan
from timewheel.core.planfile import save_plan
from timewheel.testing import Broker, eventually
from timewheel.testing.ports import free_ports, is_free

START_TIMEOUT_S = 90.0
LOG_SHOWN = 20_000  # characters of a service's log that a failed test shows


def _port_with_room_behind_it() -> int:
    """With --processes each child has one of those behind it."""
    return next(port for port in free_ports(50) if all(is_free(port + number) for number in (1, 2, 3)))


class RelayProcess:
    """``timewheel relay run`` on one plan, or ``timewheel shadow run``; killed at the end if it still runs.

    Args:
        relay_id: None: its own choice.
        connection: A connection's file, which says where and who; None: that broker, as nobody.
    """

    def __init__(
        self,
        broker: Broker,
        plan: Plan,
        folder: Path,
        *,
        relay_id: str | None = None,
        drain: str = "10s",
        more: Sequence[str] = (),
        connection: Path | None = None,
        plans: Path | None = None,
        kind: Literal["relay", "shadow"] = "relay",
    ) -> None:
        self.ready_file = folder / "ready"
        self.log = folder / "relay.log"
        self.plan_file = folder / "plan.toml"
        if plans is None:
            save_plan(plan, self.plan_file)
        self.port = _port_with_room_behind_it()
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=10)
        command = [sys.executable, "-m", "timewheel", kind, "run", str(plans or self.plan_file), *more]
        urls = ["--service-url", broker.service_url, "--admin-url", broker.admin_url]
        command += [*(urls if connection is None else ["--connection", str(connection)]), "--drain", drain]
        command += ["--http", f":{self.port}", "--ready-file", str(self.ready_file)]
        if relay_id is not None:
            command += ["--relay-id", relay_id]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._http.close()
        if error is not None:
            error.add_note(self.log.read_text()[-LOG_SHOWN:])

    def ask(self, path: str) -> httpx.Response:
        """One of its pages."""
        return self._http.get(path)

    def told(self, name: str) -> list[dict[str, Any]]:
        """The events of this name in its log."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    def status(self) -> dict[str, Any]:
        """What it says about itself."""
        found: dict[str, Any] = self.ask("/readyz").json()
        return found

    def total(self, count: str) -> int:
        """The sum of one count over all partitions."""
        return sum(partition[count] for relay in self.status()["relays"] for partition in relay["partitions"])

    def await_ready(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return self.ready_file.exists()

        eventually(ready, START_TIMEOUT_S, message=self.log.read_text())

    def await_forwarded(self, count: int, timeout: float = 60.0) -> None:
        """Wait until it has made so many hops."""
        eventually(lambda: self.total("forwarded") >= count, timeout, poll=0.02)

    def pause(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def hang_up(self) -> None:
        """Ask it to read its plans again now."""
        self.process.send_signal(signal.SIGHUP)

    def terminate(self, timeout: float = 30.0) -> int:
        """End it in order; its exit code."""
        self.process.terminate()
        return self.process.wait(timeout)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
