"""Plays seeds: services, relays and faults on a virtual Pulsar.

make simulate SEEDS=300
PYTHONHASHSEED=0 python -m tests.simulation 17                   # the story of seed 17
PYTHONHASHSEED=0 python -m tests.simulation 17 --without 0,2     # without its faults 0 and 2
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tests.simulation.mutations import MUTATIONS, caught_by
from tests.simulation.play import Verdict, judged, played, shrunk
from tests.simulation.scenario import Scenario

CAUGHT = Path(__file__).with_name("caught.json")
"""Of each mutation the first seed that finds it, kept as a test (`tests.simulation.test_simulation`)."""
MUTATION_SEEDS = 300


def story_of(scenario: Scenario, verdict: Verdict) -> str:
    """Return what happened, and what was promised otherwise."""
    faults = [f"fault {number}: {fault}" for number, fault in enumerate(scenario.faults)]
    ends = verdict.broken or ["every promise was kept"]
    return "\n".join([str(scenario), *faults, *verdict.story, "", *ends, f"history {verdict.print}"])


def cores_of(workers: int) -> Any:
    """Return a queue with a core for each worker."""
    cores: Any = multiprocessing.Queue()
    for number in range(workers):
        cores.put(sorted(os.sched_getaffinity(0))[number % len(os.sched_getaffinity(0))])
    return cores


def begin_worker(cores: Any) -> None:
    os.sched_setaffinity(0, {cores.get()})
    logging.disable()


def judged_mutations(chosen: str, most: int, workers: int, *, is_kept: bool) -> int:
    """Play mutations, each until a seed finds it, or by the seed that found it; return how many are not found."""
    kept = json.loads(CAUGHT.read_text()) if CAUGHT.exists() else {}
    names = [name for name in MUTATIONS if chosen in name and (name in kept or not is_kept)]
    seeds = [[kept[name]] if is_kept else range(most) for name in names]
    missed = 0
    # Each in a process of its own: a play that a wrong protocol has broken off may leave something behind.
    with ProcessPoolExecutor(workers, max_tasks_per_child=1, initializer=logging.disable) as pool:
        for name, seed, sentence in pool.map(caught_by, names, seeds):
            missed += seed is None
            kept = {**kept, name: seed} if seed is not None else {one: kept[one] for one in kept if one != name}
            print(f"{name}: " + ("NOT FOUND" if seed is None else f"found by seed {seed}: {sentence}"), flush=True)
    print(f"{len(names) - missed} of {len(names)} mutations found")
    if not is_kept:
        CAUGHT.write_text(json.dumps({name: kept[name] for name in MUTATIONS if name in kept}, indent=2) + "\n")
    return missed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Play seeds.")
    parser.add_argument("seed", nargs="?", type=int, help="tell the story of this one")
    parser.add_argument("--without", default="", metavar="N,N", help="leave out these of its faults")
    parser.add_argument("--seeds", type=int, default=0, help="play so many, and tell the story of the first that fails")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--table", action="store_true", help="print the situations that were met")
    parser.add_argument(
        "--mutations", nargs="?", const="", metavar="WORDS",
        help="play all wrong protocols, or those of whose names these words are part, each until a seed finds it",
    )  # fmt: skip
    parser.add_argument("--kept", action="store_true", help="with --mutations: by the seeds that found them before")
    options = parser.parse_args(arguments)
    if os.environ.get("PYTHONHASHSEED") != "0":
        parser.error("set PYTHONHASHSEED=0, or a seed has another history in each process")
    if options.mutations is not None:
        return bool(
            judged_mutations(options.mutations, options.seeds or MUTATION_SEEDS, options.workers, is_kept=options.kept)
        )
    if options.seed is not None:
        without = tuple(int(number) for number in options.without.split(",") if number)
        scenario, verdict = played(options.seed, without)
        print(story_of(scenario, verdict))
        return bool(verdict.broken)
    return play_all(options)


def play_all(options: argparse.Namespace) -> int:
    began_s, totals, situations = time.perf_counter(), Counter[str](), Counter[tuple[str, str, str]]()
    failed: list[int] = []
    seeds = range(options.first, options.first + options.seeds)
    with ProcessPoolExecutor(options.workers, initializer=begin_worker, initargs=(cores_of(options.workers),)) as pool:
        for seed, scheme, verdict in pool.map(judged, seeds):
            totals.update(sent=verdict.sent, handled=verdict.handled, repeated=verdict.repeated)
            situations += verdict.situations
            if verdict.broken:
                failed.append(seed)
                print(f"seed {seed} ({scheme}): {verdict.broken[0]}", flush=True)
    print(f"{len(seeds)} seeds in {time.perf_counter() - began_s:.0f} s: {dict(totals)}, {len(failed)} failed")
    if options.table:
        print(table_of(situations))
    if failed:
        without = shrunk(failed[0])
        print(story_of(*played(failed[0], without)))
        left_out = f" --without {','.join(map(str, without))}" if without else ""
        print(f"\nPYTHONHASHSEED=0 python -m tests.simulation {failed[0]}{left_out}")
    return bool(failed)


def table_of(situations: Counter[tuple[str, str, str]]) -> str:
    """Return how often each kind of process was struck by each fault after each step at a broker."""
    steps = sorted({step for _, _, step in situations})
    rows = sorted({(who, kind) for who, kind, _ in situations})
    lines = ["| struck | by | " + " | ".join(step or "at a time" for step in steps) + " |"]
    lines.append("|" + "---|" * (len(steps) + 2))
    for who, kind in rows:
        counts = [str(situations.get((who, kind, step), "")) for step in steps]
        lines.append(f"| {who} | {kind} | " + " | ".join(counts) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
