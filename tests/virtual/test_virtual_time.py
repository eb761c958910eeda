"""Virtual time: threads in turn, waits that take no time, and clocks of ordinary code."""

from __future__ import annotations

import asyncio
import datetime as dt
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from timewheel.testing.virtual.patches import patched
from timewheel.testing.virtual.scheduler import Killed, NothingToWaitFor, Process, Scheduler

BEGIN_NS = 1_700_000_000_000_000_000
DAY_S = 86_400


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    scheduler = Scheduler(BEGIN_NS)
    with patched(scheduler):
        yield scheduler


def started(target: object, *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread


@pytest.mark.usefixtures("scheduler")
def test_a_sleep_of_days_takes_no_time_and_all_clocks_agree() -> None:
    real_s = time.perf_counter()
    began_s, began_ns = time.monotonic(), time.time_ns()
    time.sleep(17 * DAY_S)
    assert time.monotonic() - began_s == 17 * DAY_S
    assert time.time_ns() - began_ns == 17 * DAY_S * 1_000_000_000
    assert time.time() == pytest.approx(BEGIN_NS / 1e9 + 17 * DAY_S)
    assert time.perf_counter() - real_s < 1


@pytest.mark.usefixtures("scheduler")
def test_threads_run_one_at_a_time_in_the_order_of_their_deadlines() -> None:
    seen: list[tuple[str, float]] = []

    def work(name: str, naps: list[float]) -> None:
        for nap in naps:
            time.sleep(nap)
            seen.append((name, time.monotonic()))

    threads = [started(work, "a", [3, 3]), started(work, "b", [2, 2, 2])]
    for thread in threads:
        thread.join()
    assert seen == [("b", 2), ("a", 3), ("b", 4), ("a", 6), ("b", 6)]


def test_advance_returns_when_all_up_to_then_has_happened(scheduler: Scheduler) -> None:
    seen: list[float] = []

    def work() -> None:
        while True:
            time.sleep(10)
            seen.append(time.monotonic())

    started(work)
    scheduler.advance(30 * 1_000_000_000)
    assert seen == [10, 20, 30]
    assert time.monotonic() == 30


@pytest.mark.usefixtures("scheduler")
def test_conditions_events_and_queues_wait_in_virtual_time() -> None:
    event, items, simple = threading.Event(), queue.Queue[str](), queue.SimpleQueue[str]()
    assert not event.wait(60)
    with pytest.raises(queue.Empty):
        items.get(timeout=60)
    with pytest.raises(queue.Empty):
        simple.get(timeout=60)
    assert time.monotonic() == 180

    def work() -> None:
        time.sleep(5)
        event.set()
        items.put("queue")
        simple.put("simple")

    started(work)
    assert event.wait(60)
    assert (items.get(timeout=60), simple.get(timeout=60)) == ("queue", "simple")
    assert time.monotonic() == 185


@pytest.mark.usefixtures("scheduler")
def test_a_lock_is_waited_for_and_held_by_one() -> None:
    lock, held = threading.RLock(), []

    def work(name: str) -> None:
        with lock, lock:
            held.append(name)
            time.sleep(1)
            held.append(name)

    for thread in [started(work, name) for name in "abc"]:
        thread.join()
    assert held == ["a", "a", "b", "b", "c", "c"]
    assert lock.acquire(timeout=1)


@pytest.mark.usefixtures("scheduler")
def test_a_pool_of_threads_and_an_event_loop_live_in_it() -> None:
    async def main() -> float:
        began_s = asyncio.get_running_loop().time()
        await asyncio.gather(asyncio.sleep(DAY_S), asyncio.to_thread(time.sleep, 2 * DAY_S))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), DAY_S)
        return asyncio.get_running_loop().time() - began_s

    assert asyncio.run(main()) == pytest.approx(3 * DAY_S)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(time.sleep, (3, 1, 2)))
    assert time.monotonic() == pytest.approx(3 * DAY_S + 3)


@pytest.mark.usefixtures("scheduler")
def test_who_waits_for_ever_is_told_where_all_wait() -> None:
    lock = threading.Lock()
    lock.acquire()

    def work() -> None:
        lock.acquire()

    started(work)
    with pytest.raises(NothingToWaitFor) as caught:
        threading.Event().wait()
    assert {place.rpartition(" in ")[2] for _, place in caught.value.waits} == {
        "work",
        "test_who_waits_for_ever_is_told_where_all_wait",
    }


def test_what_ends_a_thread_is_raised_in_the_test(scheduler: Scheduler) -> None:
    def work() -> None:
        raise ValueError("broken")

    started(work).join()
    with pytest.raises(ValueError, match="broken"):
        scheduler.raise_failure()
    scheduler.raise_failure()


def test_a_killed_process_takes_no_other_step_and_a_frozen_one_only_later(scheduler: Scheduler) -> None:
    seen: list[str] = []

    def work(name: str) -> None:
        try:
            while True:
                time.sleep(1)
                seen.append(name)
        except Killed:
            seen.append(f"{name} killed")
            raise

    processes = {name: Process(name, pid) for pid, name in enumerate(("killed", "frozen"), 2)}
    for name, process in processes.items():
        scheduler.current.process = process
        started(work, name)
    scheduler.current.process = None
    scheduler.advance(1_500_000_000)
    scheduler.kill(processes["killed"])
    processes["frozen"].is_frozen = True
    scheduler.advance(2_000_000_000)
    assert seen == ["killed", "frozen", "killed killed"]
    processes["frozen"].is_frozen = False
    scheduler.advance(0)
    assert seen[3:] == ["frozen"]


def test_threads_that_it_does_not_know_wait_as_before() -> None:
    """Only the wall clock is virtual for them, too."""
    seen: list[float] = []
    go = threading.Event()

    def work() -> None:
        go.wait()
        time.sleep(0.001)
        seen.append(time.monotonic())

    thread = started(work)
    real_s = time.monotonic()
    with patched(Scheduler(0)):
        assert time.time() == 0
        assert dt.datetime.now(dt.UTC).year == 1970
        go.set()
        thread.join()
        assert time.monotonic() == 0
    assert real_s < seen[0] < time.monotonic()
