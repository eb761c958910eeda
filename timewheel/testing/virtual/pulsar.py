"""A Pulsar inside the test's own process, on a clock that jumps: weeks of delays pass in seconds.

    with VirtualPulsar() as virtual_pulsar:
        start_service(virtual_pulsar.client())
        virtual_pulsar.advance(days=17)
        assert handled == ["sub-42"]

pytest has it as the fixture `virtual_pulsar` (`timewheel.testing.plugin`).
"""

from __future__ import annotations

import datetime as dt
import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, Self
from unittest import mock

import _pulsar
import httpx
import pulsar

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.protocol.dialing import Dialer
from timewheel.core.broker_profile import DEFAULT_PROFILE, BrokerProfile
from timewheel.core.envelope import Envelope, due_in
from timewheel.core.errors import EnvelopeError
from timewheel.producers import base_producer
from timewheel.testing.virtual.admin import VirtualAdmin
from timewheel.testing.virtual.brokers import Cluster
from timewheel.testing.virtual.client import Configuration, MessageBuilder, NativeClient
from timewheel.testing.virtual.ledgers import Sent
from timewheel.testing.virtual.patches import either, patched
from timewheel.testing.virtual.scheduler import MS, Process, Scheduler
from timewheel.testing.virtual.sessions import VirtualSession


class Waiting(NamedTuple):
    """A message that a subscription has not acknowledged."""

    topic: str  # the topic, or the partition
    subscription: str
    payload: bytes
    properties: dict[str, str]
    due: dt.datetime | None  # of a timer; of another message, its delivery time, if it has one


class VirtualProcess:
    """A service in a process of its own: its threads and connections live and end together."""

    def __init__(self, owner: VirtualPulsar, name: str) -> None:
        self._owner = owner
        self.process = Process(name, owner.new_pid())
        self._is_killed = False

    def kill(self) -> None:
        """End it as ``kill -9`` does; the brokers lose its connections at once, or a minute after it was cut off."""
        self._is_killed = True
        self._owner.scheduler.kill(self.process)
        if not self.process.is_cut_off:
            for client in self._owner.clients_of(self.process):
                client.lose()

    def freeze(self) -> None:
        """Stop it as ``SIGSTOP`` does: the brokers give its connections up after a minute."""
        self.process.is_frozen = True
        self.disconnect()

    def thaw(self) -> None:
        """Let it go on."""
        self.process.is_frozen = False
        self.reconnect()

    def disconnect(self) -> None:
        """Cut it off from the brokers, as a switch does that is down: both ends give up after a minute."""
        self.process.is_cut_off = True
        for client in self._owner.clients_of(self.process):
            client.cut_off()

    def reconnect(self) -> None:
        """Let all pass again; no more after a kill: a lost host does not come back."""
        if self._is_killed:
            return
        self.process.is_cut_off = False
        for client in self._owner.clients_of(self.process):
            client.reach_again()


class VirtualPulsar:
    """Virtual brokers, and the virtual time in which this thread and all threads that it starts live.

    Inside ``with``, every `pulsar.Client` connects to it, whatever URL it has, and `timewheel.AdminClient` asks it.
    Locks, queues, sleeps, event loops and clocks of these threads are virtual (`timewheel.testing.virtual.patches`).
    Time passes where a thread waits, and only there.

    Args:
        version: Line of Pulsar whose limits and formats the brokers have: a name in
            `timewheel.core.broker_profile.PROFILE_NAMES`, or a profile.
        brokers: Number of brokers.
        begins: Time at which it begins; now if it is not given.
        seed: Decides which of several threads that are ready runs next, and what ``os.urandom`` returns: the same seed
            makes the same history, in processes with the same ``PYTHONHASHSEED``. None: the thread that has waited
            longest, and true randomness.

    Raises:
        RuntimeError: Another virtual Pulsar is active in this process.
    """

    service_url = "pulsar://virtual:6650"
    admin_url = "http://virtual:8080"

    def __init__(
        self,
        *,
        version: str | BrokerProfile = DEFAULT_PROFILE,
        brokers: int = 1,
        begins: dt.datetime | None = None,
        seed: int | None = None,
    ) -> None:
        begins_ns = (time.time_ns() // MS if begins is None else round(begins.timestamp() * 1e3)) * MS
        drawn = None if seed is None else random.Random(seed)
        self._random_bytes = None if drawn is None else drawn.randbytes
        self.scheduler = Scheduler(begins_ns) if drawn is None else Scheduler(begins_ns, drawn.choice)
        profile = BrokerProfile.named(version) if isinstance(version, str) else version
        self.cluster = Cluster(self.scheduler, profile, brokers=brokers)
        self.version = self.cluster.version  # what the brokers report
        self.admin_transport = VirtualAdmin(self.cluster)
        self._clients: list[NativeClient | VirtualSession] = []
        self._stack = ExitStack()
        self.new_pid = partial(next, itertools.count(2))

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(patched(self.scheduler, self._random_bytes))
            stack.enter_context(mock.patch.dict(base_producer._STAMPS, clear=True))  # noqa: SLF001 - by process
            for owner, name, virtual in (
                (_pulsar, "ProducerConfiguration", Configuration),
                (_pulsar, "ConsumerConfiguration", Configuration),
                (_pulsar, "ReaderConfiguration", Configuration),
                (_pulsar, "ClientConfiguration", Configuration),
                (_pulsar, "MessageBuilder", MessageBuilder),
                (_pulsar, "Client", self._native),
                (Dialer, "reach", self._reach),
                (Dialer, "responds", lambda _: True),
                (httpx.HTTPTransport, "handle_request", self._handling(httpx.HTTPTransport.handle_request)),
            ):
                stack.enter_context(mock.patch.object(*either(self.scheduler, owner, name, virtual)))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for client in self._clients:
            client.end()
        self._stack.close()
        if error is None:
            self.scheduler.raise_failure()

    def _native(self, _: str, settings: Configuration) -> NativeClient:
        client = NativeClient(self.cluster, settings)
        self._clients.append(client)
        return client

    def _reach(self, dialer: Dialer, topic: str, *, keep_payload: bool = False) -> VirtualSession:
        request_ms = dialer._request_ms  # noqa: SLF001 - it is asked in place of the dialer
        session = VirtualSession(self.cluster, topic, keep_payload=keep_payload, request_ms=request_ms)
        self._clients.append(session)
        return session

    def _handling(self, real: Callable[..., httpx.Response]) -> Callable[..., httpx.Response]:
        def handle_request(transport: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
            if request.url.path.startswith(("/admin/v2", "/lookup/v2")):
                return self.admin_transport.handle_request(request)
            return real(transport, request)

        return handle_request

    def clients_of(self, process: Process) -> Sequence[NativeClient | VirtualSession]:
        """Return the clients and sessions that the threads of a process have made."""
        return [client for client in self._clients if client.process is process]

    # Clients

    def client(self, **options: Any) -> pulsar.Client:
        """Return a new client; ``options`` as for `pulsar.Client`."""
        return pulsar.Client(self.service_url, **options)

    def admin(self, **options: Any) -> AdminClient:
        """Return a new client of the admin API; ``options`` as for `timewheel.AdminClient`."""
        return AdminClient(self.admin_url, transport=self.admin_transport, **options)

    # Time

    @property
    def now(self) -> dt.datetime:
        """The virtual wall clock, UTC."""
        return dt.datetime.fromtimestamp(self.scheduler.now_ns / 1e9, dt.UTC)

    def advance(self, span: dt.timedelta | None = None, **parts: float) -> None:
        """Let time pass, and return when all has happened that happens until then, or raise what has ended a thread, or
        was raised by a client's callback. ``parts`` are those of a `timedelta`: ``days=17``, ``minutes=5``.
        """
        span = dt.timedelta(**parts) if span is None else span
        self.scheduler.advance(round(span / dt.timedelta(microseconds=1)) * 1_000)
        self.scheduler.raise_failure()

    def skew(self, by: dt.timedelta) -> None:
        """Let the wall clock of the whole machine jump; durations are as before."""
        self.scheduler.skew(round(by / dt.timedelta(microseconds=1)) * 1_000)

    # Processes and faults

    def start(self, target: Callable[..., Any], *arguments: Any, name: str | None = None) -> VirtualProcess:
        """Run a function on a thread of a process of its own, which can be killed and frozen."""
        process = VirtualProcess(self, name or "service")
        thread = threading.Thread(target=target, args=arguments, name=process.process.name, daemon=True)
        with mock.patch.object(self.scheduler.current, "process", process.process):
            thread.start()
        return process

    def unload(self, topic: str) -> None:
        """Unload a topic with all its partitions; it is loaded again at its next use."""
        self.cluster.unload(topic)

    def kill_broker(self, number: int = 0) -> None:
        """Kill a broker; without another one, start it again at once."""
        broker = self.cluster.brokers[number]
        self.cluster.kill(broker)
        if not any(one.is_up for one in self.cluster.brokers):
            broker.is_up = True

    def stop_writes(self) -> None:
        """Let the brokers lose their bookies: sends wait, and may time out; acknowledgements are kept in memory."""
        self.cluster.can_write = False

    def resume_writes(self) -> None:
        """Let them write again; all that waits is stored."""
        self.cluster.resume_writes()

    # What waits

    def pending(self, topic: str | None = None) -> list[Waiting]:
        """Return the messages that a subscription has not acknowledged, by due time; of one topic, or of all."""
        names = self.cluster.topics if topic is None else self.cluster.partitions(topic)
        found = [
            Waiting(name, subscription.name, sent.payload or b"", sent.properties, _due(sent))
            for name, one in self.cluster.topics.items()
            if name in names
            for subscription in one.durable
            for entry in subscription.unacknowledged()
            for sent in entry.messages
        ]
        never = dt.datetime.max.replace(tzinfo=dt.UTC)
        return sorted(found, key=lambda waiting: waiting.due or never)


def _due(sent: Sent) -> dt.datetime | None:
    try:
        envelope = Envelope.read(sent.properties)
    except EnvelopeError:
        envelope = None
    due_ms = envelope.due_ms if envelope is not None else due_in(sent.properties) or sent.deliver_at_ms
    return dt.datetime.fromtimestamp(due_ms / 1000, dt.UTC) if due_ms else None
