"""Relays as a process of their own: many plans, one client, a watchdog, an orderly end."""

from __future__ import annotations

import faulthandler
import json
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, InitVar, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from timewheel.client.hooks import Hooks
from timewheel.core.clock import Clock, SystemClock
from timewheel.core.errors import PlanError
from timewheel.core.names import Names
from timewheel.core.plan import Plan
from timewheel.core.planfile import PlanChanges, PlanFiles, PlanTexts, plan_changes
from timewheel.events import (
    RelayNamespaceDropped,
    RelayPlanDropped,
    RelayPlanNotStarted,
    RelayPlansChanged,
    RelayPlansRefused,
)
from timewheel.hooks import Hook
from timewheel.relay.relay import DRAIN_MS, RelayStatus
from timewheel.serving import JSON, LIVE_PATH, READY_PATH, Answer, HttpServer, Page

Reported = tuple[bool, Mapping[str, Any]]  # True if all is well; and the details, for JSON


def reported_of(stories: Sequence[Mapping[str, Any]]) -> Reported:
    """Return whether all relays are ready by their reports, and ``{"ready": ..., "relays": [...]}``."""
    ready = all(story["ready"] for story in stories)
    return ready, {"ready": ready, "relays": list(stories)}


def health_pages(live: Callable[[], Reported], ready: Callable[[], Reported]) -> dict[str, Page]:
    """Return the pages for an orchestrator's probes: 200 while all is well, else 503; the body has the details."""
    return {LIVE_PATH: _page(live), READY_PATH: _page(ready)}


def _page(ask: Callable[[], Reported]) -> Page:
    def answer() -> Answer:
        well, story = ask()
        return Answer(200 if well else 503, json.dumps(story).encode(), JSON)

    return answer


class ReadyFile:
    """A file that exists exactly while all relays are ready; a file left by an earlier process is removed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.show(ready=False)

    def show(self, *, ready: bool) -> None:
        if ready:
            self._path.touch()
        else:
            self._path.unlink(missing_ok=True)


class RelayLike(Protocol):
    """A relay, or a shadow that contains a relay."""

    @property
    def plan(self) -> Plan: ...
    @property
    def ready(self) -> bool: ...
    @property
    def alive(self) -> bool: ...
    def check(self) -> None: ...
    def resize_memory(self, memory_bytes: int) -> None: ...
    def start(self) -> object: ...
    def stop(self, drain_ms: int = DRAIN_MS) -> None: ...
    def status(self) -> RelayStatus: ...
    def story(self) -> dict[str, Any]: ...


def stop_all(relays: Collection[RelayLike], drain_ms: int) -> None:
    """Stop relays in parallel: each has the whole drain time."""
    with ThreadPoolExecutor(max(len(relays), 1), "timewheel-relay-end") as pool:
        for _ in pool.map(lambda relay: relay.stop(drain_ms), relays):
            pass


class RelayRegistry:
    """The working relays; for any number of threads. Readers see a tuple that is replaced, never changed."""

    def __init__(self, relays: Iterable[RelayLike]) -> None:
        self._lock = threading.Lock()
        self.relays = tuple(relays)
        self.missing: tuple[Plan, ...] = ()  # plans that should be served and are not yet

    @property
    def plans(self) -> tuple[Plan, ...]:
        return tuple(relay.plan for relay in self.relays)

    @property
    def ready(self) -> bool:
        """True if all plans that should be served are served, and their relays are ready."""
        return not self.missing and all(relay.ready for relay in self.relays)

    @property
    def alive(self) -> bool:
        """True if no relay is stuck."""
        return all(relay.alive for relay in self.relays)

    def enter(self, relay: RelayLike) -> None:
        with self._lock:
            self.relays = (*self.relays, relay)

    def leave(self, plan: Plan) -> RelayLike | None:
        """Remove and return the relay of this plan; None if there is none."""
        with self._lock:
            relay = next((relay for relay in self.relays if relay.plan == plan), None)
            self.relays = tuple(other for other in self.relays if other is not relay)
            return relay


LOOK_MS = 1_000
"""Time between two reads of the plan files (a change must be read twice, so that no half-written file counts), and
between two checks of readiness, each of which holds off the watchdog."""


@dataclass(eq=False)
class Reloading:
    """Watches plan files in a thread of its own: added plans begin, removed plans drain and end, changed plans do both.

    All or nothing: a wrong file, or a plan whose topics are missing, leaves all relays as they are. A step that fails
    after that (the broker goes away while a relay begins) is repeated until it succeeds.
    """

    registry: RelayRegistry  # the service's registry; its plans are those of `first`
    files: PlanFiles
    first: InitVar[PlanTexts]  # their texts when the registry was made
    make: Callable[[Plan], RelayLike]  # makes a relay for a plan, not started
    _: KW_ONLY
    drain_ms: int  # time that an ending relay waits for its hops under way
    # returns the number of entries that wait in the holding topics of a plan, or None if it is unknown. Called for a
    # plan that is no longer served, when its relay has ended.
    waiting: Callable[[Plan], int | None] = lambda _: None
    settle: Callable[[], None] = lambda: None  # called after each change, for instance to share memory anew
    clock: Clock = field(default_factory=SystemClock)  # source of time
    hooks: InitVar[tuple[Hook, ...] | None] = None  # receive events; None logs them

    def __post_init__(self, first: PlanTexts, hooks: tuple[Hook, ...] | None) -> None:
        self._hooks = Hooks(hooks)
        self._wanted = self.registry.plans
        self._taken = self._seen = first
        self._refused = ""
        self._asked = False
        self._reported_not_started: frozenset[str] = frozenset()
        self._changed = threading.Condition()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="timewheel-relay-reload", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching. Waits for a change under way, whose steps are bounded."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def ask_from_signal(self) -> None:
        """Read the files now, and report errors even if they were reported before; noticed within `LOOK_MS`."""
        self._asked = True

    def _run(self) -> None:
        while not self._ending:
            try:
                self.inspect()
            except Exception as error:  # noqa: BLE001 - else the files would never be read again
                self._refuse(repr(error))
            with self._changed:
                if not self._ending:
                    self.clock.wait(self._changed, self.clock.idle_ms(None, LOOK_MS))

    def inspect(self) -> None:
        """Read the files once, and apply their changes."""
        asked, self._asked = self._asked, False
        if asked:
            self._refused = ""
        self._take_up(at_once=asked)
        changes = plan_changes(self.registry.plans, self._wanted)
        if changes.begins or changes.ends:
            self._carry_out(changes)

    def _take_up(self, *, at_once: bool) -> None:
        """Adopt the plans in the files, if they are new, complete and possible."""
        try:
            texts = self.files.read()
            settled, self._seen = at_once or texts == self._seen, texts
            if texts == self._taken:
                self._refused = ""
            if texts == self._taken or not settled:
                return
            plans = texts.plans()
        except PlanError as error:
            self._refuse(str(error))
            return
        changes = plan_changes(self._wanted, plans)
        for plan in changes.begins:
            try:
                self.make(plan).check()
            except Exception as error:  # noqa: BLE001 - a topic is missing, or no broker answers: all goes on as it is
                self._refuse(f"{plan.due_topic}: {error}")
                return
        self._taken, self._wanted, self._refused = texts, plans, ""
        if changes.begins or changes.ends:
            self._hooks.emit(
                RelayPlansChanged(
                    added=_names(changes.added),
                    removed=_names(changes.removed),
                    changed=_names(new for _, new in changes.changed),
                )
            )

    def _refuse(self, reason: str) -> None:
        if reason != self._refused:
            self._refused = reason
            self._hooks.emit(RelayPlansRefused(reason=reason))

    def _carry_out(self, changes: PlanChanges) -> None:
        self.registry.missing = changes.begins
        leaving = [relay for plan in changes.ends if (relay := self.registry.leave(plan)) is not None]
        stop_all(leaving, self.drain_ms)
        for plan in changes.removed:
            self._hooks.emit(RelayPlanDropped(due_topic=plan.due_topic, waiting=self.waiting(plan)))
        for old, new in changes.changed:
            if old.needs_relay and (held := Names(old).holding_namespace) not in Names(new).namespaces:
                self._hooks.emit(
                    RelayNamespaceDropped(due_topic=old.due_topic, namespace=held, waiting=self.waiting(old))
                )
        for plan in changes.begins:
            if self._ending:
                return
            self._begin(plan)
        self.settle()

    def _begin(self, plan: Plan) -> None:
        relay = self.make(plan)
        try:
            relay.start()
        except Exception as error:  # noqa: BLE001 - it is tried again; others go on meanwhile
            relay.stop(0)
            if plan.due_topic not in self._reported_not_started:
                self._reported_not_started |= {plan.due_topic}
                self._hooks.emit(RelayPlanNotStarted(due_topic=plan.due_topic, reason=str(error) or repr(error)))
            return
        self._reported_not_started -= {plan.due_topic}
        self.registry.enter(relay)
        self.registry.missing = tuple(other for other in self.registry.missing if other != plan)


def _names(plans: Iterable[Plan]) -> str:
    return ", ".join(plan.due_topic for plan in plans)


WATCHDOG_MS = 30_000
"""Time that the process lives on after a partition is known to be stuck, or all threads have stopped."""


@dataclass(eq=False)
class Service:
    """Runs relays until it is asked to end."""

    relays: InitVar[Sequence[RelayLike]]  # one relay per plan, not started
    _: KW_ONLY
    drain_ms: int = DRAIN_MS  # time that the end waits for hops under way
    # host and port for HTTP; port 0 takes any free port, see `port`; None disables HTTP
    address: tuple[str, int] | None = None
    pages: Mapping[str, Page] = field(default_factory=dict)  # further pages to serve there, by path
    ready_file: Path | None = None  # file that exists while all relays are ready; None for no file
    watchdog_ms: int = WATCHDOG_MS  # time that a stuck process lives on
    # called about once a second while no relay is stuck, for instance to notify a supervisor
    report_well: Callable[[], None] = lambda: None
    clock: Clock = field(default_factory=SystemClock)  # source of time

    def __post_init__(self, relays: Sequence[RelayLike]) -> None:
        self.registry = RelayRegistry(relays)  # the working relays
        self._server: HttpServer | None = None
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
        silent_ms = 0 if held_off_ms is None else self.clock.monotonic_ms() - held_off_ms
        live = not stuck and silent_ms < self.watchdog_ms
        return live, {"live": live, "stuck": stuck, "silent_ms": silent_ms}

    def run(self, reloading: Reloading | None = None) -> None:
        """Start all relays, watch them, and stop them when asked to end.

        Args:
            reloading: Changes the registry once all have started; None keeps it unchanged.

        Raises:
            TopologyError: Topics of a plan are missing; relays started before it are stopped.
            CannotListen: The address for HTTP is taken, or does not belong to this machine.
        """
        file = None if self.ready_file is None else ReadyFile(self.ready_file)
        if self.address is not None:
            own_pages = health_pages(self._reported_of_life, self._reported_of_readiness)
            self._server = HttpServer(*self.address, {**own_pages, **self.pages})
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
            stop_all(self.registry.relays, self.drain_ms)
            if self._server is not None:
                self._server.close()

    def _look_after(self, file: ReadyFile | None) -> None:
        """Work until the end, under a watchdog that ends the process from C, with all stacks on stderr.

        A Python thread stuck under a live client goes unnoticed: the broker sees a healthy connection, and no other
        relay takes over. So a stuck process must end (broker-facts: lost-hosts-stuck-threads).
        """
        self._hold_off()
        try:
            while not self._ending:
                if file is not None:
                    file.show(ready=self.registry.ready)
                if self.registry.alive:
                    self._hold_off()
                    self._held_off_ms = self.clock.monotonic_ms()
                    self.report_well()
                with self._changed:
                    if not self._ending:
                        self.clock.wait(self._changed, self.clock.idle_ms(None, LOOK_MS))
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _hold_off(self) -> None:
        faulthandler.dump_traceback_later(self.watchdog_ms / 1000, exit=True)
