"""Checks of the kind of an argument, at the call that gives it: later, it would fail on another thread."""

from __future__ import annotations

import functools
import inspect
import types

from timewheel.core.errors import BadArgument
from timewheel.core.plan import Plan


def check_kind(name: str, value: object, kind: type | tuple[str, ...], wanted: str) -> None:
    """Refuse a value of another kind (`BadArgument`). ``kind`` is the class, or the methods that the value has, which a
    class in place of its instance has not; ``wanted`` names the needed kind, and a line that makes it.
    """
    if not (isinstance(value, kind) if isinstance(kind, type) else has_methods(value, kind)):
        raise BadArgument(name, value, wanted)


def has_methods(value: object, methods: tuple[str, ...]) -> bool:
    """True if an object has these methods, also if it passes them on to another by ``__getattr__``."""
    # Not by a runtime protocol, which does not find methods that are passed on.
    return not isinstance(value, type) and all(callable(getattr(value, method, None)) for method in methods)


def check_client_and_plan(client: object, plan: object) -> None:
    """Refuse a URL in place of a client, a client of ``pulsar.asyncio``, and a path in place of a plan."""
    wanted = 'a blocking client is needed, such as pulsar.Client("pulsar://localhost:6650")'
    check_kind("client", client, ("create_producer", "subscribe"), wanted)
    if is_async(getattr(client, "create_producer", None)):
        raise BadArgument("client", client, wanted)
    check_kind("plan", plan, Plan, 'a Plan is needed, such as Plan.load("reminders.toml")')


def is_async(call: object) -> bool:
    """True for an ``async def``, an object with an async ``__call__``, and a partial or an autospec of either."""
    while isinstance(call, functools.partial):
        call = call.func
    if type(call) is types.FunctionType:
        call = getattr(call, "mock", call)  # `unittest.mock.create_autospec` hides its mock behind a function
    # A mock with the spec of a function passes as a function, and its flags are a mock too, which counts as true.
    flags = getattr(getattr(call, "__code__", None), "co_flags", 0)
    is_marked = isinstance(flags, int) and inspect.iscoroutinefunction(call)
    return is_marked or inspect.iscoroutinefunction(getattr(type(call), "__call__", None))  # noqa: B004
