"""Relays of one process: made with the same options, for the plans that are served at a moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from timewheel.broker.admin.client import AdminClient
    from timewheel.broker.protocol.dialing import Dialer
    from timewheel.core.former_topics import FormerTopic
    from timewheel.core.plan import Plan
    from timewheel.hooks import Hook
    from timewheel.metrics import Metrics
    from timewheel.relay.registry import RelayLike

__all__ = ["RelayFactory", "ShadowFactory"]


class RelayFactory:
    """Makes relays with the same options, and shares the memory among them.

    Args:
        client: Pulsar client of all relays.
        admin: Finds topics of earlier plans.
        plans: Plans at the start.
        relay_id: Id of all relays; None: each relay has its own.
        hop_linger_ms: See `timewheel.relay.Relay`; None: derived from each plan's guard.
        memory_bytes: Memory of all relays together.
        hooks: Receive the relays' events.
    """

    def __init__(
        self,
        client: Any,
        admin: AdminClient,
        plans: tuple[Plan, ...],
        relay_id: str | None,
        hop_linger_ms: int | None,
        memory_bytes: int,
        hooks: tuple[Hook, ...],
    ) -> None:
        self._client, self._admin = client, admin
        self._relay_id, self._hop_linger_ms = relay_id, hop_linger_ms
        self._memory_bytes = memory_bytes
        self._hooks = hooks
        self.plans: Callable[[], tuple[Plan, ...]] = lambda: plans
        """Returns the plans that are served now: topics of all other plans are former topics."""

    def relay_of(self, plan: Plan) -> RelayLike:
        """Make a relay that is not started yet."""
        from timewheel.relay import Relay

        return Relay(self._client, plan, **self._options(plan))

    def _options(self, plan: Plan) -> dict[str, Any]:
        from timewheel.provision.former_topics import FormerTopics

        def former_topics() -> tuple[FormerTopic, ...]:
            # By the plans served at this moment: a topic that another plan uses is no former topic.
            return FormerTopics(self._admin, plan, beside=self.plans())()

        return {
            "relay_id": self._relay_id,
            "hop_linger_ms": self._hop_linger_ms,
            "memory_bytes": self._memory_bytes // max(len(self.plans()), 1),
            "former_topics": former_topics,
            "hooks": self._hooks,
        }

    def watch(self, metrics: Metrics, relays: Callable[[], Sequence[RelayLike]]) -> None:
        """Register the relays of each moment with the metrics."""
        metrics.watch_relays(relays)

    def share_memory(self, relays: Sequence[RelayLike]) -> None:
        """Share the memory equally among these relays; there may be none."""
        for relay in relays:
            relay.resize_memory(self._memory_bytes // len(relays))

    def waiting(self, plan: Plan) -> int | None:
        """Return the number of entries that wait in the plan's holding topics; None: the broker did not answer."""
        from timewheel.core.errors import AdminError
        from timewheel.provision.former_topics import held_backlog

        try:
            return held_backlog(self._admin, plan)
        except AdminError:
            return None


class ShadowFactory(RelayFactory):
    """Makes shadows with the same options.

    Args:
        dialer: Connects the shadows to brokers, in addition to the client.
        hold_ms: See `timewheel.shadow.shadow.Shadow`.
        relay_factories: See `RelayFactory`.
    """

    def __init__(self, *relay_factories: Any, dialer: Dialer, hold_ms: int) -> None:
        super().__init__(*relay_factories)
        self._dialer, self._hold_ms = dialer, hold_ms

    def relay_of(self, plan: Plan) -> RelayLike:
        """Make a shadow that is not started yet."""
        from timewheel.shadow.shadow import Shadow

        return Shadow(self._client, plan, self._dialer, self._admin, hold_ms=self._hold_ms, **self._options(plan))

    def watch(self, metrics: Metrics, relays: Callable[[], Sequence[RelayLike]]) -> None:
        from timewheel.shadow.shadow import Shadow

        super().watch(metrics, relays)
        metrics.watch_shadows(lambda: [one for one in relays() if isinstance(one, Shadow)])
