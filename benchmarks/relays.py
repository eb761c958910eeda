"""Relays as processes of their own (`timewheel relay run`), so that what they take is told apart from all else."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from timewheel.core import Plan
from timewheel.core.planfile import save_plan
from timewheel.testing import Broker, eventually

__all__ = ["cpu_s", "peak_mb", "running_relays"]

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
