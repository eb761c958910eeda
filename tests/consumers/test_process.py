"""The process that something runs in: whether it was forked, and whether its threads are threads."""

from __future__ import annotations

import atexit
import os
import re
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tests.support.silent_broker import SilentClient
from timewheel.client.process import ProcessGuard, end_at_exit, has_ended
from timewheel.consumers import AsyncDelayedConsumer, DelayedConsumer
from timewheel.core import Plan
from timewheel.errors import ClientMisuse
from timewheel.producers import AsyncDelayedProducer, DelayedProducer
from timewheel.relay import Relay

PLAN = Plan(due_topic="persistent://acme/crm/reminders", subscriptions=("billing",))
MADE: dict[str, Callable[..., object]] = {
    "producer": DelayedProducer,
    "asyncio producer": AsyncDelayedProducer,
    "consumer": lambda client, plan: DelayedConsumer(client, plan, "billing"),
    "asyncio consumer": lambda client, plan: AsyncDelayedConsumer(client, plan, "billing"),
    "relay": Relay,
}


def test_a_guard_knows_whether_it_is_in_a_child() -> None:
    guard = ProcessGuard()
    child = os.fork()
    if child == 0:
        # A guard that is made in the child belongs to it.
        os._exit(10 * guard.is_child + ProcessGuard().is_child)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 10
    assert not guard.is_child
    guard.check("producer")


def test_a_forked_child_ends_nothing_that_its_parent_has_open() -> None:
    ProcessGuard()

    class Owner:
        """Something that is open."""

    owner = Owner()
    end_at_exit(owner, lambda _: os._exit(9))
    child = os.fork()
    if child == 0:
        atexit._run_exitfuncs()
        os._exit(3)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 3
    has_ended(owner)


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
@pytest.mark.parametrize(
    ("module", "function", "remedy"),
    [
        ("gevent.monkey", "is_module_patched", r"gevent.monkey.patch_all(thread=False, queue=False)"),
        ("eventlet.patcher", "is_monkey_patched", r"eventlet.monkey_patch(thread=False)"),
    ],
)
def test_where_threads_are_replaced_nothing_is_made_and_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, make: Callable[..., object], module: str, function: str, remedy: str
) -> None:
    """Played here by a module that answers as theirs does: neither is a dependency."""
    patched = {"threading", "thread"}
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{function: patched.__contains__}))
    with pytest.raises(ClientMisuse, match=re.escape(remedy)):
        make(SilentClient(closes=True), PLAN)
    patched.clear()  # loaded, and has replaced nothing: what the remedy leads to
    ProcessGuard()
