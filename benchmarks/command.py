"""What does the whole command `timewheel plan` take?

`timewheel plan HISTORY.parquet -o plan.toml` in a process of its own, on two cores, as a user runs it: Java and Spark
are started, the history is read, some 300 plans are priced, the best of them counted entry by entry. Memory is the most
that the command's Python processes have at once, and its Java process, in megabytes of the proportional set size. The
history is the one of the question before.

Goals: 25 s at a million rows and 45 s at ten million; both kinds of memory at the largest history at most 1.2 of that
at the smallest. Java takes memory until its limit (2 GB) before it looks for what is no longer needed, so that a longer
run shows more of it: that is not need.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.planner import JVM, QUICK_SIZES, SIZES, WORKERS, on_the_same_cores, tools, watched, write_mixture
from benchmarks.result import Result

__all__ = ["main", "tools"]

SHOWN = frozenset(("s", "Python MB x", "JVM MB x"))
QUESTION = "the whole command"
GOALS_S = {1_000_000: 25, 10_000_000: 45}
GOAL_MEMORY = 1.2
COMMAND_MB = "Python MB"


def run(path: Path, plan: Path) -> tuple[float, dict[str, float]]:
    # By name of the module: the command need not be on the path.
    command = [sys.executable, "-m", "timewheel", "plan", str(path), "-o", str(plan)]
    command += ["--due-topic", "persistent://public/default/bench", "--subscription", "bench"]
    with watched() as most:
        began_s = time.monotonic()
        subprocess.run(command, check=True, capture_output=True, text=True)
        took_s = time.monotonic() - began_s
    if not plan.exists():
        raise RuntimeError("the command wrote no plan")
    return took_s, {COMMAND_MB: most[WORKERS], JVM: most[JVM]}


def main(quick: bool = False, *, sizes: Sequence[int] | None = None) -> list[Result]:
    results: list[Result] = []
    first: dict[str, float] = {}
    wanted = sorted(sizes or (QUICK_SIZES if quick else SIZES))
    with tempfile.TemporaryDirectory(prefix="timewheel-bench-command-") as folder, on_the_same_cores():
        for rows in wanted:
            path = write_mixture(Path(folder, f"{rows}.parquet"), rows)
            took_s, memory = run(path, Path(folder, f"{rows}.toml"))
            first = first or memory
            times = {kind: most / first[kind] for kind, most in memory.items()}
            goals = [(f"at most {GOALS_S[rows]} s", took_s <= GOALS_S[rows])] if rows in GOALS_S else []
            if rows == max(wanted) and len(wanted) > 1 and not quick:
                goals.append((f"memory at most {GOAL_MEMORY} of the smallest", max(times.values()) <= GOAL_MEMORY))
            results.append(
                Result(
                    question=QUESTION,
                    subject=f"{rows:,} rows",
                    figures={"s": took_s, **memory, **{f"{kind} x": ratio for kind, ratio in times.items()}},
                    goal=", ".join(goal for goal, _ in goals),
                    met=all(met for _, met in goals) if goals else None,
                )
            )
    return results
