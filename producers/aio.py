"""Asyncio producer."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, Unpack, cast

from timewheel.client.process import end_at_exit
from timewheel.core.cancellations import CancelResult
from timewheel.core.errors import ClientMisuse, TimewheelError
from timewheel.events import ProducerClosedWithUnknownOutcomes

from .base_producer import CLOSE_GRACE_MS, CLOSE_TIMEOUT_S, BaseProducer, ProducerCounts, Send, idle_ms
from .cancel_messages import replacing
from .pool import PooledProducer
from .prepare import Outgoing
from .timer import SendOptions, Timer

OPENING_THREADS = 8  # threads on which producers are opened, flushed or closed, off the event loop


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
        self._finished: deque[Send] = deque()
        self._is_called = False
        self._continuations: set[asyncio.Task[None]] = set()
        self._openings: dict[tuple[str, int], asyncio.Future[PooledProducer]] = {}
        self._changed = asyncio.Event()
        self._threads = ThreadPoolExecutor(OPENING_THREADS, thread_name_prefix="timewheel-producer")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle_ms = idle_ms(self.plan)
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
        await self._room.acquire()
        self._pending.add(send)
        try:
            self._refuse_if_closed()  # the producer may have been closed during the wait for room
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
        loop = self._usable_loop(closed_too=True)
        await loop.run_in_executor(self._threads, self._pool.flush)
        await self._drain(set(self._pending))

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> int:
        """Refuse further sends, wait for outstanding outcomes, and close. A second call does nothing.

        See `DelayedProducer.close`.
        """
        if self._process.is_child or self._closed:
            return 0  # a forked child leaves everything to its parent
        loop = self._usable_loop()
        self._closed = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._drain(set(self._pending)), timeout_s)
        unknown_count = len(self._pending)
        await loop.run_in_executor(self._threads, self._pool.close_all, CLOSE_GRACE_MS)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._drain(set(self._pending)), CLOSE_GRACE_MS / 1000)
        self._threads.shutdown(wait=False)
        if self._housekeeping is not None:
            self._housekeeping.cancel()
        if unknown_count:
            self._hooks.emit(ProducerClosedWithUnknownOutcomes(unknown_count=unknown_count))
        return unknown_count

    @property
    def counts(self) -> ProducerCounts:
        """Counts of sends by outcome, so far."""
        return self._counters.counts(len(self._pending))

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
        self._threads.submit(self._pool.close_idle)
        self._housekeeping = self._loop.call_later(self._idle_ms / 1000, self._keep_house)

    async def _start(self, send: Send) -> None:
        """Hand the next message of a send over to the client."""
        outgoing = send.outgoing
        send.pooled = self._pool.borrow(outgoing.topic, outgoing.partition) or await self._opened(send)
        try:
            send.start()
        except Exception as error:
            self._pool.give_back(send.pooled)
            raise self._refused_by_client(send, error) from error

    async def _opened(self, send: Send) -> PooledProducer:
        while True:
            outgoing = self._routed_now(send)
            key = (outgoing.topic, outgoing.partition)
            pooled = self._pool.borrow(*key)
            if pooled is not None:
                return pooled
            try:
                opening = self._openings.get(key)
                if opening is None:
                    return await self._open(outgoing)
                # Another send is opening it: a single opening serves many sends, and fails for all that wait for it.
                await asyncio.wait([opening])
                if not opening.cancelled():
                    opening.result()
            except Exception as error:  # noqa: BLE001 - the client has errors of its own; the writer reads them all
                self._opening_failed(send, error)

    async def _open(self, outgoing: Outgoing) -> PooledProducer:
        """Open a producer on a thread, and borrow it."""
        key = (outgoing.topic, outgoing.partition)
        on_thread = self._threads.submit(self._pool.open, *key, outgoing.place)
        opening = self._openings[key] = asyncio.wrap_future(on_thread)
        try:
            return await opening
        except asyncio.CancelledError:
            on_thread.add_done_callback(self._give_back_unused)
            raise
        finally:
            del self._openings[key]

    def _give_back_unused(self, on_thread: Future[PooledProducer]) -> None:
        if not on_thread.cancelled() and on_thread.exception() is None:
            self._pool.give_back(on_thread.result())

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
        finished = [self._finished.popleft() for _ in range(len(self._finished))]
        self._pool.give_back(*(send.pooled for send in finished))
        for send in finished:
            step = self._evaluate(send)
            if isinstance(step, Outgoing):
                assert self._loop is not None, "a send knows its loop"
                task = self._loop.create_task(self._continue(send))
                self._continuations.add(task)
                task.add_done_callback(self._continuations.discard)
            else:
                self._report(send, step)

    async def _continue(self, send: Send) -> None:
        try:
            await self._start(send)
        except TimewheelError as error:
            self._report(send, error)
        except Exception as error:  # noqa: BLE001 - the caller waits for an outcome, whatever the error
            self._report(send, self._refused_by_client(send, error))

    def _report(self, send: Send, error: TimewheelError | None) -> None:
        self._counters.ended(1, () if error is None else (error,))
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
