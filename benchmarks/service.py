"""The broker that benchmarks run on: one that is given, or one of their own; and relays as processes of their own
(`timewheel relay run`), so that what they take is told apart from all else.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import psutil
import pulsar

from timewheel.broker.admin import AdminClient
from timewheel.core import Native, Plan, Scheme
from timewheel.core.planfile import save_plan
from timewheel.provision import ensure
from timewheel.testing import Broker, eventually, pulsar_service


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@contextmanager
def service() -> Iterator[Broker]:
    """The broker that ``TIMEWHEEL_TEST_BROKER`` chooses, else one that is started and stopped."""
    with pulsar_service(quick_start=False, progress=print) as broker:
        yield broker


class Reachable(Protocol):
    """A broker, or where it is."""

    @property
    def service_url(self) -> str: ...
    @property
    def admin_url(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker is, for another process."""

    service_url: str
    admin_url: str

    @classmethod
    def of(cls, broker: Reachable) -> Self:
        return cls(broker.service_url, broker.admin_url)


@contextmanager
def connected(broker: Reachable) -> Iterator[Any]:
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        yield client
    finally:
        client.close()


def provisioned(broker: Reachable, name: str, scheme: Scheme | None = None, **changes: Any) -> Plan:
    """A plan of this run's own, its topics made."""
    plan = Plan(
        due_topic=f"persistent://public/default/bench-{name}-{uuid.uuid4().hex[:6]}",
        subscriptions=("bench",),
        scheme=scheme or Native(),
        **changes,
    )
    with AdminClient(broker.admin_url) as admin:
        ensure(admin, plan, now_ms=now_ms())
    return plan


READY_TIMEOUT_S = 300.0


@contextmanager
def running_relays(broker: Broker, plan: Plan, *options: str) -> Iterator[list[psutil.Process]]:
    """The processes of one ready command, itself first: started with these options, ended with the block."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_plan(plan, folder / "plan.toml")
        command = [sys.executable, "-m", "timewheel", "relay", "run", str(folder / "plan.toml")]
        command += ["--service-url", broker.service_url, "--admin-url", broker.admin_url, "--drain", "1s"]
        command += ["--ready-file", str(folder / "ready"), *options]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            eventually((folder / "ready").exists, READY_TIMEOUT_S, poll=0.1)
            own = psutil.Process(process.pid)
            yield [own, *own.children()]
        finally:
            process.terminate()
            process.wait()


def cpu_s(processes: Sequence[psutil.Process]) -> float:
    """Seconds of CPU that they have used so far."""
    times = [process.cpu_times() for process in processes]
    return float(sum(one.user + one.system for one in times))


def peak_mb(process: psutil.Process) -> float:
    """The most memory that a process has had resident, in MiB: what Linux calls its high water mark."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii", errors="replace")
    (kib,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(kib) / 1024
