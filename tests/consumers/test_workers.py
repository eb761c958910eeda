"""Workers: keys stay put, queues are bounded, a drain ends."""

from __future__ import annotations

import threading
from collections import defaultdict

from tests.support.manual_clock import LeapingClock, ManualClock
from timewheel.consumers.consumer import KEYED_PER_WORKER, QUEUED_PER_WORKER, Workers
from timewheel.core import SystemClock
from timewheel.testing import eventually

CLOCK = SystemClock()


def test_a_key_stays_on_one_worker_in_order_and_the_others_are_used() -> None:
    seen: dict[str, list[tuple[str, int]]] = defaultdict(list)

    def work(item: tuple[str, int]) -> None:
        key, number = item
        seen[key].append((threading.current_thread().name, number))

    # Python hashes texts by a seed of each process: with five keys, one process in 256 has all of them on one worker.
    keys = [f"order-{number}" for number in range(40)]
    workers: Workers[tuple[str, int]] = Workers(4, work, CLOCK)
    for number in range(100):
        for key in keys:
            assert workers.put((key, number), key, timeout_ms=5_000)
    eventually(lambda: sum(map(len, seen.values())) == 100 * len(keys))
    assert workers.drain(5_000) == []
    for entries in seen.values():
        assert len({name for name, _ in entries}) == 1
        assert [number for _, number in entries] == list(range(100))
    assert len({entries[0][0] for entries in seen.values()}) > 1


def test_items_without_a_key_go_past_a_slow_key() -> None:
    gate = threading.Event()
    done = []

    def work(item: str) -> None:
        if item.startswith("slow"):
            assert gate.wait(10)
        done.append(item)

    workers: Workers[str] = Workers(2, work, CLOCK)
    for number in range(3):
        workers.put(f"slow-{number}", "key", timeout_ms=5_000)
    for number in range(20):
        assert workers.put(f"quick-{number}", "", timeout_ms=5_000)
    eventually(lambda: len(done) == 20)
    gate.set()
    assert workers.drain(5_000) == []
    assert done[20:] == ["slow-0", "slow-1", "slow-2"]


def test_a_hot_key_leaves_the_other_workers_busy() -> None:
    gate = threading.Event()
    done = []

    def work(item: str) -> None:
        if item == "hot":
            assert gate.wait(10)
        done.append(item)

    workers: Workers[str] = Workers(4, work, CLOCK)
    cold = [key for key in map(str, range(100)) if hash(key) % 4 != hash("hot") % 4]
    for key in cold:
        assert workers.put("hot", "hot", timeout_ms=0)
        assert workers.put("hot", "hot", timeout_ms=0)
        assert workers.put(key, key, timeout_ms=5_000)
    eventually(lambda: sorted(done) == sorted(cold))
    while workers.put("hot", "hot", timeout_ms=0):
        pass
    assert len(workers._keyed[hash("hot") % 4]) == KEYED_PER_WORKER
    threading.Timer(0.1, gate.set).start()
    assert workers.drain(10_000) == ["hot"] * (KEYED_PER_WORKER - QUEUED_PER_WORKER)
    assert done.count("hot") == 1 + QUEUED_PER_WORKER, "what was running and next in line"


def test_the_queue_is_bounded() -> None:
    gate = threading.Event()
    begun = threading.Semaphore(0)

    def work(_: int) -> None:
        begun.release()
        assert gate.wait(10)

    clock = LeapingClock()
    workers: Workers[int] = Workers(2, work, clock)
    for number in range(2):
        assert workers.put(number, "", timeout_ms=200)
        assert begun.acquire(timeout=5)
    taken = 0
    while workers.put(taken, "", timeout_ms=200):
        taken += 1
    assert taken == 2 * QUEUED_PER_WORKER
    assert clock.waits_ms == [200], "only the one that found no room waited, and for as long as it was told"
    gate.set()
    assert eventually(lambda: not workers._keyless)
    workers.drain(0)
    assert eventually(lambda: workers.running == 0)


def test_a_drain_gives_back_what_nobody_began_in_time() -> None:
    gate = threading.Event()

    def work(_: int) -> None:
        assert gate.wait(10)

    clock = LeapingClock()
    workers: Workers[int] = Workers(1, work, clock)
    for number in range(4):
        assert workers.put(number, "key" if number % 2 else "", timeout_ms=200)
    eventually(lambda: len(workers._keyless) + len(workers._keyed[0]) == 3)
    assert workers.drain(30_000) == [1, 2, 3]
    assert clock.waits_ms == [30_000]
    assert workers.running == 1
    gate.set()
    eventually(lambda: workers.running == 0)


def test_who_waits_for_room_goes_on_as_soon_as_there_is_some() -> None:
    gate = threading.Semaphore(0)
    clock = ManualClock()
    workers: Workers[int] = Workers(1, lambda _: _pass(gate), clock)
    assert workers.put(0, "", timeout_ms=0)
    assert eventually(lambda: not workers._keyless), "the one worker is busy"
    for number in range(QUEUED_PER_WORKER):
        assert workers.put(number, "", timeout_ms=0)
    taken: list[bool] = []
    putting = threading.Thread(target=lambda: taken.append(workers.put(9, "", timeout_ms=200)))
    putting.start()
    clock.await_wait(200)
    gate.release()
    putting.join(10)
    assert taken == [True]
    assert clock.waits_ms == [200]
    gate.release(1 + QUEUED_PER_WORKER)
    assert eventually(lambda: not workers._keyless)
    workers.drain(0)
    assert eventually(lambda: workers.running == 0)


def _pass(gate: threading.Semaphore) -> None:
    assert gate.acquire(timeout=10)
