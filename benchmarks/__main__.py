"""Ask every benchmark its question, print the tables, and write the results down.

python -m benchmarks --quick
python -m benchmarks producer routing --json results.json
python -m benchmarks --write                # docs/benchmarks.md; of some names: their sections of it
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib
import json
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
from benchmarks.machine import Quiet, load, processor, short
from benchmarks.result import Result, merged, section, show, title
from timewheel.testing.settings import version_asked_for

DOCS = Path(__file__).parent.parent / "docs" / "benchmarks.md"
FIRST = ("routing", "producer")  # the short ones come first


def questions() -> dict[str, ModuleType]:
    """Every module here that asks one: that has a ``main``."""
    names = [info.name for info in pkgutil.iter_modules(benchmarks.__path__) if not info.name.startswith("_")]
    names.sort(key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))
    modules = {name: importlib.import_module(f"benchmarks.{name}") for name in names}
    return {name: module for name, module in modules.items() if hasattr(module, "main")}


def machine(load_before: str) -> str:
    """Describe the machine that the figures were measured on."""
    return (
        f"{processor()}, {platform.system()} {platform.release()}, Python {platform.python_version()}, "
        f"Pulsar {version_asked_for()}, load average before: {load_before}"
    )


def measured(module: ModuleType, asked: str) -> str:
    """State when, by which arguments, on which machine and with which tools or broker a benchmark was asked."""
    beside = module.tools() if hasattr(module, "tools") else f"Pulsar {version_asked_for()}"
    today = dt.datetime.now(dt.UTC).date()
    return f"{today}, `{asked}`: {short(processor())}, {beside}."


def main(arguments: Iterable[str] | None = None) -> int:
    asked = questions()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which; all if none is given: {', '.join(asked)}")
    parser.add_argument("--quick", action="store_true", help="fewer messages: to see that they run, not how fast")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--write", action="store_true", help=f"write their sections of {DOCS.parent.name}/{DOCS.name}")
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(given)
    unknown = sorted(set(options.names) - set(asked))
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(asked)}")

    load_before = load()
    measured_on, command = machine(load_before), shlex.join(["python", "-m", "benchmarks", *given])
    answers: dict[str, list[Result]] = {}
    disturbed: dict[str, str] = {}
    order = [title(module) for module in asked.values()]
    for name in options.names or asked:
        print(f"== {name}", flush=True)
        began_s, quiet = time.monotonic(), Quiet()
        answers[name] = asked[name].main(options.quick)
        took_s = time.monotonic() - began_s
        show(answers[name])
        print(f"{took_s:.0f} s", flush=True)
        if disturbance := quiet.disturbance():
            disturbed[name] = disturbance
            print(f"{disturbance}: no result", flush=True)
        # Written after each: the long ones take minutes, and what is measured should not be lost with them.
        if options.json:
            rows = [{"benchmark": asking, **asdict(result)} for asking, found in answers.items() for result in found]
            written = {"machine": measured_on, "command": command, "results": rows, "disturbed": disturbed}
            options.json.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
        if options.write and name not in disturbed:
            alone = f"{name} --quick" if options.quick else name
            told = section(asked[name], answers[name], measured=measured(asked[name], alone))
            before = DOCS.read_text(encoding="utf-8") if DOCS.exists() else ""
            DOCS.write_text(merged(before, {title(asked[name]): told}, order), encoding="utf-8")
    believed = [found for name, found in answers.items() if name not in disturbed]
    missed = [result for found in believed for result in found if result.met is False]
    for result in missed:
        print(f"MISSED: {result.question}, {result.subject}: {result.goal}")
    return 1 if missed or disturbed else 0


if __name__ == "__main__":
    sys.exit(main())
