"""Asyncio producer."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, Unpack, cast

from timewheel.client.process import end_at_exit
from timewheel.client.producer_pool import ROUND_MS, Opened
from timewheel.core.cancellations import CancelResult
from timewheel.core.errors import ClientMisuse, TimewheelError
from timewheel.events import ProducerClosedWithUnknownOutcomes

from .base_producer import CLOSE_GRACE_MS, CLOSE_TIMEOUT_S, BaseProducer, ProducerCounts, Send
from .cancel_messages import replacing
from .dispatcher import HandoffQueue
from .prepare import Outgoing
from .timer import SendOptions, Timer


class AsyncDelayedProducer(BaseProducer):
    """Sends timers of one plan from one event loop; the counterpart of `DelayedProducer`.

        async with AsyncDelayedProducer(client, plan) as producer:
            timer = await producer.send(b"renew", deliver_after=timedelta(days=17), timer_id="sub-42")

    Cancelling a ``send`` ends the wait, not the send: the timer may be stored, and counts as pending until its outcome
    is known.

    Args:
        client: Your ``pulsar.Client`` (not ``pulsar.asyncio.Client``). Close it yourself, after the producer.
        clock: Clock for send times; None: the system's clock. Time-outs use the event loop's own clock.
        others: Arguments and errors of `DelayedProducer`.
    """

    def _begin(self, max_pending: int) -> None:
        self._room = asyncio.Semaphore(max_pending)
        self._pending: set[Send] = set()
        self._handoff_queue = HandoffQueue(self._runs, lambda: len(self._pending), self._refused, self._clock)
        self._finished: deque[Send] = deque()
        self._is_called = False
        self._continuations: set[asyncio.Task[None]] = set()
        self._openings: dict[Opened, asyncio.Event] = {}
        self._stored = 0  # count of stored sends
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._housekeeping: asyncio.TimerHandle | None = None
        end_at_exit(self, AsyncDelayedProducer._end)

    async def send(self, content: Any, **options: Unpack[SendOptions]) -> Timer:
        """Send a timer and wait until it is stored. Arguments, result and errors are those of
        `DelayedProducer.send`; `ClientMisuse` also if the producer belongs to another event loop.
        """
        return await self._sent(content, options, None)

    async def cancel(self, timer: Timer | str) -> CancelResult:
        """Cancel a timer, and wait until the cancellation is stored; see `DelayedProducer.cancel`."""
        outcome = self._outcome()
        return cast(CancelResult, await self._ended(self._cancelling(timer, self._client_finished, outcome)))

    async def cancel_group(self, group: str) -> CancelResult:
        """Cancel all timers that were sent with this ``group`` so far; see `DelayedProducer.cancel_group`."""
        outcome = self._outcome()
        send = self._cancelling(group, self._client_finished, outcome, is_group=True)
        return cast(CancelResult, await self._ended(send))

    async def reschedule(self, timer: Timer, content: Any, **options: Unpack[SendOptions]) -> Timer:
        """Send a timer in place of an earlier timer; see `DelayedProducer.reschedule`."""
        return await self._sent(content, replacing(self.plan, timer, options), timer)

    async def _sent(self, content: Any, options: SendOptions, older: Timer | None) -> Timer:
        outcome = self._outcome()
        outgoing = self._prepare(content, options, 0 if older is None else older.generation)
        send = Send(outgoing, self._client_finished, outcome)
        send.older_due_ms = None if older is None else older.due_ms
        return cast(Timer, await self._ended(send))

    def _outcome(self) -> asyncio.Future[Timer | CancelResult | None]:
        return self._usable_loop().create_future()

    async def _ended(self, send: Send) -> Timer | CancelResult | None:
        outcome: asyncio.Future[Timer | CancelResult | None] = send.notify
        # The time of a send includes its wait for room while nothing is stored, but not the work of earlier sends.
        send.began, stored = self._pool.round, self._stored
        await self._room.acquire()
        self._pending.add(send)
        try:
            self._refuse_if_closed()  # the producer may have been closed during the wait for room
            if stored != self._stored:
                send.began = self._pool.round
            self._refuse_if_overdue(send)
            await self._start(send)
        except BaseException as error:
            self._counters.raised(error)
            self._leave(send)
            raise
        return await outcome

    async def flush(self) -> None:
        """Wait until the outcome of every send so far is known and passed to its caller.

        Raises:
            ClientMisuse: The producer is forked, or belongs to another event loop.
        """
        self._usable_loop(closed_too=True)
        self._handoff_queue.hand_over()
        self._pool.flush()
        await self._drain(set(self._pending))

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> int:
        """Refuse further sends, wait for outstanding outcomes, and close. A second call does nothing.

        See `DelayedProducer.close`.
        """
        if self._process.is_child or self._closed:
            return 0  # a forked child leaves everything to its parent
        self._usable_loop()
        self._closed = True
        self._handoff_queue.hand_over()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._drain(set(self._pending)), timeout_s)
        unknown_count = len(self._pending)
        await asyncio.to_thread(self._pool.close_all, CLOSE_GRACE_MS)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._drain(set(self._pending)), CLOSE_GRACE_MS / 1000)
        if self._housekeeping is not None:
            self._housekeeping.cancel()
        if unknown_count:
            self._hooks.emit(ProducerClosedWithUnknownOutcomes(unknown_count=unknown_count))
        return unknown_count

    @property
    def counts(self) -> ProducerCounts:
        """Counts of sends by outcome, so far."""
        return self._counters.counts(len(self._pending), self._pool.replaced)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _end(self) -> None:
        """Close without a loop: the loop ends before the interpreter does."""
        self._closed = True
        self._pool.close_all(CLOSE_GRACE_MS)

    def _usable_loop(self, *, closed_too: bool = False) -> asyncio.AbstractEventLoop:
        self._process.check("producer")
        if not closed_too:
            self._refuse_if_closed()
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise ClientMisuse("this producer belongs to another event loop: make one producer per loop")
            self._loop = loop
            self._keep_house()
        return loop

    def _keep_house(self) -> None:
        assert self._loop is not None, "called once a loop is known"
        self._conclude(self._overdue())
        self._housekeeping = self._loop.call_later(self._clock.idle_ms(None, ROUND_MS) / 1000, self._keep_house)

    async def _start(self, send: Send) -> None:
        """Hand the next message of a send over to the client, soon."""
        while not self._borrowed(send):
            try:
                opening = self._opening(send)
                await self._until(opening, self._pool.left_ms(send) / 1000)
                self._pool.check_opened(opening)
            except Exception as error:  # noqa: BLE001 - the client has errors of its own; `_opening_failed` knows them
                self._opening_failed(send, error)
        self._handoff_queue.put(send)

    async def _until(self, opening: Opened, timeout_s: float) -> None:
        """Wait for the end of an opening, or for this time."""
        if opening.done():
            return
        ended = self._openings.get(opening)
        if ended is None:
            # A single wake-up of the loop for all that wait.
            ended = self._openings[opening] = asyncio.Event()
            opening.add_done_callback(self._wake)
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), timeout_s)

    def _wake(self, opening: Opened) -> None:
        """Let the loop know that an opening has ended; runs on a thread of the pool."""
        assert self._loop is not None, "a send knows its loop"
        with suppress(RuntimeError):  # the loop was closed: no caller is left
            self._loop.call_soon_threadsafe(self._opening_ended, opening)

    def _opening_ended(self, opening: Opened) -> None:
        self._openings.pop(opening).set()

    def _refused(self, send: Send, error: Exception) -> None:
        """Report a message that was not sent: its caller waits for the outcome."""
        send.raised = error
        self._client_finished(send)

    def _client_finished(self, send: Send) -> None:
        """Hand over a finished attempt to the loop; runs on the client's own thread."""
        self._finished.append(send)
        if self._is_called:
            return
        # A single wake-up for all attempts that finish before the loop handles it.
        self._is_called = True
        assert self._loop is not None, "a send knows its loop"
        with suppress(RuntimeError):  # the loop was closed: no caller is left
            self._loop.call_soon_threadsafe(self._conclude_all)

    def _conclude_all(self) -> None:
        # The flag is cleared first: attempts that finish from here on request another call.
        self._is_called = False
        taken = [self._finished.popleft() for _ in range(len(self._finished))]
        self._conclude(taken)

    def _conclude(self, finished: list[Send]) -> None:
        sends = [send for send in self._answered(finished) if send in self._pending]  # others were overdue
        self._pool.give_back(sends)
        for send in sends:
            step = self._evaluate(send)
            if isinstance(step, Outgoing):
                assert self._loop is not None, "a send knows its loop"
                task = self._loop.create_task(self._continue(send))
                self._continuations.add(task)
                task.add_done_callback(self._continuations.discard)
            else:
                self._report(send, step)
        self._handoff_queue.some_ended()

    async def _continue(self, send: Send) -> None:
        try:
            await self._start(send)
        except TimewheelError as error:
            self._report(send, error)
        except Exception as error:  # noqa: BLE001 - the caller waits for an outcome, whatever the error
            self._report(send, self._refused_by_client(send, error))

    def _report(self, send: Send, error: TimewheelError | None) -> None:
        self._counters.ended(1, () if error is None else (error,))
        self._stored += error is None
        self._leave(send)
        outcome: asyncio.Future[Timer | CancelResult | None] = send.notify
        if outcome.done():
            return  # its caller was cancelled
        if error is None:
            outcome.set_result(self._result(send, None))
        else:
            outcome.set_exception(error)

    def _leave(self, send: Send) -> None:
        if send in self._pending:
            self._pending.discard(send)
            self._room.release()
            self._changed.set()

    async def _drain(self, sends: set[Send]) -> None:
        while not sends.isdisjoint(self._pending):
            self._changed.clear()
            await self._changed.wait()
