"""Arguments of the wrong kind: refused where they are given, for both flavours."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pulsar
import pulsar.asyncio
import pytest

from tests.consumers.test_process import MADE
from tests.support.silent_broker import SilentClient
from tests.support.through import Through
from timewheel.consumers import (
    AsyncDelayedConsumer,
    DelayedConsumer,
    DelayedMessage,
    FixedBackoff,
    Overdue,
    RetryPolicy,
    source,
)
from timewheel.consumers.inbox import MemoryInbox
from timewheel.consumers.inbox.sql import SqlInbox
from timewheel.consumers.middleware import Middleware
from timewheel.core import Plan
from timewheel.core.plan import Cancel
from timewheel.errors import BadArgument, CancelRefused, SubscribeRefused
from timewheel.producers import AsyncDelayedProducer, DelayedProducer, Timer, pool

PLAN = Plan(due_topic="persistent://acme/crm/reminders", subscriptions=("billing",), retry=True, cancel=Cancel())
CLIENT = SilentClient(closes=True)
SECOND = dt.timedelta(seconds=1)
SENT = Timer("order-7", 4_000_000_000_000, due_topic=PLAN.due_topic)

consumers = pytest.mark.parametrize("consumer", [DelayedConsumer, AsyncDelayedConsumer])
producers = pytest.mark.parametrize("producer", [DelayedProducer, AsyncDelayedProducer])


def refused(call: Callable[[], object], name: str, value: object, remedy: str) -> None:
    """Check that a call is refused, and that the message has the argument, the value and the remedy."""
    with pytest.raises(BadArgument, match=re.escape(remedy)) as caught:
        call()
    assert (caught.value.name, caught.value.value) == (name, value)
    assert name in str(caught.value)
    assert repr(value)[:40] in str(caught.value)


@consumers
@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("retry", 3, "RetryPolicy(max_attempts=3)"),
        ("retry", RetryPolicy, "RetryPolicy(max_attempts=3)"),
        ("inbox", "x.sqlite3", 'SqliteInbox("inbox.sqlite3")'),
        ("inbox", MemoryInbox, 'SqliteInbox("inbox.sqlite3")'),
        ("inbox", SqlInbox(PLAN.due_topic, "billing"), 'SqliteInbox("inbox.sqlite3")'),
        ("overdue", SECOND, 'Overdue(timedelta(hours=1), then="park")'),
        ("middleware", (Middleware,), "middleware=[MyMiddleware()]"),
        ("middleware", Middleware(), "middleware=[MyMiddleware()]"),
        ("hooks", print, "hooks=(my_hook,)"),
        ("hooks", "log", "hooks=(my_hook,)"),
    ],
)
def test_an_option_of_the_wrong_kind_is_refused(consumer: Any, name: str, value: object, remedy: str) -> None:
    refused(lambda: consumer(CLIENT, PLAN, "billing", **{name: value}), name, value, remedy)


class AsyncHook(Middleware):
    async def before(self, _: DelayedMessage) -> None: ...  # type: ignore[override]


async def backing_off(*_: object) -> dt.timedelta:
    return SECOND


@consumers
def test_a_hook_that_nothing_would_await_is_refused(consumer: Any) -> None:
    """It would be called, and its coroutine dropped: the timer that it means to skip would be handled."""
    hook = AsyncHook()
    refused(lambda: consumer(CLIENT, PLAN, "billing", middleware=[hook]), "middleware", hook, "def before(self, ...)")
    refused(lambda: RetryPolicy(backoff=backing_off), "backoff", backing_off, "FixedBackoff(")  # type: ignore[arg-type]


@producers
@pytest.mark.parametrize(
    ("timer", "options", "name", "value", "remedy"),
    [
        ("order-7", {}, "timer", "order-7", "the Timer that send returned"),
        (SENT, {"timer_id": "order-8"}, "timer_id", "order-8", "keeps the id of its timer, 'order-7'"),
        (SENT, {"replace": False}, "replace", False, "use send"),
    ],
)
def test_a_reschedule_takes_the_timer_that_it_replaces(
    producer: Any, timer: object, options: dict[str, object], name: str, value: object, remedy: str
) -> None:
    refused(lambda: ended(producer(CLIENT, PLAN).reschedule(timer, b"new", **options)), name, value, remedy)


makers = pytest.mark.parametrize("make", MADE.values(), ids=MADE)


@makers
def test_neither_a_path_is_a_plan_nor_a_url_a_client(make: Callable[[Any, Any], object]) -> None:
    for path in ("reminders.toml", Path("reminders.toml")):
        refused(lambda path=path: make(CLIENT, path), "plan", path, 'Plan.load("reminders.toml")')  # type: ignore[misc]
    for client in ("pulsar://localhost:6650", None, pulsar.Client, asyncio_client()):
        refused(
            lambda client=client: make(client, PLAN),  # type: ignore[misc]
            "client",
            client,
            'pulsar.Client("pulsar://localhost:6650")',
        )


def asyncio_client() -> Any:
    """A client of `pulsar.asyncio` without a connection, which its constructor would make."""
    return pulsar.asyncio.Client.__new__(pulsar.asyncio.Client)


@pytest.mark.parametrize("backoff", [SECOND, 5, None, FixedBackoff])
def test_a_back_off_is_called_and_a_duration_cannot_be(backoff: Any) -> None:
    refused(lambda: RetryPolicy(backoff=backoff), "backoff", backoff, "FixedBackoff(timedelta(seconds=10))")


@producers
def test_hooks_of_a_producer_are_a_tuple(producer: Any) -> None:
    refused(lambda: producer(CLIENT, PLAN, hooks=print), "hooks", print, "hooks=(my_hook,)")


@consumers
@pytest.mark.parametrize("handler", [None, "handle"])
def test_a_handler_is_a_function(consumer: Any, handler: Any) -> None:
    refused(lambda: ended(consumer(CLIENT, PLAN, "billing").run(handler)), "handler", handler, "run(handle)")


@producers
@pytest.mark.parametrize("generation", ["0", 1.5, True, None, -1])
@pytest.mark.parametrize("call", ["cancel", "reschedule"])
def test_the_generation_of_a_timer_is_a_whole_number(producer: Any, generation: Any, call: str) -> None:
    timer = Timer("id", 1_763_700_000_000, generation=generation)
    content = (b"new",) if call == "reschedule" else ()
    with pytest.raises(CancelRefused, match=re.escape(f"its generation, {generation!r}, is no whole number")):
        ended(getattr(producer(CLIENT, PLAN), call)(timer, *content))


class OwnClient(pulsar.Client):  # type: ignore[misc]  # pulsar ships no types
    """A client of a user's own, without a connection, which its base would make."""

    def __init__(self) -> None:
        """Begin nothing."""


@pytest.mark.parametrize(
    "client",
    [
        OwnClient(),
        Through(CLIENT),
        mock.Mock(),
        mock.MagicMock(),
        mock.Mock(spec=pulsar.Client),
        mock.Mock(wraps=CLIENT),
        mock.create_autospec(pulsar.Client, instance=True),
        mock.create_autospec(SilentClient, instance=True),
    ],
)
@makers
def test_clients_of_any_class_are_accepted(make: Callable[[Any, Any], object], client: Any) -> None:
    make(client, PLAN)


@makers
def test_a_mock_of_an_asyncio_client_is_refused(make: Callable[[Any, Any], object]) -> None:
    with pytest.raises(BadArgument, match="a blocking client is needed"):
        make(mock.create_autospec(pulsar.asyncio.Client, instance=True), PLAN)


class OwnMiddleware:
    """Has the methods of an `Middleware` without its base."""

    def before(self, message: DelayedMessage) -> None: ...
    def after(self, message: DelayedMessage) -> None: ...
    def failed(self, message: DelayedMessage, error: BaseException) -> None: ...


@consumers
def test_the_right_kinds_are_accepted(consumer: Any) -> None:
    """Also a list where a tuple is meant, and wrappers that pass everything on."""
    middlewares = [
        Middleware(),
        OwnMiddleware(),
        Through(Middleware()),
        mock.create_autospec(Middleware, instance=True),
    ]
    inboxes = (MemoryInbox(), Through(MemoryInbox()), mock.create_autospec(MemoryInbox, instance=True))
    for inbox in inboxes:
        consumer(
            CLIENT,
            PLAN,
            "billing",
            retry=RetryPolicy(backoff=lambda *_: SECOND),
            overdue=Overdue(SECOND),
            inbox=inbox,
            middleware=middlewares,
            hooks=[print, functools.partial(print), mock.Mock()],
        )


class AsyncCallable:
    async def __call__(self, message: DelayedMessage) -> None: ...


async def coroutine(message: DelayedMessage) -> None: ...


def plain(message: DelayedMessage) -> None: ...


@pytest.mark.parametrize(
    "handler",
    [
        *(coroutine, functools.partial(coroutine), AsyncCallable(), functools.partial(AsyncCallable())),
        *(mock.AsyncMock(), mock.create_autospec(AsyncCallable().__call__)),
        pytest.param(mock.create_autospec(coroutine), id="autospec"),
        functools.partial(mock.create_autospec(coroutine)),
    ],
)
def test_async_handlers_of_any_form_are_accepted(handler: Any) -> None:
    """`run` goes on to subscribe, which this client refuses."""
    with pytest.raises(AssertionError, match="a client that only sends"):
        ended(AsyncDelayedConsumer(CLIENT, PLAN, "billing").run(handler))


@pytest.mark.parametrize(
    "handler",
    [
        *(plain, functools.partial(plain), mock.MagicMock(spec=plain), mock.Mock(spec=plain)),
        pytest.param(mock.create_autospec(plain), id="autospec"),
    ],
)
def test_a_plain_handler_is_refused_by_the_asyncio_consumer(handler: Any) -> None:
    with pytest.raises(SubscribeRefused, match="an async def"):
        ended(AsyncDelayedConsumer(CLIENT, PLAN, "billing").run(handler))


@consumers
@pytest.mark.parametrize("wrong", [5_000, 5.0, "5s"])
def test_a_wait_without_a_unit_is_refused_with_both_ways_to_give_it(consumer: Any, wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"timedelta\(seconds=5\); a number of milliseconds is timeout_millis="):
        ended(consumer(CLIENT, PLAN, "billing").receive(wrong))


@consumers
@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("reciever_queue_size", "no option of a consumer; did you mean receiver_queue_size?"),
        ("max_hold", "no option of a consumer; did you mean max_held?"),
        ("xyz", "no option of a consumer; these pass through: auto_ack"),
    ],
)
def test_an_option_that_there_is_not_is_refused_at_once(consumer: Any, name: str, remedy: str) -> None:
    with pytest.raises(SubscribeRefused, match=f"^{name} = 7: {re.escape(remedy)}"):
        consumer(CLIENT, PLAN, "billing", **{name: 7})


@consumers
def test_a_misspelt_subscription_is_refused_with_the_near_one(consumer: Any) -> None:
    with pytest.raises(SubscribeRefused, match=r"did you mean billing\?"):
        consumer(CLIENT, PLAN, "biling")


@producers
@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("deliver_afer", "a send has no such option; did you mean deliver_after?"),
        ("delay", "a send has no such option; there are deliver_at, deliver_after, timer_id"),
    ],
)
def test_an_option_of_a_send_that_there_is_not_is_refused_by_name(producer: Any, name: str, remedy: str) -> None:
    refused(lambda: ended(producer(CLIENT, PLAN).send(b"x", **{name: SECOND})), name, SECOND, remedy)


@pytest.mark.parametrize(
    ("maker", "listed"),
    [
        (DelayedConsumer, source._OF_CONSUMERS),
        (AsyncDelayedConsumer, source._OF_CONSUMERS),
        (DelayedProducer, pool._OF_PRODUCERS),
        (AsyncDelayedProducer, pool._OF_PRODUCERS),
    ],
)
def test_every_argument_of_a_client_is_near_when_it_is_misspelt(maker: type, listed: tuple[str, ...]) -> None:
    parameters = inspect.signature(maker).parameters.values()
    assert {one.name for one in parameters if one.kind is one.KEYWORD_ONLY} == set(listed)


def ended(result: Any) -> None:
    """Run what an asyncio consumer returns."""
    if inspect.isawaitable(result):
        asyncio.run(_awaited(result))


async def _awaited(result: Any) -> None:
    await result
