"""What does routing cost, next to building the message?

`Router.route`, the decision itself, against `_pulsar.MessageBuilder` making a message of 200 bytes with the four
properties and the delivery time that such a message has. Both in one thread, alternating; the least of many rounds,
since whatever else runs can only add.

Goal: at most 0.6 of building.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable

import _pulsar

from benchmarks.result import Result
from timewheel.core import DAY_MS, HOUR_MS, Calendar, Envelope, Native, Plan, Ring, Router, Scheme, Tiered, Wheel

SEED = 7
SHOWN = frozenset(("ratio",))
GOAL = 0.6
NOW_MS = 1_763_700_000_000
PAYLOAD = bytes(200)

SCHEMES: dict[str, Scheme] = {
    "native": Native(),
    "tiered, 3 tiers": Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS, DAY_MS, 5 * DAY_MS)),
    "calendar": Calendar(),
    "wheel, 2 rings": Wheel(rings=(Ring(slot_ms=HOUR_MS, slots=30), Ring(slot_ms=DAY_MS, slots=32))),
}


def build(due_times_ms: list[int]) -> None:
    """What the client does with every message before it sends it."""
    for due_ms in due_times_ms:
        builder = _pulsar.MessageBuilder()
        builder.content(PAYLOAD)
        for name, value in PROPERTIES.items():
            builder.property(name, value)
        builder.deliver_at(due_ms)
        builder.build()


PROPERTIES = {"tenant": "acme", "kind": "renewal", **Envelope("sub-42", NOW_MS, NOW_MS).properties()}


def route(router: Router) -> Callable[[list[int]], None]:
    def routed(due_times_ms: list[int]) -> None:
        for due_ms in due_times_ms:
            router.route(due_ms, NOW_MS)

    return routed


def least_us(work: dict[str, Callable[[list[int]], None]], due_times_ms: list[int], rounds: int) -> dict[str, float]:
    """The least time per item of each, in microseconds of this thread's processor time."""
    least = dict.fromkeys(work, float("inf"))
    for name, function in itertools.chain.from_iterable(itertools.repeat(tuple(work.items()), rounds)):
        began_ns = time.thread_time_ns()
        function(due_times_ms)
        least[name] = min(least[name], (time.thread_time_ns() - began_ns) / 1_000 / len(due_times_ms))
    return least


def main(quick: bool = False) -> list[Result]:
    rng = random.Random(SEED)
    due_times_ms = [NOW_MS + rng.randrange(30 * DAY_MS) for _ in range(2_000 if quick else 10_000)]
    work = {
        name: route(Router(Plan(due_topic="persistent://public/default/bench", subscriptions=("s",), scheme=scheme)))
        for name, scheme in SCHEMES.items()
    }
    least = least_us({"build": build, **work}, due_times_ms, 20 if quick else 100)
    return [
        Result(
            question="routing against building a message",
            subject=name,
            figures={"route, us": least[name], "build, us": least["build"], "ratio": least[name] / least["build"]},
            goal=f"at most {GOAL}",
            met=least[name] <= GOAL * least["build"],
        )
        for name in SCHEMES
    ]
