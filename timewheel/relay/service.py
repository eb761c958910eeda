"""Relays as a process of their own: many plans, one client, a watchdog, an orderly end."""

from __future__ import annotations

import faulthandler
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from timewheel.core.clock import Clock, SystemClock
from timewheel.relay.readiness import ReadyFile, Reported, health_pages, reported_of
from timewheel.relay.registry import RelayLike, RelayRegistry, stop_all
from timewheel.relay.relay import DRAIN_MS
from timewheel.relay.reloading import Reloading
from timewheel.relay.status import RelayStatus
from timewheel.serving import HttpServer, Page

LOOK_MS = 1_000
"""Pause between checks of readiness, each of which holds off the watchdog."""
WATCHDOG_MS = 30_000
"""Time that the process lives on after a partition is known to be stuck, or all threads have stopped."""


class Watchdog:
    """Ends the process, from C, unless it is held off again and again (broker-facts: lost-hosts-stuck-threads).

    A Python thread stuck under a live client goes unnoticed: the broker sees a healthy connection, and no other relay
    takes over. So a stuck process must end. Only for a process that runs relays and no other work.

    Args:
        timeout_ms: Time after the last `hold_off` at which the process ends, with all stacks on stderr.
    """

    def __init__(self, timeout_ms: int = WATCHDOG_MS) -> None:
        self._timeout_s = timeout_ms / 1000

    def __enter__(self) -> Self:
        self.hold_off()
        return self

    def hold_off(self) -> None:
        """Postpone the end: all is well now."""
        faulthandler.dump_traceback_later(self._timeout_s, exit=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        faulthandler.cancel_dump_traceback_later()


class Service:
    """Runs relays until it is asked to end.

    Args:
        relays: One relay per plan, not started.
        drain_ms: Time that the end waits for hops under way.
        address: Host and port for HTTP; port 0 takes any free port, see `port`; None disables HTTP.
        pages: Further pages to serve there, by path.
        ready_file: File that exists while all relays are ready; None for no file.
        watchdog_ms: Time that a stuck process lives on.
        report_well: Called about once a second while no relay is stuck, for instance to notify a supervisor.
        clock: Source of time.
    """

    def __init__(
        self,
        relays: Sequence[RelayLike],
        *,
        drain_ms: int = DRAIN_MS,
        address: tuple[str, int] | None = None,
        pages: Mapping[str, Page] | None = None,
        ready_file: Path | None = None,
        watchdog_ms: int = WATCHDOG_MS,
        report_well: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self.registry = RelayRegistry(relays)
        """The working relays."""
        self._drain_ms = drain_ms
        self._address = address
        self._pages = {**health_pages(self._reported_of_life, self._reported_of_readiness), **(pages or {})}
        self._server: HttpServer | None = None
        self._ready_file = ready_file
        self._watchdog_ms = watchdog_ms
        self._report_well = report_well
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._ending = False
        self._held_off_ms: int | None = None

    @property
    def port(self) -> int | None:
        """The HTTP port; None while HTTP is not served."""
        return None if self._server is None else self._server.port

    def end(self) -> None:
        """Ask `run` to end, from any thread; not from a signal handler, which may interrupt a holder of the lock."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()

    def end_from_signal(self) -> None:
        """Ask `run` to end, from a signal handler: noticed within a second."""
        self._ending = True

    def statuses(self) -> tuple[RelayStatus, ...]:
        """Return the status of each relay."""
        return tuple(relay.status() for relay in self.registry.relays)

    def _reported_of_readiness(self) -> Reported:
        ready, story = reported_of([relay.story() for relay in self.registry.relays])
        missing = [plan.due_topic for plan in self.registry.missing]
        ready = ready and not missing
        return ready, {**story, "ready": ready, "missing": missing}

    def _reported_of_life(self) -> Reported:
        """Report liveness by the watchdog, not the broker; before the first check, and while draining, it is unused."""
        partitions = (partition for status in self.statuses() for partition in status.partitions)
        stuck = [partition.topic for partition in partitions if not partition.alive]
        held_off_ms = self._held_off_ms
        silent_ms = 0 if held_off_ms is None else self._clock.monotonic_ms() - held_off_ms
        live = not stuck and silent_ms < self._watchdog_ms
        return live, {"live": live, "stuck": stuck, "silent_ms": silent_ms}

    def run(self, reloading: Reloading | None = None) -> None:
        """Start all relays, watch them, and stop them when asked to end.

        Args:
            reloading: Changes the registry once all have started; None keeps it unchanged.

        Raises:
            TopologyError: Topics of a plan are missing; relays started before it are stopped.
            CannotListen: The address for HTTP is taken, or does not belong to this machine.
        """
        file = None if self._ready_file is None else ReadyFile(self._ready_file)
        if self._address is not None:
            self._server = HttpServer(*self._address, self._pages)
        try:
            # Before the watchdog: without a broker a start lasts as long as the calls of the client, which end.
            for relay in self.registry.relays:
                relay.start()
            if reloading is not None:
                reloading.start()
            self._look_after(file)
        finally:
            self._held_off_ms = None
            if file is not None:
                file.show(ready=False)
            if reloading is not None:
                reloading.stop()
            stop_all(self.registry.relays, self._drain_ms)
            if self._server is not None:
                self._server.close()

    def _look_after(self, file: ReadyFile | None) -> None:
        with Watchdog(self._watchdog_ms) as watchdog:
            while not self._ending:
                if file is not None:
                    file.show(ready=self.registry.ready)
                if self.registry.alive:
                    watchdog.hold_off()
                    self._held_off_ms = self._clock.monotonic_ms()
                    self._report_well()
                with self._changed:
                    if not self._ending:
                        self._clock.wait(self._changed, LOOK_MS)
