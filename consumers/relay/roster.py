"""The relays of a service, which may change while it runs."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

from timewheel.consumers.relay.relay import Relay
from timewheel.core.plan import Plan

__all__ = ["Roster", "stop_all"]


def stop_all(relays: Collection[Relay], drain_ms: int) -> None:
    """Stop them side by side: each has the whole drain to itself."""
    with ThreadPoolExecutor(max(len(relays), 1), "timewheel-relay-end") as pool:
        for _ in pool.map(lambda relay: relay.stop(drain_ms), relays):
            pass


class Roster:
    """Who works; for any number of threads. What is read is a tuple that is replaced, never changed.

    Args:
        relays: One per plan.
    """

    def __init__(self, relays: Iterable[Relay]) -> None:
        self._lock = threading.Lock()
        self.relays = tuple(relays)
        self.missing: tuple[Plan, ...] = ()
        """Plans that should be served and are not yet."""

    @property
    def plans(self) -> tuple[Plan, ...]:
        """That are served."""
        return tuple(relay.plan for relay in self.relays)

    @property
    def ready(self) -> bool:
        """Whether all is served that should be, and looked after."""
        return not self.missing and all(relay.ready for relay in self.relays)

    @property
    def alive(self) -> bool:
        """Whether nobody is stuck."""
        return all(relay.alive for relay in self.relays)

    def enter(self, relay: Relay) -> None:
        """It works from now on."""
        with self._lock:
            self.relays = (*self.relays, relay)

    def leave(self, plan: Plan) -> Relay | None:
        """The relay of this plan works no more, and is nobody's to watch; None: there is none."""
        with self._lock:
            relay = next((relay for relay in self.relays if relay.plan == plan), None)
            self.relays = tuple(other for other in self.relays if other is not relay)
            return relay
