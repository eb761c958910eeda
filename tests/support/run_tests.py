"""Run pytest, and run the few tests that failed beside others once more, alone.

A test on a broker has bounds in seconds, and four of them share two cores with the brokers and with whatever else the
machine does. A test that passes alone is listed at the end: its bounds, or the code, are to be mended. One that fails
twice fails the run, and so do more than `MANY` at once, or those of more than `FEW` files.

    python -m tests.support.run_tests tests -n 4

With ``--one-broker`` all processes share a broker: each that has its own starts it, warms it up, and keeps it busy with
nothing for a fiftieth of a core.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path

from timewheel.testing.errors import BrokerUnavailable
from timewheel.testing.service import pulsar_service
from timewheel.testing.settings import BROKER_ADMIN_VARIABLE, BROKER_VARIABLE

FEW = 5  # the most files with failed tests that are run again: tests of one file may share what failed, such as a play

MANY = 20  # the most failed tests that are run again

ALONE = ("-n", "0", "--last-failed", "--last-failed-no-failures", "none")

ONE_BROKER = "--one-broker"

SOME_FAILED = 1  # status of pytest: tests ran and some failed; others mean that it could not run, or was interrupted


def run(arguments: Sequence[str], pytest: Callable[[Sequence[str]], int], failed: Callable[[], Sequence[str]]) -> int:
    """Return the exit status of a run and, where it has one, of its second run.

    A test that ran alone is not run again: nothing else can have made it fail.
    """
    status = pytest(arguments)
    if status != SOME_FAILED or not _runs_side_by_side(arguments):
        return status
    names = failed()
    files = {name.partition("::")[0] for name in names}
    if not 0 < len(files) <= FEW or len(names) > MANY:
        return status
    print(f"\n=== once more, alone: {', '.join(names)}", flush=True)
    status = pytest([*arguments, *ALONE])
    if status == 0:
        print(f"\n=== failed beside others, passed alone: {', '.join(names)}", flush=True)
    return status


def _runs_side_by_side(arguments: Sequence[str]) -> bool:
    return any(option == "-n" and workers not in ("0", "1") for option, workers in pairwise(arguments))


@contextmanager
def _one_broker(arguments: Sequence[str]) -> Iterator[Mapping[str, str]]:
    """Give the variables by which tests find the broker; none if nobody wants one, or it is chosen already."""
    variables = {}
    with ExitStack() as stack:
        if ONE_BROKER in arguments and not os.environ.get(BROKER_VARIABLE):
            with suppress(BrokerUnavailable):  # the tests that ask for one say so
                broker = stack.enter_context(pulsar_service())
                variables = {BROKER_VARIABLE: broker.service_url, BROKER_ADMIN_VARIABLE: broker.admin_url}
        yield variables


def main(arguments: Sequence[str]) -> int:
    """Run the tests that pytest's arguments choose."""
    with tempfile.TemporaryDirectory() as cache, _one_broker(arguments) as variables:

        def pytest(of_run: Sequence[str]) -> int:
            command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *of_run]
            return subprocess.run(command, env={**os.environ, **variables}, check=False).returncode

        def failed() -> list[str]:
            kept = Path(cache, "v", "cache", "lastfailed")
            return sorted(json.loads(kept.read_text(encoding="utf-8"))) if kept.exists() else []

        return run([one for one in arguments if one != ONE_BROKER], pytest, failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
