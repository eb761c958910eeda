"""Ways to do the same, compared: they take turns, each round in a process of its own, and neighbours are paired."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from benchmarks.result import Result

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """One round: messages per second, and CPU of the whole process per message, with the client's threads."""

    per_s: float
    cpu_us: float


class Watch:
    """Measures the pace of messages from its creation on."""

    def __init__(self) -> None:
        self._began_s, self._began_cpu_s = time.perf_counter(), time.process_time()

    def pace(self, messages: int) -> Pace:
        took_s, took_cpu_s = time.perf_counter() - self._began_s, time.process_time() - self._began_cpu_s
        return Pace(per_s=messages / took_s, cpu_us=took_cpu_s / messages * 1e6)


def alone(play: Callable[..., T], *args: Any) -> T:
    """Call a module's function in a process of its own; a client does not outlive a fork."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(play, *args).result()


def in_turns(ways: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Play all ways, in the opposite order in every other round."""
    found: dict[str, list[T]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in list(ways)[:: 1 if number % 2 else -1]:
            found[name].append(ways[name]())
    return found


def medians(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: statistics.median(figures) for name, figures in found.items()}


def compared(
    question: str,
    subject: str,
    ours: Sequence[Pace],
    raw: Sequence[Pace],
    *,
    rival: str = "raw",
    goal: float | None = None,
    cpu_goal: float | None = None,
) -> Result:
    """Our pace by that of its neighbours in time: the median of the ratios, and the least and the most of them."""
    ratios = sorted(mine.per_s / theirs.per_s for mine, theirs in zip(ours, raw, strict=True))
    cpu = statistics.median(mine.cpu_us / theirs.cpu_us for mine, theirs in zip(ours, raw, strict=True))
    ratio = statistics.median(ratios)
    goals = [
        *([f"at least {goal} of {rival}"] if goal else []),
        *([f"at most {cpu_goal} of its CPU"] if cpu_goal else []),
    ]
    return Result(
        question=question,
        subject=subject,
        figures={
            "msg/s": statistics.median(pace.per_s for pace in ours),
            f"of {rival}": f"{ratio:.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})",
            "ratio": ratio,
            "of its CPU": cpu,
            "CPU us": statistics.median(pace.cpu_us for pace in ours),
            f"CPU of {rival}, us": statistics.median(pace.cpu_us for pace in raw),
            "rounds": len(ratios),
        },
        goal=", ".join(goals),
        met=(ratio >= (goal or 0) and (cpu_goal is None or cpu <= cpu_goal)) if goals else None,
    )


SHOWN = frozenset(("of raw", "of raw that batches", "of its CPU"))
"""The figures of `compared` that the page shows."""
