"""Time and chance are handed in: a `Clock` owns every timed wait, a `Random` every draw, with few exceptions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import pytest

from tests.support.checkout import ROOT, package_modules

FORBIDDEN = (
    "asyncio.sleep",
    "asyncio.timeout",
    "asyncio.timeout_at",
    "asyncio.wait_for",
    "datetime.date.today",
    "datetime.datetime.now",
    "datetime.datetime.today",
    "datetime.datetime.utcnow",
    "faulthandler.dump_traceback_later",
    "numpy.random",
    "os.getrandom",
    "os.urandom",
    "random",
    "sched",
    "secrets",
    "select",
    "selectors",
    "signal.alarm",
    "signal.setitimer",
    "tenacity.nap",
    "tenacity.wait_random",
    "tenacity.wait_random_exponential",
    "threading.Timer",
    "time",
    "uuid.uuid1",
    "uuid.uuid4",
)
"""Full names; all names below them are also forbidden."""

ANY_ARGUMENT = frozenset({"call_at", "call_later", "exception", "poll", "result", "settimeout", "wait"})
"""Methods for which every argument is a timeout, or comes with a timeout: of conditions, events, processes, futures,
loops.
"""
BY_KEYWORD = frozenset({"acquire", "as_completed", "call", "communicate", "get", "map", "put", "run", "wait_for"})
"""Methods that wait with a timeout if it is passed by keyword."""
BY_POSITION = {"acquire": 2, "get": 2, "put": 3, "wait_for": 2}
"""Methods that wait with a timeout if this number of arguments is passed; of a get or a put the argument before is a
flag.
"""
HANDED_IN = frozenset({"clock", "_clock"})
"""Names of clocks, whose methods may be called."""


class Breach(NamedTuple):
    """A forbidden use.

    Attributes:
        line: Line of the text.
        what: The full name that is used, or the method with brackets: ``wait()``.
    """

    line: int
    what: str


def breaches(source: str) -> list[Breach]:
    """Find all forbidden uses in a module's text, by line.

    A text has no types: a method is recognized by its name and its arguments. Timeouts of the network or of the
    broker's client (``receive(timeout_millis=...)``) are allowed: those calls wait for an answer, not for time to pass.
    """
    tree = ast.parse(source)
    names = _imported(tree)
    return sorted({*_names(tree, names), *_calls(tree, names)})


def _imported(tree: ast.AST) -> dict[str, str]:
    """Return the full name of every imported name."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _full_name(node: ast.AST, names: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        head = _full_name(node.value, names)
        return head and f"{head}.{node.attr}"
    return None


def _is_forbidden(name: str) -> bool:
    return any(name == known or name.startswith(known + ".") for known in FORBIDDEN)


def _names(tree: ast.AST, names: dict[str, str]) -> Iterator[Breach]:
    heads = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and id(node) not in heads:
            name = _full_name(node, names)
            if name and _is_forbidden(name):
                yield Breach(node.lineno, name)


def _calls(tree: ast.AST, names: dict[str, str]) -> Iterator[Breach]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_timed(node, names):
            method = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
            yield Breach(node.lineno, f"{method}()")


def _is_timed(call: ast.Call, names: dict[str, str]) -> bool:
    has_timeout = any(keyword.arg == "timeout" for keyword in call.keywords)
    name = _full_name(call.func, names)
    if name in {"asyncio.wait", "concurrent.futures.wait", "concurrent.futures.as_completed"}:
        return has_timeout or (not name.startswith("asyncio") and len(call.args) > 1)
    if not isinstance(call.func, ast.Attribute) or (name and _is_forbidden(name)):
        return False  # a forbidden name is found by `_names`
    receiver, method = call.func.value, call.func.attr
    if _last_name(receiver) in HANDED_IN:
        return False
    count = len(call.args)
    match method:
        case "join":  # of a thread; str.join and a table's join take one argument of another kind
            return has_timeout or (count == 1 and not call.keywords and not _is_text_or_path(receiver, names))
        case _ if method in ANY_ARGUMENT:
            return bool(call.args or call.keywords)
        case "get" | "put":
            flag = call.args[BY_POSITION[method] - 2 :][:1]
            by_position = bool(flag) and isinstance(flag[0], ast.Constant) and isinstance(flag[0].value, bool)
            return has_timeout or (count >= BY_POSITION[method] and by_position)
        case _:
            return method in BY_KEYWORD and (has_timeout or count >= BY_POSITION.get(method, count + 1))


def _last_name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _is_text_or_path(node: ast.AST, names: dict[str, str]) -> bool:
    is_text = isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )
    return is_text or _full_name(node, names) == "os.path"


EVERYTHING = "everything"

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("timewheel/core/clock.py", EVERYTHING): "the clock itself",
    ("timewheel/core/rng.py", EVERYTHING): "the chance itself",
    ("timewheel/cli/", EVERYTHING): "a command is run by a human or a supervisor, who wait in real time",
    ("timewheel/demo/", EVERYTHING): "the demo plays a trace against a real broker, in real time",
    ("timewheel/testing/", EVERYTHING): "starts real processes and looks after them; their time is the machine's",
    ("spark_planner/progress.py", EVERYTHING): "looks now and then at what Spark does, in Spark's time",
    ("spark_planner/session.py", "join()"): "waits for the last words of a Java that could not start, in Java's time",
    ("consumers/aio.py", "asyncio.timeout"): "waits on an event loop are the loop's, by its own clock",
    ("producers/aio.py", "asyncio.wait_for"): "waits on an event loop are the loop's, by its own clock",
    ("producers/aio.py", "call_later()"): "waits on an event loop are the loop's, by its own clock",
    ("producers/base_producer.py", "os.urandom"): "timer ids must differ between processes, whatever their seeds are",
    (
        "timewheel/client/surface.py",
        "os.urandom",
    ): "names of producers that nobody can guess, whatever seeds are handed in",
    ("timewheel/relay/relay.py", "os.urandom"): "relay ids must differ between processes, whatever their seeds are",
    ("timewheel/relay/relay.py", "join()"): "its crews' own join, which is by the clock",
    ("timewheel/relay/driver/partition_workers.py", "join()"): "the ring keeper's own join, which is by the clock",
    ("timewheel/relay/driver/former_topic_drainer.py", "join()"): "its crews' own join, which is by the clock",
    ("timewheel/relay/driver/session.py", "wait()"): "the confirmations' own wait, which is by the clock",
    ("timewheel/relay/service.py", "faulthandler.dump_traceback_later"): "a watchdog trusts nothing of Python's",
    (
        "timewheel/broker/protocol/transport.py",
        "settimeout()",
    ): "a socket waits for an answer; the clock tells how long",
    ("timewheel/broker/admin/http.py", "tenacity.wait_random_exponential"): "tenacity draws how long; the clock waits",
    ("timewheel/provision/provisioning.py", "tenacity.wait_random"): "tenacity draws how long; the clock waits",
    ("timewheel/inspect/sample.py", "random.Random"): "the seed is handed in",
    ("timewheel/inspect/gaps/explain.py", "random.Random"): "the seed is handed in",
    ("timewheel/watch/sends.py", "random.Random"): "of a fixed seed: the same sample leads to the same plan",
    ("timewheel/watch/expected.py", "numpy.random.default_rng"): "as above",
    ("spark_planner/extrapolation.py", "numpy.random.Generator"): "handed in",
    ("spark_planner/extrapolation.py", "numpy.random.default_rng"): "of a fixed seed: the same plan each time",
    ("timewheel/broker/admin/redirects.py", "join()"): "of a URL",
}
"""What is used where all the same, by folder or file, and why."""


def test_nothing_in_the_package_reads_or_waits_past_the_clock_or_draws_past_the_chance() -> None:
    found = _found()

    assert sorted(found - _excepted(found)) == [], "take a Clock (timewheel.core.clock) or a Random (core.rng)"


def test_every_exception_is_needed() -> None:
    found = _found()
    unused = [exception for exception in EXCEPTIONS if not any(_covers(exception, *breach) for breach in found)]

    assert unused == []


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import time\ntime.sleep(1)", "time.sleep"),
        ("import time\ndef f(pause=time.sleep): ...", "time.sleep"),
        ("import time as clock\nclock.monotonic()", "time.monotonic"),
        ("from time import time_ns as now\nnow()", "time.time_ns"),
        ("def f():\n    from time import sleep\n    sleep(1)", "time.sleep"),
        ("import datetime as dt\ndt.datetime.now(dt.UTC)", "datetime.datetime.now"),
        ("from datetime import datetime\ndatetime.utcnow()", "datetime.datetime.utcnow"),
        ("import datetime\ndatetime.date.today()", "datetime.date.today"),
        ("import random\nrandom.random()", "random.random"),
        ("from random import Random\nRandom()", "random.Random"),
        ("import numpy as np\nnp.random.default_rng()", "numpy.random.default_rng"),
        ("import os\nos.urandom(8)", "os.urandom"),
        ("from secrets import token_hex\ntoken_hex()", "secrets.token_hex"),
        ("import uuid\nuuid.uuid4()", "uuid.uuid4"),
        ("import threading\nthreading.Timer(1, print)", "threading.Timer"),
        ("import asyncio\nasync def f(): await asyncio.sleep(1)", "asyncio.sleep"),
        ("import asyncio\nasync def f(x): await asyncio.wait_for(x, 1)", "asyncio.wait_for"),
        ("import asyncio\nasync def f(x): await asyncio.wait([x], timeout=1)", "wait()"),
        ("from concurrent.futures import wait\nwait([], 1)", "wait()"),
        ("def f(loop): loop.call_later(1, print)", "call_later()"),
        ("def f(self): self._changed.wait(1)", "wait()"),
        ("def f(self): self._changed.wait(timeout=self.left_s)", "wait()"),
        ("def f(ended): ended.wait(1)", "wait()"),
        ("def f(self): self._room.wait_for(lambda: True, 1)", "wait_for()"),
        ("def f(self): self._room.wait_for(lambda: True, timeout=1)", "wait_for()"),
        ("def f(queue): queue.get(timeout=1)", "get()"),
        ("def f(queue): queue.get(True, 1)", "get()"),
        ("def f(queue): queue.put(0, timeout=1)", "put()"),
        ("def f(queue): queue.put(0, True, 1)", "put()"),
        ("def f(thread): thread.join(1)", "join()"),
        ("def f(thread): thread.join(timeout=1)", "join()"),
        ("def f(lock): lock.acquire(timeout=1)", "acquire()"),
        ("def f(lock): lock.acquire(True, 1)", "acquire()"),
        ("def f(future): future.result(1)", "result()"),
    ],
)
def test_every_way_past_them_is_found(source: str, what: str) -> None:
    assert [breach.what for breach in breaches(source)] == [what]


@pytest.mark.parametrize(
    "source",
    [
        "def f(self): self._clock.wait(self._changed, 5)",
        "def f(clock, queue): clock.get(queue, 5)",
        "def f(self, thread): self._clock.join(thread, 5)",
        "def f(self): self._changed.wait()",
        "def f(self): self._room.wait_for(lambda: True)",
        "def f(thread, queue, future): thread.join(), queue.get(), future.result()",
        "def f(lock): lock.acquire(blocking=False)",
        "import asyncio\nasync def f(x): await asyncio.wait([x])",
        "def f(names): ', '.join(names)",
        "def f(table, key): table.get(key, True)",
        "def f(table, other, key): table.join(other, on=key, how='left')",
        "import datetime as dt\ndef f(at: dt.datetime): at - dt.timedelta(days=1)",
        "def f(chart):\n    for time, random in chart: print(time.x, random.y)",
    ],
)
def test_what_only_looks_alike_is_not(source: str) -> None:
    assert breaches(source) == []


@cache
def _found() -> frozenset[tuple[str, str]]:
    modules = ((str(path), (ROOT / path).read_text(encoding="utf-8")) for path in package_modules())
    return frozenset((path, breach.what) for path, source in modules for breach in breaches(source))


def _excepted(found: frozenset[tuple[str, str]]) -> set[tuple[str, str]]:
    return {breach for breach in found if any(_covers(exception, *breach) for exception in EXCEPTIONS)}


def _covers(exception: tuple[str, str], path: str, what: str) -> bool:
    where, excepted = exception
    return (path.startswith(where) if where.endswith("/") else path == where) and excepted in {EVERYTHING, what}
