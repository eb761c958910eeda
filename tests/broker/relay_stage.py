"""A provisioned plan, its topics filled and read by a raw client, so that only the relay is on trial."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

import pulsar

from tests.broker.due_topic import Confirming, Events, now_ms
from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.stats import SubscriptionStats
from timewheel.core.envelope import Envelope
from timewheel.core.names import RELAY_SUBSCRIPTION, Names
from timewheel.core.plan import Plan, Ring, Scheme, Tiered, Wheel
from timewheel.core.routing import Hold, Router
from timewheel.core.steps import steps
from timewheel.core.topology import topology
from timewheel.provision.provisioning import ensure
from timewheel.relay import Relay
from timewheel.testing import Broker, eventually

C = TypeVar("C", bound=AbstractContextManager[Any])

BUSINESS = "billing"

TIERED = Tiered(window_ms=1_500, tiers_ms=(1_500, 4_000))
WHEEL = Wheel(rings=(Ring(slot_ms=2_000, slots=6, headstart_ms=500),))


PATIENT = Tiered(window_ms=2_000, tiers_ms=(2_000, 4_000))
PATIENT_GUARD_MS = 180_000  # with minutes of slack no hop is late, however long a kill or a crowded machine delays it
PATIENT_LEFT_MS = PATIENT_GUARD_MS + 10_000
"""Of a timer that makes three hops: 4 s, 4 s and 2 s; the rest is for the broker."""


def patient(partitions: int = 1) -> Plan:
    return plan_of(PATIENT, guard_ms=PATIENT_GUARD_MS, partitions=partitions, max_delay_ms=2 * PATIENT_LEFT_MS)


def plan_of(
    scheme: Scheme = TIERED, *, partitions: int = 1, guard_ms: int = 500, max_delay_ms: int | None = None, **more: Any
) -> Plan:
    """A plan on a due topic of its own; its days are seconds."""
    if max_delay_ms is None:
        max_delay_ms = 8_000 if isinstance(scheme, Wheel) else 60_000
    return Plan(
        due_topic=f"persistent://public/default/relay-{uuid.uuid4().hex[:10]}",
        subscriptions=(BUSINESS,),
        scheme=scheme,
        partitions=partitions,
        guard_ms=guard_ms,
        max_delay_ms=max_delay_ms,
        **more,
    )


class Stage(Confirming):
    """Use it as a context manager: it makes the topics, and at its end closes what it opened and stops its relays."""

    def __init__(self, broker: Broker, plan: Plan) -> None:
        super().__init__()
        self.broker = broker
        self.plan = plan
        self.names = Names(plan)
        self.router = Router(plan)
        self.events = Events()
        self.tiers = [self.names.of_step(step)[0] for step in steps(plan) if step.kind == "tier"]
        """Holding topics, the longest stay first."""
        self._stack = ExitStack()
        self._relays: list[Relay] = []
        self.client: Any = None
        self.admin: AdminClient

    def __enter__(self) -> Self:
        self.client = self.open_client()
        self.admin = self._stack.enter_context(AdminClient(self.broker.admin_url))
        ensure(self.admin, self.plan, now_ms=now_ms())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def open_client(self) -> Any:
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(self.broker.service_url, logger=quiet, operation_timeout_seconds=20)
        self._stack.callback(client.close)
        return client

    def enter(self, context: C) -> C:
        """Enter it, and leave it at the end of the stage."""
        self._stack.enter_context(context)
        return context

    def relay(self, *, client: Any = None, start: bool = True, **options: Any) -> Relay:
        """A relay, started and (by default) ready; stopped at the end."""
        relay = Relay(client or self.client, self.plan, hooks=(self.events,), **options)
        self._stack.callback(relay.stop, 5_000)
        self._relays.append(relay)
        if start:
            relay.start()
            eventually(lambda: relay.ready, 60, message=str(relay.status()))
        return relay

    def producer(self, topic: str, partition: int = 0, **options: Any) -> Any:
        """A raw producer, cached by topic where no options are given. It sends no batch of what the broker holds, as no
        client does: a broker acknowledges a batch as a whole, so that a session that ends in one repeats a part.
        """
        name = self.names.part(topic, partition)
        if options:
            return self.client.create_producer(name, block_if_queue_full=True, **options)
        if name not in self._producers:
            self._producers[name] = self.client.create_producer(
                name,
                block_if_queue_full=True,
                batching_enabled=self.plan.holds_in_relay,
                batching_max_publish_delay_ms=5,
            )
        return self._producers[name]

    def put(self, topic: str, envelope: Envelope, payload: bytes | None = b"", partition: int = 0, **more: Any) -> None:
        """Publish one timer into a topic, whatever routing says."""
        properties = {**more.pop("properties", {}), **envelope.properties()}
        self.send_counted(self.producer(topic, partition), payload, properties=properties, **more)

    def hold(self, remaining_ms: Iterable[int], *, prefix: str = "t") -> list[Envelope]:
        """Publish timers with so much time left, where a producer would."""
        sent = []
        for number, left_ms in enumerate(remaining_ms):
            at_ms = now_ms()
            route = self.router.route(at_ms + left_ms, at_ms)
            assert isinstance(route, Hold), "this timer would not be held"
            envelope = Envelope(f"{prefix}{number}", at_ms + left_ms, at_ms)
            partition = number % self.plan.own_partitions
            self.put(route.topic, envelope, b"%d" % number, partition, deliver_at=route.deliver_at_ms or None)
            sent.append(envelope)
        self.flush()
        return sent

    def hold_for_one_hop(self, count: int, *, prefix: str = "t") -> list[Envelope]:
        """Publish timers of a patient plan into its shortest tier, behind which too little is left for any other."""
        at_ms = now_ms()
        stay_ms = PATIENT.tiers_ms[0]
        sent = [Envelope(f"{prefix}{n}", at_ms + stay_ms + PATIENT_GUARD_MS + 1_000, at_ms) for n in range(count)]
        for envelope in sent:
            self.put(self.tiers[-1], envelope)
        self.flush()
        return sent

    def stored(self, topic: str, partition: int = 0) -> list[Any]:
        """All messages that a partition holds, acknowledged or not, delayed or not."""
        name = self.names.part(topic, partition)
        reader = self.client.create_reader(name, pulsar.MessageId.earliest)
        found = []
        try:
            while reader.has_message_available():
                found.append(reader.read_next(10_000))
        finally:
            reader.close()
        return found

    def due(self) -> list[Any]:
        """All messages of the due topic."""
        return [m for p in range(self.plan.own_partitions) for m in self.stored(self.plan.due_topic, p)]

    def copies(self) -> Counter[str]:
        """How often each timer is stored in the due topic."""
        return Counter(message.properties()["tw-id"] for message in self.due())

    def assert_no_copies(self) -> None:
        """Each timer is stored once. Only the late lane of a relay may repeat, as on a slow machine
        (broker-facts: late-lane).
        """
        copies = self.copies()
        assert copies
        assert self.is_late or set(copies.values()) == {1}

    @property
    def is_late(self) -> bool:
        """Whether one of its relays has used the late lane."""
        return any(relay.status().total("late") for relay in self._relays)

    def await_due(self, count: int, timeout: float = 60.0) -> list[Any]:
        """Wait until so many different timers are in the due topic."""
        eventually(lambda: len(self.copies()) >= count, timeout, poll=0.2, message="timers in the due topic")
        return self.due()

    def await_all_acknowledged(self, timeout: float = 60.0) -> None:
        """Wait until no holding topic has a backlog; there are no gaps in it either."""

        def check() -> bool:
            for topic in topology(self.plan, 0).holding:
                subscription = self.holding(topic.name)
                assert subscription.backlog == 0, topic.name
                assert subscription.gap_count == 0, topic.name
            return True

        eventually(check, timeout, poll=0.2)

    def holding(self, topic: str) -> SubscriptionStats:
        """The relays' subscription of a holding topic."""
        stats = self.admin.topics.partitioned_stats(topic, precise_backlog=True)
        return stats.total.subscriptions[RELAY_SUBSCRIPTION]

    def unload(self, topic: str) -> None:
        self.admin.topics.unload(topic)

    def __repr__(self) -> str:
        return f"<Stage {self.plan.due_topic}>"
