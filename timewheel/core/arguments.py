"""Checks of the kind of an argument, at the call that gives it: later, it would fail on another thread."""

from __future__ import annotations

import inspect

from timewheel.core.errors import BadArgument
from timewheel.core.plan import Plan

__all__ = ["check_client_and_plan", "check_kind"]


def check_kind(name: str, value: object, kind: type | tuple[str, ...], wanted: str) -> None:
    """Refuse a value of another kind.

    Args:
        name: Name of the argument.
        value: The value as given.
        kind: The class; or the methods that the value has, which a class in place of its instance has not.
        wanted: The needed kind, and a line that makes it.

    Raises:
        BadArgument: The value is of another kind.
    """
    if isinstance(kind, type):
        fits = isinstance(value, kind)
    else:
        # Not by a runtime protocol: that does not find methods which a wrapper passes on by __getattr__.
        fits = not isinstance(value, type) and all(callable(getattr(value, method, None)) for method in kind)
    if not fits:
        raise BadArgument(name, value, wanted)


def check_client_and_plan(client: object, plan: object) -> None:
    """Refuse a URL in place of a client, a client of ``pulsar.asyncio``, and a path in place of a plan.

    Raises:
        BadArgument: One of the two is of another kind.
    """
    wanted = 'a blocking client is needed, such as pulsar.Client("pulsar://localhost:6650")'
    check_kind("client", client, ("create_producer", "subscribe"), wanted)
    if inspect.iscoroutinefunction(getattr(client, "create_producer", None)):
        raise BadArgument("client", client, wanted)
    check_kind("plan", plan, Plan, 'a Plan is needed, such as Plan.load("reminders.toml")')
