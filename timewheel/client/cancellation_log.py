"""Reader of the log of cancellations: keeps its content in memory, and checks whether newer cancellations exist.

The log is a plain topic with a reader, without table view and compaction (broker-facts: cancellation-log).
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pulsar

from timewheel.client.hooks import LASTS_AFTER_MS, Alarms, Fault, Hooks
from timewheel.client.native import try_opening, uncounted_of
from timewheel.client.positions import Position
from timewheel.client.process import end_at_exit
from timewheel.client.reaching import partition_count
from timewheel.client.reopening import Reopening
from timewheel.client.surface import ClientLike, own_numbers
from timewheel.core.cancellations import MAX_LIVE, Cancellation, CancellationTable, latest_forget_ms, read_cancellations
from timewheel.core.clock import Clock
from timewheel.core.envelope import MAX_TIME_MS
from timewheel.core.errors import CancellationUnreadable, TopologyError
from timewheel.core.grouping import LARGEST_BATCH
from timewheel.core.names import CANCELLATIONS_SUBSCRIPTION, Names, partition_topic
from timewheel.core.plan import Plan
from timewheel.events import (
    CancellationsNotRead,
    CancellationsReadAgain,
    CancellationsRefused,
    CancellationsUnknown,
    ManyCancellations,
)

PACK_PROPERTY = "tw-pack"  # marks a message written by a compactor: cancellations that stood in the log before
LOOK_EVERY_MS = 1_000
"""Interval at which the log is read without a question: known cancellations need no question, and relays ask none."""
READ_TIMEOUT_MS = 1_000  # wait for a message that the broker reports as available
MAX_SILENT = 3  # timed-out waits for one message after which reading has failed
PROBE_SILENT = 2
"""Timed-out waits after which an empty message is written. Once it arrives, all earlier messages have arrived that the
client does not hide (broker-facts: cancellation-log)."""
PROBE_TIMEOUT_MS = 5_000
LAST_INDEX = (1 << 31) - 1  # index behind all messages of a batch
RETRY_MS = 200
NOT_READ_AFTER_MS = LASTS_AFTER_MS
"""Each move of the log to another broker fails a few reads, and heals within a second."""
REOPEN_AFTER = 5  # failures in a row after which a connected reader is opened anew; it mostly recovers by itself
FORGET_EVERY_MS = 60_000
QUEUED = 50  # messages that the client reads ahead; packs take half a megabyte each
MANY_SHARE = 0.8
JOIN_TIMEOUT_MS = 5_000


class CancellationLog:
    """Follows the log of cancellations of a plan with ``[cancel]``, on a thread of its own. Any thread may read
    `table`, all cancellations read so far.
    """

    def __init__(self, client: ClientLike, plan: Plan, clock: Clock, hooks: Hooks) -> None:
        assert plan.cancel is not None, "a log is of a plan with [cancel]"
        self._latest_ms = partial(latest_forget_ms, plan.max_delay_ms, plan.cancel.keep_ms)
        self.table = CancellationTable(MAX_LIVE)
        self.topic = Names(plan).cancellations
        self._client = client
        self._clock = clock
        self._hooks = hooks
        self._alarms = Alarms(hooks, clock)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._asked = 0
        self._answered = 0
        self._asked_ms: int | None = None  # when the newest answered question was asked
        self._stopping = False
        # The thread owns all attributes below.
        self._reader: Any = None
        self._position: Any = pulsar.MessageId.earliest
        self._passes_by = False
        self._loose = 0
        self._failures = 0
        self._fault = Fault(clock, NOT_READ_AFTER_MS)
        self._reopening = Reopening(clock, partial(try_opening, client))
        self._forget_ms = 0
        self._is_many_reported = False
        self._thread: threading.Thread | None = None

    @property
    def ready(self) -> bool:
        """True if the log was read to its end at least once, and can be read now."""
        return self._answered > 0 and not self._failures

    @property
    def position(self) -> Any:
        """The client's id of the last message read."""
        return self._position

    @property
    def loose(self) -> int:
        """Number of cancellations read that are in no pack yet."""
        return self._loose

    def start(self, *, patiently: bool = False) -> None:
        """Open the log and begin to read it."""
        if not patiently:
            self._open()
        self.ask()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="timewheel-cancellations", daemon=True)
        self._thread.start()
        end_at_exit(self, CancellationLog.stop)

    def stop(self) -> None:
        """End the thread and close the reader; questions stay unanswered from then on."""
        with self._lock:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._clock.join(self._thread, JOIN_TIMEOUT_MS)
        self._close()
        self._alarms.flush(at_end=True)

    def ask(self) -> int:
        """Ask for all newer cancellations, and return the question's number. Once `is_answered` is True for it, `table`
        has every cancellation that the broker had confirmed before this call.
        """
        with self._lock:
            self._asked += 1
            self._changed.notify_all()
            return self._asked

    def is_answered(self, question: int) -> bool:
        """Return whether everything that was confirmed before the question has been read."""
        return self._answered >= question

    def age_ms(self) -> int:
        """Return the age of the newest answered question: `table` has all cancellations confirmed before."""
        return MAX_TIME_MS if self._asked_ms is None else self._clock.monotonic_ms() - self._asked_ms

    def await_answer(self, question: int, timeout_ms: int) -> bool:
        """Wait for an answer; False if the time passed before."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        with self._lock:
            while self._answered < question:
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if left_ms <= 0 or self._stopping:
                    return False
                self._clock.wait(self._changed, left_ms)
        return True

    def _run(self) -> None:
        while (question := self._next_question()) is not None:
            asked_ms = self._clock.monotonic_ms()
            try:
                self._read_to_the_end()
            except Exception as error:  # noqa: BLE001 - the client has errors of its own; without this thread all hold
                self._failed(error, asked_ms)
                continue
            self._succeeded(question, asked_ms)
            self._keep_house()

    def _next_question(self) -> int | None:
        """Return the newest question, which the next read answers; None: the thread is to end."""
        with self._lock:
            if not self._stopping and self._asked == self._answered:
                self._clock.wait(self._changed, self._clock.idle_ms(None, LOOK_EVERY_MS))
            return None if self._stopping else self._asked

    def _read_to_the_end(self) -> None:
        silent, probe = 0, None
        # The broker answers False, asked after the question was; a probe is sent after that, too.
        while (reader := self._connected()).has_message_available():
            try:
                message = reader.read_next(timeout_millis=READ_TIMEOUT_MS)
            except pulsar.Timeout:
                if self._stopping:
                    return
                silent += 1
                if silent == MAX_SILENT:
                    raise  # the reported message does not arrive
                if silent == PROBE_SILENT:
                    probe = self._probe()
                continue
            if silent >= PROBE_SILENT:
                self._unknown(f"the client hides what stands behind {Position.of(self._position).text}")
            silent = 0
            self._take(message)
            if probe is not None and Position.of(self._position) >= probe:
                return

    def _connected(self) -> Any:
        """Return the reader; if its connection is lost, a question would wait for as long as the client pauses."""
        reader = self._reader or self._open()
        if self._reopening.inspect([(partition_topic(self.topic, 0), reader)]) is not None:
            self._close()
            return self._open()
        if self._reopening.is_waiting:
            raise pulsar.NotConnected("the connection to the log is lost")
        return reader

    def _probe(self) -> Position:
        """Write a message behind a message that the client may hide: a chunk, a payload that cannot be decrypted."""
        producer = self._client.create_producer(
            partition_topic(self.topic, 0), send_timeout_millis=PROBE_TIMEOUT_MS, **own_numbers()
        )
        try:
            return Position.of(producer.send(b""))
        finally:
            producer.close()

    def _take(self, message: Any) -> None:
        # Before all else: whatever is wrong with the message, it is not read again.
        self._position = message.message_id()
        place = Position.of(self._position)
        if place.batch_index >= LARGEST_BATCH:
            self._unknown(f"a batch at {place.text} has more than {LARGEST_BATCH:,} messages; the rest is passed over")
            self._position = pulsar.MessageId(-1, place.ledger, place.entry, LAST_INDEX)
            self._close()
            return
        self._passes_by = bool(uncounted_of(message))
        if self._passes_by:
            self._close()  # the broker sends no more to this reader
        is_pack = False
        try:
            is_pack = PACK_PROPERTY in message.properties()
            # From the time of writing, if it has passed: reading the log again does not prolong the memory.
            written_ms = min(message.publish_timestamp(), self._clock.now_ms())
            cancellations = read_cancellations(message.data(), self._latest_ms(written_ms))
        except CancellationUnreadable as error:
            self._unknown(str(error))
            cancellations = list(error.readable)
        except Exception as error:  # noqa: BLE001 - a message by any writer of this topic must not end the reading
            self._unknown(f"a message at {place.text} cannot be read: {error!r}")
            return
        self._merge(cancellations)
        # All cancellations before the last pack are in a pack, or in the few lines that came during its writing.
        self._loose = 0 if is_pack else self._loose + len(cancellations)

    def _merge(self, cancellations: list[Cancellation]) -> None:
        table = self.table
        refused = [cancellation for cancellation in cancellations if not table.merge(cancellation)]
        if refused and table.forget(self._clock.now_ms()):  # a log read from its start contains expired cancellations
            refused = [cancellation for cancellation in refused if not table.merge(cancellation)]
        if refused:
            self._alarms.raised(CancellationsRefused(topic=self.topic, refused=len(refused), limit=MAX_LIVE))

    def _unknown(self, error: str) -> None:
        self._alarms.raised(CancellationsUnknown(topic=self.topic, error=error))

    def _failed(self, error: Exception, asked_ms: int) -> None:
        self._failures += 1
        if self._fault.persists(asked_ms):
            self._hooks.emit(CancellationsNotRead(topic=self.topic, error=str(error) or repr(error)))
        if self._failures % REOPEN_AFTER == 0 and not self._reopening.is_waiting:
            self._close()
        with self._lock:
            if not self._stopping:
                self._clock.wait(self._changed, RETRY_MS)

    def _succeeded(self, question: int, asked_ms: int) -> None:
        self._failures = 0
        if self._fault.ended() is not None:
            self._hooks.emit(CancellationsReadAgain(topic=self.topic))
        with self._lock:
            if not self._stopping:
                self._answered, self._asked_ms = max(self._answered, question), asked_ms
            self._changed.notify_all()

    def _keep_house(self) -> None:
        self._alarms.flush()
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._forget_ms:
            return
        self._forget_ms = now_ms + FORGET_EVERY_MS
        self.table.forget(self._clock.now_ms())
        is_many = len(self.table) > MANY_SHARE * MAX_LIVE
        if is_many and not self._is_many_reported:
            self._hooks.emit(ManyCancellations(topic=self.topic, live=len(self.table), limit=MAX_LIVE))
        self._is_many_reported = is_many

    def _open(self) -> Any:
        if not partition_count(self._client, self.topic):
            # A reader would create the topic without its policies.
            raise TopologyError(
                self.topic,
                "does not exist as a partitioned topic, and the plan has [cancel]",
                "run `timewheel topics ensure PLAN` before consumers and relays start",
            )
        begins = self._position
        if self._passes_by:  # a broker begins at the entry itself, and the client leaves out what was read
            begins = pulsar.MessageId(-1, begins.ledger_id(), begins.entry_id() + 1, -1)
        self._reader = self._client.create_reader(
            partition_topic(self.topic, 0),
            begins,
            start_message_id_inclusive=self._passes_by,
            receiver_queue_size=QUEUED,
            crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME,  # FAIL would hide the message
            subscription_role_prefix=CANCELLATIONS_SUBSCRIPTION,
        )
        return self._reader

    def _close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is None:
            return
        try:
            reader.close()
        except pulsar.PulsarException:
            return  # already closed: nothing depends on the reader
