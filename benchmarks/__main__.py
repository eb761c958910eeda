"""Ask every benchmark its question, print the tables, and write the results down.

python -m benchmarks --quick
python -m benchmarks producer routing --json results.json
python -m benchmarks --write                # docs/benchmarks.md
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib
import json
import os
import pkgutil
import platform
import shlex
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import benchmarks
from benchmarks.result import Result, table
from timewheel.testing.settings import version_asked_for

DOCS = Path(__file__).parent.parent / "docs" / "benchmarks.md"
FIRST = ("routing", "producer")
"""The short ones come first."""


def questions() -> dict[str, ModuleType]:
    """Every module here that asks one: that has a ``main``."""
    names = [info.name for info in pkgutil.iter_modules(benchmarks.__path__) if not info.name.startswith("_")]
    names.sort(key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))
    modules = {name: importlib.import_module(f"benchmarks.{name}") for name in names}
    return {name: module for name, module in modules.items() if hasattr(module, "main")}


def machine() -> str:
    """What the figures were measured on."""
    cpu = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass  # not Linux, or a processor without a name
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    return (
        f"{cpu}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}, "
        f"Pulsar {version_asked_for()}, load average before: {load}"
    )


def page(asked: dict[str, ModuleType], answers: dict[str, list[Result]], measured_on: str, command: str) -> str:
    """The results as a page of the docs."""
    today = dt.datetime.now(dt.UTC).date()
    parts = [
        "# Benchmarks",
        "Each row of ours stands beside what it is compared with, measured in the same run on the same broker: the "
        "ratios travel to other machines, the figures do not.",
        f"Measured on {today}: {measured_on}.\n\n    {command}",
    ]
    for name, results in answers.items():
        text = (asked[name].__doc__ or "").strip()
        title, _, rest = text.partition("\n")
        parts += [f"## {title}", rest.strip(), table(results)]
    return "\n\n".join(part for part in parts if part) + "\n"


def main(arguments: Iterable[str] | None = None) -> int:
    """Run them; 1 if a goal was missed."""
    asked = questions()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which; all if none is given: {', '.join(asked)}")
    parser.add_argument("--quick", action="store_true", help="fewer messages: to see that they run, not how fast")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--write", action="store_true", help=f"write {DOCS.parent.name}/{DOCS.name}")
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(given)
    unknown = sorted(set(options.names) - set(asked))
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(asked)}")

    measured_on, command = machine(), shlex.join(["python", "-m", "benchmarks", *given])
    answers: dict[str, list[Result]] = {}
    for name in options.names or asked:
        print(f"== {name}", flush=True)
        began_s = time.monotonic()
        answers[name] = asked[name].main(options.quick)
        print(f"{time.monotonic() - began_s:.0f} s", flush=True)
        # Written after each: the long ones take minutes, and what is measured should not be lost with them.
        if options.json:
            rows = [{"benchmark": asking, **asdict(result)} for asking, found in answers.items() for result in found]
            written = {"machine": measured_on, "command": command, "results": rows}
            options.json.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
        if options.write:
            DOCS.write_text(page(asked, answers, measured_on, command), encoding="utf-8")
    missed = [result for found in answers.values() for result in found if result.met is False]
    for result in missed:
        print(f"MISSED: {result.question}, {result.subject}: {result.goal}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
