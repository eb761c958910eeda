"""A topic of plain clients with a shadow behind it: who sends and who handles knows nothing of timewheel."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pulsar

from tests.broker.due_topic import now_ms
from tests.broker.relay_stage import BUSINESS, TIERED, Stage, plan_of
from timewheel.broker.protocol.dialing import Dialer
from timewheel.client.hooks import Hooks
from timewheel.core.clock import SystemClock
from timewheel.core.names import parts_of
from timewheel.core.plan import Plan, Scheme
from timewheel.core.rng import system_random
from timewheel.shadow.desired_state import State, desired_for
from timewheel.shadow.driver.inspector import TopicInspector
from timewheel.shadow.driver.mover import Mover, MoverTools
from timewheel.shadow.shadow import Shadow
from timewheel.testing import Broker, eventually


class PlainConsumer:
    """A Shared consumer as a service has one: it handles, and acknowledges.

    Attributes:
        lateness_ms: Of the first handling of each, by payload; due times stand behind a space in the payload.
    """

    def __init__(self, client: Any, topic: str, subscription: str = BUSINESS, **options: Any) -> None:
        kind = options.pop("consumer_type", pulsar.ConsumerType.Shared)
        self._consumer = client.subscribe(
            topic, subscription, consumer_type=kind, initial_position=pulsar.InitialPosition.Earliest, **options
        )
        self.handled: Counter[str] = Counter()
        self.lateness_ms: dict[str, int] = {}
        self.messages: dict[str, Any] = {}
        self.latest: dict[str, Any] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping:
            try:
                message = self._consumer.receive(200)
            except pulsar.Timeout:
                continue
            except pulsar.PulsarException:
                return
            name, _, due = message.data().decode().partition(" ")
            self.latest[name] = message
            self.handled[name] += 1
            if name not in self.lateness_ms:
                self.lateness_ms[name] = now_ms() - int(due or 0)
                self.messages[name] = message
            self._consumer.acknowledge(message)

    @property
    def again(self) -> int:
        """Handlings beyond the first of each."""
        return sum(self.handled.values()) - len(self.handled)

    def close(self) -> None:
        self._stopping = True
        self._thread.join()
        self._consumer.close()


class ShadowStage(Stage):
    """A provisioned plan with an intake, whose due topic is used by plain clients."""

    def __init__(self, broker: Any, plan: Plan) -> None:
        super().__init__(broker, plan)
        self.dialer = Dialer(broker.service_url)

    def desired(self, state: State) -> None:
        """What the commands note on the broker."""
        desired_for(self.admin, self.plan, state, now_ms=now_ms())

    def shadow(self, *, start: bool = True, **options: Any) -> Shadow:
        """A shadow, started and (by default) ready; stopped at the end."""
        options.setdefault("hooks", (self.events,))
        shadow = Shadow(self.client, self.plan, self.dialer, self.admin, **options)
        self._stack.callback(shadow.stop, 5_000)
        if start:
            shadow.start()
            eventually(lambda: shadow.ready, 60, message=str(shadow.shadow_status()))
        return shadow

    def mover(self, partition: int = 0) -> Mover:
        """A mover alone, at work, without the relay that would acknowledge originals."""
        hooks = Hooks((self.events,))
        inspector = TopicInspector(self.admin, self.plan, SystemClock(), hooks)
        inspector.inspect()
        tools = MoverTools(
            client=self.client, dialer=self.dialer, admin=self.admin, plan=self.plan, inspector=inspector,
            clock=SystemClock(), rng=system_random(), hooks=hooks,
        )  # fmt: skip
        mover = Mover(tools, self.parts()[partition], partition)
        thread = threading.Thread(target=mover.run, daemon=True)
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(mover.handle.stop, 5_000)
        return mover

    def plain_consumer(self, topic: str | None = None, **options: Any) -> PlainConsumer:
        """Closed at the end."""
        consumer = PlainConsumer(self.client, topic or self.plan.due_topic, **options)
        self._stack.callback(consumer.close)
        return consumer

    def send(self, names: Iterable[object], *, due_ms: int) -> None:
        """Messages of a plain producer of its own: the name, a space and the due time."""
        producer = self.plain_producer()
        for name in names:
            producer.send_async(f"{name} {due_ms}".encode(), None, deliver_at=due_ms)
        producer.flush()

    def gaps(self) -> int:
        """Ranges of acknowledgements in the due topic, by the broker."""
        return sum(self.admin.topics.stats(part).subscriptions[BUSINESS].gap_count for part in self.parts())

    def parts(self) -> tuple[str, ...]:
        """Of the due topic."""
        return parts_of(self.plan.due_topic, self.plan.partitions)

    def plain_producer(self, topic: str | None = None, **options: Any) -> Any:
        """As a service has one."""
        return self.client.create_producer(topic or self.plan.due_topic, block_if_queue_full=True, **options)


def shadow_plan(scheme: Scheme = TIERED, **more: Any) -> Plan:
    return plan_of(scheme, **{"relay": "service", "readers": "any", "intake": True, **more})


@contextmanager
def staged(broker: Broker, plan: Plan) -> Iterator[ShadowStage]:
    """A stage on which a shadow is wanted."""
    with ShadowStage(broker, plan) as stage:
        stage.desired(State.SHADOWING)
        yield stage


def moved(shadow: Shadow) -> int:
    """Entries that it has moved."""
    return sum(one.moved for one in shadow.shadow_status().movers)
