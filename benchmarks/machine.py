"""What figures are measured on."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path


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


def load() -> str:
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
