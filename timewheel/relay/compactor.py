"""Keeps a log of cancellations short: rewrites the live cancellations in packs, and acknowledges the log up to there.

Packs are ordinary cancellations. So half of them, or two janitors at once, do no harm; and the acknowledgement, which
comes last, lets the broker remove entries that every reader finds again further on (broker-facts: cancellation-log).
"""

from __future__ import annotations

import threading
from typing import Any

import pulsar

from timewheel.client.cancellation_log import PACK_PROPERTY, CancellationLog
from timewheel.client.hooks import Hooks
from timewheel.client.results import Outcome, cause_of, outcome_of_result
from timewheel.client.surface import ClientLike, own_numbers
from timewheel.core.cancellations import packs
from timewheel.core.clock import Clock
from timewheel.core.names import CANCELLATIONS_SUBSCRIPTION, partition_topic
from timewheel.events import CancellationsCompacted, CancellationsNotCompacted

LOOK_EVERY_MS = 10_000
LEAST_LOOSE = 10_000  # fewer lines are read in a tenth of a second, and are not worth a rewrite
READ_TIMEOUT_MS = 30_000
SEND_TIMEOUT_MS = 30_000
PENDING_PACKS = 16  # packs under way, of half a megabyte each
JOIN_TIMEOUT_MS = 5_000


def is_worth_it(loose: int, live: int) -> bool:
    """True if a log is to be packed, so that at most half of it is read in vain: by its cancellations outside packs,
    and those still in force.
    """
    return loose > max(LEAST_LOOSE, 2 * live)


class CancellationCompactor:
    """Packs a plan's log on its own thread; any number of processes may have one. The log is begun by others."""

    def __init__(self, client: ClientLike, log: CancellationLog, clock: Clock, hooks: Hooks) -> None:
        self._client = client
        self._log = log
        self._clock = clock
        self._hooks = hooks
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._stopping = False
        self._is_reported = False
        self._thread = threading.Thread(target=self._run, name="timewheel-compactor", daemon=True)

    def start(self) -> None:
        """Begin; call once."""
        self._thread.start()

    def stop(self) -> None:
        """End; a half-written pack does no harm."""
        with self._lock:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._clock.join(self._thread, JOIN_TIMEOUT_MS)

    def _run(self) -> None:
        while self._goes_on():
            if not is_worth_it(self._log.loose, len(self._log.table)):
                continue
            try:
                packed = compact(self._client, self._log)
            except Exception as error:  # noqa: BLE001 - the client has errors of its own; it is tried again
                if not self._is_reported:
                    self._hooks.emit(CancellationsNotCompacted(topic=self._log.topic, error=str(error) or repr(error)))
                self._is_reported = True
                continue
            self._is_reported = False
            if packed is not None:
                self._hooks.emit(CancellationsCompacted(topic=self._log.topic, live=packed))

    def _goes_on(self) -> bool:
        with self._lock:
            if not self._stopping:
                self._clock.wait(self._changed, self._clock.idle_ms(None, LOOK_EVERY_MS))
            return not self._stopping


def compact(client: ClientLike, log: CancellationLog) -> int | None:
    """Pack a plan's log that is being read, now.

    Returns:
        Number of cancellations that are still in force; None if another compactor is packing, or the log could not be
        read to its end.

    Raises:
        pulsar.PulsarException: The broker refused or did not answer; packs already written do no harm.
    """
    topic = partition_topic(log.topic, 0)
    try:
        # A lease, not a reader: it acknowledges only entries that this process has read anyway. On Failover the broker
        # may deliver another consumer's messages first.
        lease = client.subscribe(
            topic,
            CANCELLATIONS_SUBSCRIPTION,
            consumer_type=pulsar.ConsumerType.Exclusive,
            initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=1,
        )
    except pulsar.ConsumerBusy:
        return None
    try:
        if not log.await_answer(log.ask(), READ_TIMEOUT_MS):
            return None
        # In this order: entries written from here on are behind the position, and stay.
        read_to = log.position
        live = list(log.table.live())
        _write(client, topic, live)
        if read_to.ledger_id() >= 0:  # at least one entry was read
            lease.acknowledge_cumulative(read_to)
        return len(live)
    finally:
        lease.close()


def _write(client: ClientLike, topic: str, live: list[Any]) -> None:
    producer = client.create_producer(
        topic,
        batching_enabled=False,
        block_if_queue_full=True,
        max_pending_messages=PENDING_PACKS,
        send_timeout_millis=SEND_TIMEOUT_MS,
        compression_type=pulsar.CompressionType.LZ4,
        **own_numbers(),
    )
    failures: list[Any] = []

    def stored(result: Any, message_id: Any) -> None:
        if outcome_of_result(result, message_id) is not Outcome.OK:
            failures.append(cause_of(result))

    try:
        messages = list(packs(live)) or [b""]
        for number, pack in enumerate(messages, start=1):
            producer.send_async(pack, stored, properties={PACK_PROPERTY: f"{number} of {len(messages)}"})
        producer.flush()
    finally:
        producer.close()
    if failures:
        raise pulsar.PulsarException(f"a pack of cancellations was not stored: {failures[0]}")
