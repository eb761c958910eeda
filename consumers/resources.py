"""All resources of a consumer: the source of messages, the engine, the log of cancellations, the embedded relay."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from timewheel.client.cancellation_log import CancellationLog
from timewheel.client.hooks import Hooks
from timewheel.client.surface import ClientLike
from timewheel.consumers.arguments import check_count
from timewheel.consumers.calendar.rolling_source import RollingSource
from timewheel.consumers.delivery_policy import DeliveryPolicy, Overdue
from timewheel.consumers.engine import Engine
from timewheel.consumers.errors import SubscribeRefused
from timewheel.consumers.handled import HandledWindow
from timewheel.consumers.in_flight import InFlight
from timewheel.consumers.message import beside_shadow, reading_of
from timewheel.consumers.pace import Pace
from timewheel.consumers.receiving.questions import Questions
from timewheel.consumers.receiving.receiver import Receiver
from timewheel.consumers.receiving.republisher import Republisher
from timewheel.consumers.receiving.source import SingleSource, Source
from timewheel.consumers.receiving.subscribing import Subscribing
from timewheel.consumers.retry import NO_TOPICS
from timewheel.core.clock import Clock
from timewheel.core.limits import DEFAULT_MAX_HELD, hold_bound_ms
from timewheel.core.names import Names
from timewheel.core.plan import Calendar, Plan
from timewheel.core.rng import Random
from timewheel.core.topology import FormerTopic
from timewheel.hooks import Hook

if TYPE_CHECKING:
    from timewheel.relay import Relay
    from timewheel.relay.relay import RelayStatus

MAX_HANDLED = 10_000_000
"""Maximum number of handled timers that a process may remember: some 2 GB."""


class ConsumerResources:
    """Creates, starts and ends the resources together; waiting for timers is the consumer's part.

    Args:
        client: As in `timewheel.consumers.DelayedConsumer`.
        plan: As in `DelayedConsumer`.
        subscription: As in `DelayedConsumer`.
        consumer_type: As in `DelayedConsumer`.
        schema: As in `DelayedConsumer`.
        clock: As in `DelayedConsumer`.
        rng: As in `DelayedConsumer`.
        hooks: As in `DelayedConsumer`.
        max_held: As in `DelayedConsumer`.
        max_rate: As in `DelayedConsumer`.
        handled_window: As in `DelayedConsumer`.
        relay: As in `DelayedConsumer`.
        former_topics: As in `DelayedConsumer`.
        relay_memory_bytes: As in `DelayedConsumer`.
        overdue: As in `DelayedConsumer`.
        on_settled: As in `timewheel.consumers.receiving.receiver.Receiver`.
        consumer_options: As in `DelayedConsumer`.

    Attributes:
        receiver: Hands out due timers, and takes their outcomes.
        is_spent: Whether it ended because a part could not start: then it cannot be started again.

    Raises:
        SubscribeRefused: An argument cannot be honoured.
    """

    def __init__(
        self,
        client: ClientLike,
        plan: Plan,
        subscription: str,
        *,
        consumer_type: Any,
        schema: Any,
        clock: Clock,
        rng: Random | None,
        hooks: tuple[Hook, ...] | None,
        max_held: int,
        max_rate: float | None,
        handled_window: int,
        relay: bool | None,
        former_topics: Callable[[], Sequence[FormerTopic]] | None,
        relay_memory_bytes: int | None,
        overdue: Overdue | None,
        on_settled: Callable[[InFlight, bool], None] | None,
        consumer_options: Mapping[str, Any],
    ) -> None:
        check_count("max_held", max_held, DEFAULT_MAX_HELD * 10)
        check_count("handled_window", handled_window, MAX_HANDLED)
        if max_rate is not None and not 0 < max_rate < math.inf:
            raise SubscribeRefused("max_rate", max_rate, "a number above 0")
        if overdue is not None and overdue.then == "park" and not plan.keeps_back:
            raise SubscribeRefused("overdue", overdue, NO_TOPICS)
        self.is_spent = False
        emitting = Hooks(hooks)
        self._subscribing = subscribing = Subscribing(
            client,
            plan,
            subscription,
            consumer_type=consumer_type,
            schema=schema,
            options=consumer_options,
            clock=clock,
        )
        retry_topic = Names(plan).retry(subscription) if plan.keeps_back else None
        self._parked_topic = Names(plan).parked(subscription) if plan.keeps_back else None
        mine = subscription if plan.keeps_back else ""
        read = beside_shadow(clock, mine) if plan.intake else reading_of(mine)
        self._source: Source = (
            RollingSource(subscribing, plan, retry_topic, clock, emitting, read)
            if isinstance(plan.scheme, Calendar) or plan.former_intervals_ms
            else SingleSource(subscribing, tuple(filter(None, (plan.due_topic, retry_topic))), clock, emitting, read)
        )
        self._cancellation_log: CancellationLog | None = None
        judge: DeliveryPolicy | None = None
        questions: Questions | None = None
        if plan.cancel is not None:
            self._cancellation_log = CancellationLog(client, plan, clock, emitting)
            judge = DeliveryPolicy(self._cancellation_log.table.is_dead, plan.cancel.keep_ms)
            questions = Questions(self._cancellation_log, plan.cancel.on_log_unavailable, clock)
        self.receiver = Receiver(
            self._source,
            Engine(
                hold_bound_ms=hold_bound_ms(plan),
                max_held=max_held,
                handled=HandledWindow(handled_window),
                ack_timeout_ms=subscribing.ack_timeout_ms,
                judge=judge,
                overdue=overdue,
                parks=plan.keeps_back,
                redelivery_delay_ms=subscribing.redelivery_delay_ms,
            ),
            Republisher(client, plan, subscription, clock, emitting),
            pace=None if max_rate is None else Pace(max_rate),
            questions=questions,
            sorts=subscribing.ack_timeout_ms is None,
            redelivery_delay_ms=subscribing.redelivery_delay_ms,
            clock=clock,
            hooks=emitting,
            on_settled=on_settled,
        )
        has_work = plan.needs_relay or self._cancellation_log is not None or former_topics is not None
        embedded = has_work and (plan.relay == "embedded" if relay is None else relay)
        self._relay: Relay | None = None
        if embedded:
            # Imported here, so that a consumer without an embedded relay does not pay for the import.
            from timewheel.relay import Relay  # noqa: PLC0415
            from timewheel.relay.driver.source import MEMORY_BYTES  # noqa: PLC0415

            self._relay = Relay(
                client,
                plan,
                clock=clock,
                rng=rng,
                hooks=hooks,
                former_topics=former_topics,
                cancellation_log=self._cancellation_log,
                memory_bytes=MEMORY_BYTES if relay_memory_bytes is None else relay_memory_bytes,
            )

    def start(self) -> None:
        """Start all parts; if a part fails, the started parts end again.

        Raises:
            TopologyError: A topic is missing; names the command that creates the topic.
            pulsar.PulsarException: The broker refused or did not answer.
        """
        with ExitStack() as undo:
            if self._cancellation_log is not None:
                self._cancellation_log.start()
                undo.callback(self._cancellation_log.stop)
            if self._parked_topic and (problem := self._subscribing.problem_with(self._parked_topic)) is not None:
                raise problem
            self._source.start()
            if self._relay is not None:
                undo.callback(self._source.close)
                self.is_spent = True
                self._relay.start()
                self.is_spent = False
            undo.pop_all()

    def close(self) -> None:
        """End all parts; unacknowledged timers are redelivered to other consumers."""
        if self._relay is not None:
            self._relay.stop()
        self.receiver.close()
        if self._cancellation_log is not None:
            self._cancellation_log.stop()

    @property
    def ready(self) -> bool:
        """True if all parts are ready."""
        return (
            self._source.ready
            and (self._cancellation_log is None or self._cancellation_log.ready)
            and (self._relay is None or bool(self._relay.ready))
        )

    @property
    def relay_status(self) -> RelayStatus | None:
        """Status of the relay that runs here; None if there is none."""
        return None if self._relay is None else self._relay.status()
