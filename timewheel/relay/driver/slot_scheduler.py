"""Opens the slots of rings when they need it, so that a wheel of many slots runs on few threads."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from timewheel.core.clock import wait_until
from timewheel.relay.driver.partition import Partition
from timewheel.relay.driver.source import Tools
from timewheel.relay.machine.visits import Times, Visit, last_times, next_times

MAX_CATCH_UPS = 16
"""Slots checked at once after a start: timers that became due while no relay ran must not wait for a whole turn."""
LOOK_AGAIN_MS = 15_000
"""For a `native` plan: processes that use the earlier plan may still send."""
WAKE_MS = 2_000
"""The longest wait, so that a jump of the clock is noticed."""
SET_BACK_MS = 500
"""A clock that is set back by more has all visits planned anew; between two checks it is slewed by less."""


class SlotScheduler:
    """A thread that starts visits, each in its own thread.

    Args:
        partitions: All partitions of all slots.
        tools: The relay's tools.
    """

    def __init__(self, partitions: Iterable[Partition], tools: Tools) -> None:
        self._partitions = tuple(partitions)
        self._clock = tools.clock
        self._is_native = tools.router.is_native
        self._changed = threading.Condition()
        self._stopping = False
        self._threads: set[threading.Thread] = set()
        self._thread = threading.Thread(target=self._run, name="timewheel-relay-rings", daemon=True)
        self.caught_up = threading.Event()
        """Set once every slot has been checked after the start."""
        self.heartbeat_ms = self._clock.monotonic_ms()

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Begin no further visit; running visits end through their partitions' handles."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def join(self, timeout_ms: int) -> None:
        """Wait for all threads."""
        self._clock.join(self._thread, timeout_ms)
        for thread in tuple(self._threads):
            self._clock.join(thread, timeout_ms)

    def _run(self) -> None:
        now_ms = self._clock.now_ms()
        ahead_ms = now_ms - self._clock.monotonic_ms()
        waiting = self._visits_after(now_ms)
        catching_up = threading.Thread(
            target=self._catch_up, args=(now_ms,), name="timewheel-relay-catch-up", daemon=True
        )
        catching_up.start()
        while True:
            with self._changed:
                if self._stopping:
                    break
                wait_ms = min(waiting[0][0].open_ms - self._clock.now_ms(), WAKE_MS)
                if wait_ms > 0:
                    self._clock.wait(self._changed, wait_ms)
            now_ms, self.heartbeat_ms = self._clock.now_ms(), self._clock.monotonic_ms()
            if now_ms - self.heartbeat_ms < ahead_ms - SET_BACK_MS:
                # Visits that were begun or skipped at the wrong time are still to come.
                waiting = self._visits_after(now_ms)
            ahead_ms = now_ms - self.heartbeat_ms
            while waiting[0][0].open_ms <= self._clock.now_ms():
                times, order = waiting[0]
                partition = self._partitions[order]
                heapq.heapreplace(waiting, (self._next(partition, times.release_ms), order))
                self._begin(partition, Visit.at(times))
        catching_up.join()

    def _visits_after(self, now_ms: int) -> list[tuple[Times, int]]:
        """Return the next visit to each partition, with its index: a heap."""
        waiting = [(self._next(partition, now_ms), order) for order, partition in enumerate(self._partitions)]
        heapq.heapify(waiting)
        return waiting

    def _catch_up(self, now_ms: int) -> None:
        """Check every slot once; repeatedly for a native plan: all its timers leave at once, at no set time."""
        while True:
            self._look_into_all(now_ms)
            self.caught_up.set()
            with self._changed:
                wait_until(self._clock, self._changed, lambda: self._stopping or not self._is_native, LOOK_AGAIN_MS)
                if self._stopping or not self._is_native:
                    return
            now_ms = self._clock.now_ms()

    def _look_into_all(self, now_ms: int) -> None:
        """Check all slots, those with the latest release first."""

        def inspect(partition: Partition) -> None:
            if self._stopping:
                return
            times = self._last(partition, now_ms)
            if times.leave_ms > now_ms:
                self._begin(partition, Visit.at(times))
            elif partition.visit(Visit(now_ms)):
                partition.run_visit()

        by_release = sorted(self._partitions, key=lambda partition: -self._last(partition, now_ms).release_ms)
        with ThreadPoolExecutor(MAX_CATCH_UPS, thread_name_prefix="timewheel-relay-catch-up") as pool:
            for _ in pool.map(inspect, by_release):
                pass

    def _begin(self, partition: Partition, visit: Visit) -> None:
        if not partition.visit(visit):
            return
        name = f"timewheel-relay {partition.source.name}"
        thread = threading.Thread(target=partition.run_visit, name=name, daemon=True)
        with self._changed:
            self._threads = {known for known in self._threads if known.is_alive()} | {thread}
            thread.start()

    @staticmethod
    def _next(partition: Partition, after_ms: int) -> Times:
        return next_times(partition.source.step, partition.source.holding.slot, after_ms)

    @staticmethod
    def _last(partition: Partition, at_ms: int) -> Times:
        return last_times(partition.source.step, partition.source.holding.slot, at_ms)
