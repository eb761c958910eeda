"""The clients of a scheme: the raw client, alone or with a shadow behind it, or timewheel's SDK."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import pulsar

from timewheel.consumers import DelayedConsumer, DelayedMessage
from timewheel.core.envelope import NUDGE_PROPERTY, TIMER_PROPERTY, Envelope
from timewheel.core.errors import TimewheelError
from timewheel.core.names import partition_topic
from timewheel.core.plan import Native, Plan
from timewheel.core.planfile import save_plan
from timewheel.demo.settings import SUBSCRIPTION
from timewheel.producers import DelayedProducer, Timer
from timewheel.testing import eventually
from timewheel.testing.evidence.journal import Journal
from timewheel.testing.evidence.messages import Connect
from timewheel.testing.evidence.recorder import RecordingClient
from timewheel.testing.evidence.trace import payload, timer_id

NAME_PROPERTY = "timer"
"""Property in which a plain producer names the timer of a message, as services do: it does not know timewheel."""
RECEIVE_MS = 200
"""Time that a plain consumer's loop waits for a message before it checks whether to end."""
CLOSE_TIMEOUT_S = 10.0
"""Time-out at the end, when all is counted: clients that have not closed by then are killed with their process."""
READY_TIMEOUT_S = 300.0
"""Time for a command to start on a machine with many times more work than cores; idle it takes 3 s."""
SEND_TIMEOUT_MS = 300_000
"""A send that a busy broker answers late has not failed."""
SHADOW_LOG = "shadow.log"


class Way(Protocol):
    """The sending and consuming clients of a scheme."""

    def send(self, index: int, due_ms: int) -> None: ...
    def close(self) -> None: ...


def way_of(
    client: RecordingClient, plan: Plan, journal: Journal, order: Connect | None = None, out: Path | None = None
) -> Way:
    """Build the clients of a plan: the raw client for native and behind a shadow, the SDK for all other schemes.

    Args:
        client: Records deliveries and acknowledgements.
        plan: The scheme's plan.
        journal: Records sends and handlings.
        order: For a shadow: addresses of the brokers.
        out: For a shadow: folder of its plan and its log.
    """
    if plan.intake:
        assert order is not None, "a shadow is a process of its own"
        assert out is not None, "it writes files"
        return _ShadowWay(client, plan, journal, order, out)
    return _PlainWay(client, plan, journal) if isinstance(plan.scheme, Native) else _SdkWay(client, plan, journal)


class _PlainWay:
    """The usual clients of today: pulsar-client's own `deliver_at`, one Shared subscription, ack after handling."""

    def __init__(self, client: RecordingClient, plan: Plan, journal: Journal) -> None:
        topic = partition_topic(plan.due_topic, 0)
        self._journal = journal
        self._consumer = client.subscribe(
            topic,
            SUBSCRIPTION,
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        self._producer = client.create_producer(topic, block_if_queue_full=True, send_timeout_millis=SEND_TIMEOUT_MS)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._consume, name="plain-consumer", daemon=True)
        self._thread.start()

    def send(self, index: int, due_ms: int) -> None:
        def confirmed(result: object, _id: object) -> None:
            if result == pulsar.Result.Ok:
                self._journal.confirm(index)
            else:
                self._journal.fail(result)

        self._producer.send_async(
            payload(index), confirmed, properties={NAME_PROPERTY: timer_id(index)}, deliver_at=due_ms
        )

    def _consume(self) -> None:
        try:
            while not self._ended.is_set():
                with suppress(pulsar.Timeout):
                    self._handle(self._consumer.receive(RECEIVE_MS))
        except BaseException as error:  # noqa: BLE001 - the publishing thread raises it and ends the play
            self._journal.fatal = error

    def _handle(self, message: Any) -> None:
        properties = message.properties()
        if (
            NUDGE_PROPERTY not in properties
        ):  # a shadow removes its nudge messages in time, if the machine is fast enough
            copy = Envelope.read(properties) if TIMER_PROPERTY in properties else None
            self._journal.handle(properties[NAME_PROPERTY], 0 if copy is None else copy.hops)
        self._consumer.acknowledge(message)

    def close(self) -> None:
        self._producer.flush()
        self._ended.set()
        self._thread.join(CLOSE_TIMEOUT_S)


class _ShadowWay(_PlainWay):
    """The same clients, with the shadow of their topic in a process of its own, as operators run it."""

    def __init__(self, client: RecordingClient, plan: Plan, journal: Journal, order: Connect, out: Path) -> None:
        plan_file, ready = out / "shadow.toml", out / "shadow.ready"
        save_plan(plan, plan_file)
        ready.unlink(missing_ok=True)
        command = [
            sys.executable, "-m", "timewheel", "shadow", "run", str(plan_file), "--relay-id", "demo",
            "--service-url", order.service_url, "--admin-url", order.admin_url,
            "--ready-file", str(ready), "--with-stdin",
        ]  # fmt: skip
        with (out / SHADOW_LOG).open("wb") as log:
            # The shadow ends when this end of its standard input closes, however this process ends.
            self._shadow = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)

        def begun() -> bool:
            if self._shadow.poll() is not None:
                raise ChildProcessError(f"the shadow ended, see {out / SHADOW_LOG}")
            return ready.exists()

        eventually(begun, READY_TIMEOUT_S, message=f"the shadow does not begin, see {out / SHADOW_LOG}")
        super().__init__(client, plan, journal)

    def close(self) -> None:
        super().close()
        assert self._shadow.stdin is not None
        self._shadow.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._shadow.wait(CLOSE_TIMEOUT_S)
        self._shadow.kill()


class _SdkWay:
    """The clients of timewheel: its producer, and its consumer with the relay inside."""

    def __init__(self, client: RecordingClient, plan: Plan, journal: Journal) -> None:
        self._journal = journal
        self._consumer = DelayedConsumer(client, plan, SUBSCRIPTION, hooks=(journal.note,))
        self._consumer.start()
        self._producer = DelayedProducer(client, plan, hooks=(journal.note,), send_timeout_millis=SEND_TIMEOUT_MS)
        self._thread = threading.Thread(target=self._consume, name="sdk-consumer", daemon=True)
        self._thread.start()

    def send(self, index: int, due_ms: int) -> None:
        def confirmed(error: TimewheelError | None, _timer: Timer) -> None:
            if error is None:
                self._journal.confirm(index)
            else:
                self._journal.fail(error)

        self._producer.send_async(payload(index), confirmed, deliver_at=due_ms, timer_id=timer_id(index))

    def _consume(self) -> None:
        try:
            self._consumer.run(self._handle, workers=1)
        except BaseException as error:  # noqa: BLE001 - the publishing thread raises it and ends the play
            self._journal.fatal = error

    def _handle(self, message: DelayedMessage) -> None:
        self._journal.handle(message.timer_id or "", message.hops)

    def close(self) -> None:
        self._producer.close()
        self._consumer.stop()
        self._thread.join(CLOSE_TIMEOUT_S)
        self._consumer.close()
