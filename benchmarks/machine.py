"""What figures are measured on."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path
from typing import Any

import psutil


def processor() -> str:
    """The processor's name and how many cores there are."""
    cpu = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass  # not Linux, or a processor without a name
    return f"{cpu}, {os.cpu_count()} cores"


def short(machine: str) -> str:
    """Shorten what `processor` returns: 2-core EPYC."""
    name, _, cores = machine.rpartition(", ")
    name = re.sub(r"@.*|\(R\)|\b(?:AMD|Intel|Processor|CPU)\b", "", name)
    return f"{cores.partition(' ')[0]}-core {' '.join(name.split())}"


MOST_BUSY, MOST_STOLEN = 0.15, 0.03
"""Shares of all cores' time, in use while nothing is measured, and taken by other machines on the same processor, from
which figures are not to be believed."""


class Quiet:
    """Watches whether others use the machine while it measures."""

    def __init__(self, look_s: float = 2.0) -> None:
        self._look_s = look_s
        self._idle_before = self._look()
        self._began = psutil.cpu_times()

    def disturbance(self) -> str | None:
        """Return in words what the figures since the beginning suffer from; None: nothing."""
        _, stolen = shares(self._began, psutil.cpu_times())
        busy = max(self._idle_before[0], self._look()[0])
        stolen = max(stolen, self._idle_before[1])
        if busy <= MOST_BUSY and stolen <= MOST_STOLEN:
            return None
        return (
            f"machine too busy: before or after, others used {busy:.0%} of its cores (at most {MOST_BUSY:.0%}), and "
            f"{stolen:.0%} of their time was stolen (at most {MOST_STOLEN:.0%})"
        )

    def _look(self) -> tuple[float, float]:
        before = psutil.cpu_times()
        time.sleep(self._look_s)
        return shares(before, psutil.cpu_times())


def shares(before: Any, after: Any) -> tuple[float, float]:
    """Return the shares of time between two `psutil.cpu_times` in which cores were in use, and were taken away."""
    passed = {
        name: getattr(after, name) - getattr(before, name) for name in after._fields if not name.startswith("guest")
    }
    whole = sum(passed.values())
    if not whole:
        return 0.0, 0.0
    idle, stolen = passed["idle"] + passed.get("iowait", 0.0), passed.get("steal", 0.0)
    return (whole - idle - stolen) / whole, stolen / whole


def load() -> str:
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
