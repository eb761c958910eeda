"""The process of a scheme, and its side in the parent: it publishes the trace, consumes it, and records every timer.

Each scheme has its own process, so that its load never delays another scheme through a shared interpreter. The parent
holds the other end of a pipe; when that closes, for any reason, the process ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol, Self

import pulsar

from timewheel.consumers import DelayedConsumer, DelayedMessage
from timewheel.core.envelope import ID_PROPERTY, NUDGE_PROPERTY, TIMER_PROPERTY, Envelope
from timewheel.core.errors import TimewheelError, says
from timewheel.core.names import partition_topic
from timewheel.core.plan import Native, Plan
from timewheel.core.planfile import save_plan
from timewheel.demo.settings import PLAIN, SUBSCRIPTION, SchemeName, Settings
from timewheel.producers import DelayedProducer, Timer
from timewheel.testing import eventually
from timewheel.testing.evidence.journal import Connect, Done, Failed, Finish, Journal, Progress, Publish, Ready, now_ms
from timewheel.testing.evidence.ledger import Entry
from timewheel.testing.evidence.recorder import Deliveries, RecordingClient
from timewheel.testing.evidence.trace import delays_ms, payload, timer_id, timer_index
from timewheel.testing.process import exit_words

OPERATION_TIMEOUT_S = 300  # time for a broker on a busy machine to open a topic
CLIENT_LOG = "client.log"  # file in the folder of the results; all processes append to it


def connect(service_url: str, out: Path) -> pulsar.Client:
    """Connect a client that logs errors to ``client.log`` in ``out``, an existing folder."""
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(out / CLIENT_LOG))
    return pulsar.Client(service_url, logger=logger, operation_timeout_seconds=OPERATION_TIMEOUT_S)


NAME_PROPERTY = "timer"
"""Property in which a plain producer names the timer of a message, as services do: it does not know timewheel."""
RECEIVE_MS = 200  # time that a plain consumer's loop waits for a message before it checks whether to end
CLOSE_TIMEOUT_S = 10.0
"""Time-out at the end, when all is counted: clients that have not closed by then are killed with their process."""
READY_TIMEOUT_S = 300.0
"""Time for a command to start on a machine with many times more work than cores; idle it takes 3 s."""
SEND_TIMEOUT_MS = 300_000  # a send that a busy broker answers late has not failed
SHADOW_LOG = "shadow.log"


class Way(Protocol):
    """The sending and consuming clients of a scheme."""

    def send(self, index: int, due_ms: int) -> None: ...
    def close(self) -> None: ...


def way_of(
    client: RecordingClient, plan: Plan, journal: Journal, order: Connect | None = None, out: Path | None = None
) -> Way:
    """Build the clients of a plan: the raw client for native and behind a shadow, the SDK for all other schemes."""
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
        # A shadow removes its nudge messages in time, if the machine is fast enough.
        if NUDGE_PROPERTY not in properties:
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


BEAT_S = 0.25  # interval of progress reports
PACE_S = 0.004  # wait of a publisher that is ahead of its pace
MAX_BEHIND_MS = 250
"""Delay that a publisher catches up. A longer delay shifts the rest of the burst: it is never sent faster."""


def play(connection: Connection, settings: Settings, scheme: SchemeName) -> None:
    """Run the process: `Connect` and answer `Ready`, `Publish`, answer `Finish` with `Done`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent handles it
    try:
        _play(connection, settings, scheme)
    except (EOFError, BrokenPipeError):
        os._exit(1)  # the parent is gone: a client's threads must not keep the process alive
    except BaseException:  # noqa: BLE001 - the parent reports it; a second traceback would only be noise
        connection.send(Failed(text=traceback.format_exc()))
        os._exit(1)


def _play(connection: Connection, settings: Settings, scheme: SchemeName) -> None:
    delays = delays_ms(messages=settings.messages, span_ms=settings.span_ms, seed=settings.seed)
    order = connection.recv()
    if not isinstance(order, Connect):
        return
    client = connect(order.service_url, settings.out)
    recorded = RecordingClient(client, SUBSCRIPTION, NAME_PROPERTY if scheme in PLAIN else ID_PROPERTY)
    journal = Journal(settings.messages)
    way = way_of(recorded, settings.plan(scheme), journal, order, settings.out)
    connection.send(Ready())
    begin = connection.recv()
    assert isinstance(begin, Publish)
    _publish(connection, way, journal, delays, begin.start_ms, settings.publish_ms(scheme))
    while not connection.poll(BEAT_S):
        _beat(connection, journal)
    connection.recv()
    way.close()
    client.close()
    connection.send(_done(journal, recorded))


def _beat(connection: Connection, journal: Journal) -> None:
    if journal.fatal is not None:
        raise journal.fatal
    connection.send(journal.progress())


def _publish(
    connection: Connection, way: Way, journal: Journal, delays: tuple[int, ...], start_ms: int, publish_ms: int
) -> None:
    """Send the whole trace at an even pace; a timer's due time counts from its own send."""
    pace = len(delays) / publish_ms
    next_beat = time.monotonic()
    index = 0
    while index < len(delays):
        at_ms = now_ms()
        if time.monotonic() >= next_beat:
            _beat(connection, journal)
            next_beat += BEAT_S
        turn_ms = start_ms + index / pace
        if at_ms < turn_ms:
            if connection.poll(PACE_S):
                return
            continue
        start_ms += max(0, int(at_ms - turn_ms) - MAX_BEHIND_MS)
        due_ms = at_ms + delays[index]
        journal.attempt(index, at_ms, due_ms)
        way.send(index, due_ms)
        index += 1


def _done(journal: Journal, recorded: RecordingClient) -> Done:
    business = recorded.business
    entries = [
        Entry(timer=timer_id(index), due_ms=journal.due_ms[index], attempted_ms=at_ms, confirmed_ms=confirmed_ms)
        for index, (at_ms, confirmed_ms) in enumerate(zip(journal.attempted_ms, journal.confirmed_ms, strict=True))
        if at_ms
    ]
    strangers: dict[str, Entry] = {}

    def entry_of(timer: str) -> Entry:
        index = timer_index(timer)
        if 0 <= index < len(entries) and entries[index].timer == timer:
            return entries[index]
        return strangers.setdefault(timer, Entry(timer=timer))

    _fill_deliveries(business, entry_of)
    lateness_ms, hops = [], 0
    counted: set[str] = set()
    for timer, handled_ms, timer_hops in journal.handlings:
        entry = entry_of(timer)
        entry.handled += 1
        entry.handled_ms = entry.handled_ms or handled_ms
        lateness_ms.append(handled_ms - entry.due_ms)
        if timer not in counted:
            counted.add(timer)
            hops += timer_hops
    times = os.times()
    return Done(
        entries=[*entries, *strangers.values()], lateness_ms=sorted(lateness_ms), hops=hops,
        redelivered_due=business.redelivered, redelivered_holding=recorded.redelivered_in_holding,
        cpu_s=times.user + times.system, errors=(journal.failed, journal.last_error), events=dict(journal.events),
    )  # fmt: skip


def _fill_deliveries(business: Deliveries, entry_of: Callable[[str], Entry]) -> None:
    for timer, times_ms in business.times_of.items():
        entry = entry_of(timer)
        entry.delivered = len(times_ms)
        entry.delivered_ms = times_ms[0]
        entry.redelivered = business.redelivered_of.get(timer, 0)


JOIN_TIMEOUT_S = 5.0


@says("the player of {scheme} failed:\n{text}")
class PlayerFailed(TimewheelError, RuntimeError):
    """A scheme's process ended before it was done."""

    scheme: str
    text: str
    """Its traceback."""


class Player:
    """The process of a scheme, seen from the parent; it waits for `connect`."""

    def __init__(self, settings: Settings, scheme: SchemeName) -> None:
        context = multiprocessing.get_context("spawn")  # a fork after a Pulsar client exists can deadlock
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=play, args=(theirs, settings, scheme), name=f"demo-{scheme}", daemon=True)
        self.process.start()
        theirs.close()
        self.scheme = scheme
        self.ready = False
        self.start_ms: int | None = None
        self.progress = Progress(attempted=0, confirmed=0, handled=0, last_due_ms=0)
        self.finishing = False
        self.done: Done | None = None

    def connect(self, service_url: str, admin_url: str) -> None:
        """Make it connect; its topics must exist."""
        self.connection.send(Connect(service_url=service_url, admin_url=admin_url))

    def publish(self, start_ms: int) -> None:
        self.start_ms = start_ms
        self.connection.send(Publish(start_ms=start_ms))

    def finish(self) -> None:
        """Ask for its results, once."""
        if not self.finishing:
            self.finishing = True
            self.connection.send(Finish())

    def take(self) -> None:
        """Process its next report."""
        try:
            report = self.connection.recv()
        except EOFError:
            self.process.join(JOIN_TIMEOUT_S)
            raise PlayerFailed(self.scheme, f"its process {exit_words(self.process.exitcode)}") from None
        match report:
            case Ready():
                self.ready = True
            case Progress():
                self.progress = report
            case Done():
                self.done = report
            case Failed(text=text):
                raise PlayerFailed(self.scheme, text)


class Players:
    """The players of all schemes of a run, by scheme: started, listened to, and never left running."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._players: dict[SchemeName, Player] = {}

    def start(self) -> None:
        for scheme in self._settings.schemes:
            self._players[scheme] = Player(self._settings, scheme)

    def __getitem__(self, scheme: SchemeName) -> Player:
        return self._players[scheme]

    def listen(self, timeout_s: float) -> None:
        """Process the players' reports, waiting at most ``timeout_s`` for the first report."""
        waiting: dict[Connection, Player] = {
            player.connection: player for player in self._players.values() if player.done is None
        }
        for ready in wait(list(waiting), timeout_s):
            assert isinstance(ready, Connection)
            waiting[ready].take()

    def results(self) -> dict[SchemeName, Done]:
        return {scheme: player.done for scheme, player in self._players.items() if player.done is not None}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for player in self._players.values():
            player.connection.close()  # players that still run see the end of the pipe and end
        for player in self._players.values():
            player.process.join(JOIN_TIMEOUT_S if player.done is not None else 0)
            if player.process.is_alive():
                player.process.kill()
                player.process.join()
            player.process.close()
