"""Reloading of plan files in a service: added plans begin, removed plans drain and end, a changed plan does both."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from timewheel.client.hooks import Hooks
from timewheel.core.clock import Clock, SystemClock
from timewheel.core.errors import PlanError
from timewheel.core.names import Names
from timewheel.core.plan import Plan
from timewheel.core.plan_files import PlanChanges, PlanFiles, PlanTexts, plan_changes
from timewheel.events import (
    RelayNamespaceDropped,
    RelayPlanDropped,
    RelayPlanNotStarted,
    RelayPlansChanged,
    RelayPlansRefused,
)
from timewheel.hooks import Hook
from timewheel.relay.registry import RelayLike, RelayRegistry, stop_all

LOOK_MS = 1_000
"""Time between two reads of the files; a change must be read twice, so that no half-written file counts."""


class Reloading:
    """Watches plan files in a thread of its own, and updates a registry's relays to match.

    All or nothing: a wrong file, or a plan whose topics are missing, leaves all relays as they are. A step that fails
    after that (the broker goes away while a relay begins) is repeated until it succeeds.

    Args:
        registry: The service's registry; its plans are those of `first`.
        files: The plan files.
        first: Their texts when the registry was made.
        make: Makes a relay for a plan, not started.
        waiting: Returns the number of entries that wait in the holding topics of a plan, or None if it is unknown.
            Called for a plan that is no longer served, when its relay has ended.
        settle: Called after each change, for instance to share memory anew.
        drain_ms: Time that an ending relay waits for its hops under way.
        clock: Source of time.
        hooks: Receive events; None logs them.
    """

    def __init__(
        self,
        registry: RelayRegistry,
        files: PlanFiles,
        first: PlanTexts,
        make: Callable[[Plan], RelayLike],
        *,
        waiting: Callable[[Plan], int | None] = lambda _: None,
        settle: Callable[[], None] = lambda: None,
        drain_ms: int,
        clock: Clock | None = None,
        hooks: tuple[Hook, ...] | None = None,
    ) -> None:
        self._registry = registry
        self._files = files
        self._make = make
        self._waiting = waiting
        self._settle = settle
        self._drain_ms = drain_ms
        self._clock = clock or SystemClock()
        self._hooks = Hooks(hooks)
        self._wanted = registry.plans
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
                    self._clock.wait(self._changed, LOOK_MS)

    def inspect(self) -> None:
        """Read the files once, and apply their changes."""
        asked, self._asked = self._asked, False
        if asked:
            self._refused = ""
        self._take_up(at_once=asked)
        changes = plan_changes(self._registry.plans, self._wanted)
        if changes.begins or changes.ends:
            self._carry_out(changes)

    def _take_up(self, *, at_once: bool) -> None:
        """Adopt the plans in the files, if they are new, complete and possible."""
        try:
            texts = self._files.read()
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
                self._make(plan).check()
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
        self._registry.missing = changes.begins
        leaving = [relay for plan in changes.ends if (relay := self._registry.leave(plan)) is not None]
        stop_all(leaving, self._drain_ms)
        for plan in changes.removed:
            self._hooks.emit(RelayPlanDropped(due_topic=plan.due_topic, waiting=self._waiting(plan)))
        for old, new in changes.changed:
            if old.needs_relay and (held := Names(old).holding_namespace) not in Names(new).namespaces:
                self._hooks.emit(
                    RelayNamespaceDropped(due_topic=old.due_topic, namespace=held, waiting=self._waiting(old))
                )
        for plan in changes.begins:
            if self._ending:
                return
            self._begin(plan)
        self._settle()

    def _begin(self, plan: Plan) -> None:
        relay = self._make(plan)
        try:
            relay.start()
        except Exception as error:  # noqa: BLE001 - it is tried again; others go on meanwhile
            relay.stop(0)
            if plan.due_topic not in self._reported_not_started:
                self._reported_not_started |= {plan.due_topic}
                self._hooks.emit(RelayPlanNotStarted(due_topic=plan.due_topic, reason=str(error) or repr(error)))
            return
        self._reported_not_started -= {plan.due_topic}
        self._registry.enter(relay)
        self._registry.missing = tuple(other for other in self._registry.missing if other != plan)


def _names(plans: Iterable[Plan]) -> str:
    return ", ".join(plan.due_topic for plan in plans)
