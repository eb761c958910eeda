"""A trial of the checker: a relay that acknowledges before it publishes is killed in between; the checker must see
loss.

Its twin publishes before it acknowledges and is killed at the same moment: the same checker must see no loss.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import pulsar

from timewheel.client.positions import EntryPosition
from timewheel.core.envelope import ID_PROPERTY
from timewheel.demo.player import connect
from timewheel.demo.settings import NAMESPACE
from timewheel.testing.evidence.ledger import Totals, check
from timewheel.testing.evidence.trace import payload, timer_id

TIMERS = 400
PUBLISHED_BEFORE_KILL = 100  # the relay is killed when it has taken all timers and published this many of them
RELAY_SUBSCRIPTION = "trial-relay"
READER_SUBSCRIPTION = "trial-reader"
STEP_TIMEOUT_S = 300.0  # Time-out of each step of the trial: a relay's start, its acknowledgements, the drain
RECEIVE_MS = 500
TURN_S = 0.2  # how long the end of the play may go unseen


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckerTrial:
    """The checker's totals with the relay that acknowledges first, and with its twin that publishes first."""

    sabotaged: Totals
    honest: Totals


def try_checker(client: Any, service_url: str, out: Path, is_over: threading.Event) -> CheckerTrial:
    """Play both relays, each killed with -9 once; takes a few seconds.

    Raises:
        TimeoutError: A step did not finish in time, or before the play was over (``is_over``).
        pulsar.PulsarException: The client was closed, which ends a step that waits for the broker.
    """
    return CheckerTrial(
        sabotaged=_killed_in_between(client, service_url, out, is_over, "acknowledge-first"),
        honest=_killed_in_between(client, service_url, out, is_over, "publish-first"),
    )


def _killed_in_between(client: Any, service_url: str, out: Path, is_over: threading.Event, order: str) -> Totals:
    held, due = (f"persistent://{NAMESPACE}/trial-{order}-{part}" for part in ("held", "due"))
    earliest = pulsar.InitialPosition.Earliest
    reader = client.subscribe(due, READER_SUBSCRIPTION, initial_position=earliest)
    client.subscribe(held, RELAY_SUBSCRIPTION, initial_position=earliest).close()
    producer = client.create_producer(held)
    attempted = [timer_id(index) for index in range(TIMERS)]
    for index, timer in enumerate(attempted):
        producer.send(payload(index), properties={ID_PROPERTY: timer})
    producer.close()

    with _Relay(service_url, out, held, due, order, stop_after=PUBLISHED_BEFORE_KILL) as relay:
        relay.await_words("published", is_over)
        relay.kill()
    with _Relay(service_url, out, held, due, order, stop_after=TIMERS) as relay:
        handled = _drain(reader, relay, is_over)
    reader.close()
    return check(attempted=attempted, acknowledged=attempted, handled=handled)


def _drain(reader: Any, relay: _Relay, is_over: threading.Event) -> Counter[str]:
    """Read the due topic until the restarted relay is idle and its last message has arrived."""
    handled: Counter[str] = Counter()
    relay.await_words("idle", is_over)
    last = _place(reader.get_last_message_id())
    deadline = time.monotonic() + STEP_TIMEOUT_S
    while time.monotonic() < deadline and not is_over.is_set():
        with suppress(pulsar.Timeout):
            message = reader.receive(RECEIVE_MS)
            handled[message.properties()[ID_PROPERTY]] += 1
            reader.acknowledge(message)
            if _place(message.message_id()) >= last:
                return handled
    raise TimeoutError(f"the trial's due topic was not drained in {STEP_TIMEOUT_S} s")


class _Relay:
    """The relay's process, seen from the parent."""

    def __init__(self, service_url: str, out: Path, held: str, due: str, order: str, stop_after: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(
            target=_relay,
            args=(theirs, service_url, out, held, due, order, stop_after),
            name=f"trial-{order}",
            daemon=True,
        )
        self._process.start()
        theirs.close()

    def await_words(self, word: str, is_over: threading.Event) -> None:
        deadline = time.monotonic() + STEP_TIMEOUT_S
        while time.monotonic() < deadline and not is_over.is_set():
            if self._ours.poll(TURN_S) and self._ours.recv() == word:
                return
        raise TimeoutError(f"the relay on trial did not report {word!r} in {STEP_TIMEOUT_S} s")

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._ours.close()


def _relay(
    connection: Connection, service_url: str, out: Path, held: str, due: str, order: str, stop_after: int
) -> None:
    """Run the relay's process: take all messages, publish up to ``stop_after`` of them, then wait to be killed."""
    client = connect(service_url, out)
    consumer = client.subscribe(held, RELAY_SUBSCRIPTION, initial_position=pulsar.InitialPosition.Earliest)
    producer = client.create_producer(due)
    # Timers that were acknowledged first are gone at the second start; otherwise the last timer is still there.
    nothing = order == "acknowledge-first" and stop_after == TIMERS
    last = None if nothing else _place(consumer.get_last_message_id())
    in_flight = _take_all(consumer, last, acknowledge=order == "acknowledge-first")
    if order == "acknowledge-first":
        # The client groups acknowledgements; only closing its consumer ensures that they were sent.
        consumer.close()
    for message in in_flight[:stop_after]:
        producer.send(message.data(), properties=message.properties())
        if order == "publish-first":
            consumer.acknowledge(message)
    connection.send("published" if len(in_flight) > stop_after else "idle")
    try:
        connection.recv()  # no message is ever sent: this waits for the kill, or for the parent's end
    except EOFError:
        os._exit(1)


def _take_all(consumer: Any, last: EntryPosition | None, *, acknowledge: bool) -> list[Any]:
    """Take messages up to the last; None: no message is expected, and the wait for it is short."""
    taken: list[Any] = []
    while True:
        try:
            message = consumer.receive(RECEIVE_MS)
        except pulsar.Timeout:
            if last is None:
                return taken
            continue
        if acknowledge:
            consumer.acknowledge(message)
        taken.append(message)
        if last is not None and _place(message.message_id()) >= last:
            return taken


def _place(message_id: Any) -> EntryPosition:
    return EntryPosition(message_id.ledger_id(), message_id.entry_id())
