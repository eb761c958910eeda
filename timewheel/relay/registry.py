"""The relays of a service, which may change while it runs."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from timewheel.core.plan import Plan
from timewheel.relay.relay import DRAIN_MS
from timewheel.relay.status import RelayStatus


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
    """The working relays; for any number of threads. Readers see a tuple that is replaced, never changed.

    Args:
        relays: One relay per plan.
    """

    def __init__(self, relays: Iterable[RelayLike]) -> None:
        self._lock = threading.Lock()
        self.relays = tuple(relays)
        self.missing: tuple[Plan, ...] = ()
        """Plans that should be served and are not yet."""

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans that are served."""
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
        """Add a working relay."""
        with self._lock:
            self.relays = (*self.relays, relay)

    def leave(self, plan: Plan) -> RelayLike | None:
        """Remove and return the relay of this plan; None if there is none."""
        with self._lock:
            relay = next((relay for relay in self.relays if relay.plan == plan), None)
            self.relays = tuple(other for other in self.relays if other is not relay)
            return relay
