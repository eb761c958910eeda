"""Time and chance are handed in: a `Clock` owns every timed wait, a `Random` every draw, with few exceptions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.support.checkout import ROOT, package_modules

MANY = 1_000
FORBIDDEN = tuple(
    f"{module}.{name}".rstrip(".")
    for module, names in {
        "asyncio": ("sleep", "timeout", "timeout_at", "wait_for"),
        "datetime": ("date.today", "datetime.now", "datetime.today", "datetime.utcnow"),
        "faulthandler": ("dump_traceback_later",),
        "os": ("getrandom", "urandom"),
        "signal": ("alarm", "setitimer"),
        "tenacity": ("nap", "wait_random", "wait_random_exponential"),
        "threading": ("Timer",),
        "uuid": ("uuid1", "uuid4"),
        **dict.fromkeys(("numpy.random", "random", "sched", "secrets", "select", "selectors", "time"), ("",)),
    }.items()
    for name in names
)
"""Full names; all names below them are also forbidden."""

TIMED = {
    **dict.fromkeys(("call_at", "call_later", "exception", "join", "poll", "result", "settimeout", "wait"), 1),
    **dict.fromkeys(("acquire", "get", "wait_for"), 2),
    "put": 3,
    **dict.fromkeys(("as_completed", "call", "communicate", "map", "run"), MANY),
}
"""Methods of conditions, events, processes, futures and loops that wait, if a timeout is passed: by the keyword, or by
position if there are so many arguments.
"""
HANDED_IN = frozenset({"clock", "_clock"})  # names of clocks, whose methods may be called


class Breach(NamedTuple):
    """A forbidden use."""

    line: int
    what: str  # the full name that is used, or the method with brackets: ``wait()``


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
    if method not in TIMED or getattr(receiver, "attr", getattr(receiver, "id", None)) in HANDED_IN:
        return False
    by_position = len(call.args) >= TIMED[method]
    has_timeout |= TIMED[method] == 1 and method != "join" and bool(call.keywords)  # by whatever name
    match method:
        case "join":  # of a thread; that of a text, a path or a table takes one argument of another kind
            is_text = isinstance(receiver, ast.JoinedStr | ast.Constant) or _full_name(receiver, names) == "os.path"
            by_position = len(call.args) == 1 and not call.keywords and not is_text
        case "get" | "put":  # behind a flag; that of a table has a default
            flag = call.args[TIMED[method] - 2] if by_position else None
            by_position = isinstance(flag, ast.Constant) and isinstance(flag.value, bool)
    return has_timeout or by_position


EVERYTHING = "everything"

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("timewheel/core/clock.py", EVERYTHING): "the clock itself",
    ("timewheel/core/rng.py", EVERYTHING): "the chance itself",
    ("timewheel/cli/", EVERYTHING): "a command is run by a human or a supervisor, who wait in real time",
    ("timewheel/demo/", EVERYTHING): "the demo plays a trace against a real broker, in real time",
    ("timewheel/testing/", EVERYTHING): "starts real processes and looks after them; their time is the machine's",
    ("spark_planner/session.py", EVERYTHING): "looks at Spark, and waits for a Java that did not start, in their time",
    ("consumers/aio.py", "asyncio.timeout"): "waits on an event loop are the loop's, by its own clock",
    ("producers/aio.py", "asyncio.wait_for"): "as above",
    ("producers/aio.py", "call_later()"): "as above",
    ("producers/base_producer.py", "os.urandom"): "timer ids must differ between processes, whatever their seeds are",
    ("timewheel/client/surface.py", "os.urandom"): "names of producers that nobody can guess, whatever the seeds are",
    ("timewheel/relay/relay.py", "os.urandom"): "relay ids must differ between processes, whatever their seeds are",
    ("timewheel/relay/relay.py", "join()"): "its crews' own join, which is by the clock",
    ("timewheel/relay/driver/partition.py", "join()"): "the ring keeper's own join, which is by the clock",
    ("timewheel/relay/driver/former_topic_drainer.py", "join()"): "its crews' own join, which is by the clock",
    ("timewheel/relay/driver/session.py", "wait()"): "the confirmations' own wait, which is by the clock",
    ("timewheel/relay/service.py", "faulthandler.dump_traceback_later"): "a watchdog trusts nothing of Python's",
    ("timewheel/broker/protocol/session.py", "settimeout()"): "a socket waits for an answer; the clock tells how long",
    ("timewheel/broker/admin/http.py", "tenacity.wait_random_exponential"): "tenacity draws how long; the clock waits",
    ("timewheel/broker/admin/http.py", "join()"): "of a URL",
    ("timewheel/provision/provisioning.py", "tenacity.wait_random"): "tenacity draws how long; the clock waits",
    ("timewheel/inspect/sample.py", "random.Random"): "the seed is handed in",
    ("timewheel/inspect/gaps/explain.py", "random.Random"): "the seed is handed in",
    ("timewheel/watch/sends.py", "random.Random"): "of a fixed seed: the same sample leads to the same plan",
    ("timewheel/watch/checking.py", "numpy.random.default_rng"): "as above",
    ("spark_planner/confidence.py", "numpy.random.Generator"): "handed in",
    ("spark_planner/confidence.py", "numpy.random.default_rng"): "of a fixed seed: the same band each time",
    ("spark_planner/extrapolation.py", "numpy.random.Generator"): "handed in",
    ("spark_planner/extrapolation.py", "numpy.random.default_rng"): "of a fixed seed: the same plan each time",
}
"""What is used where all the same, by folder or file, and why."""


def test_nothing_in_the_package_reads_or_waits_past_the_clock_or_draws_past_the_chance() -> None:
    found = {(str(path), one.what) for path in package_modules() for one in breaches((ROOT / path).read_text("utf-8"))}
    excepted = {exception: {breach for breach in found if _covers(exception, *breach)} for exception in EXCEPTIONS}

    unexcepted = found.difference(*excepted.values())
    assert sorted(unexcepted) == [], "take a Clock (timewheel.core.clock) or a Random (core.rng)"
    assert [exception for exception, own in excepted.items() if not own] == [], "every exception is needed"


def _covers(exception: tuple[str, str], path: str, what: str) -> bool:
    where, excepted = exception
    return (path.startswith(where) if where.endswith("/") else path == where) and excepted in {EVERYTHING, what}


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import time\ntime.sleep(1)", "time.sleep"),
        ("import time\ndef f(pause=time.sleep): ...", "time.sleep"),
        ("import time as clock\nclock.monotonic()", "time.monotonic"),
        ("def f():\n    from time import sleep\n    sleep(1)", "time.sleep"),
        ("import datetime as dt\ndt.datetime.now(dt.UTC)", "datetime.datetime.now"),
        ("from random import Random\nRandom()", "random.Random"),
        ("import numpy as np\nnp.random.default_rng()", "numpy.random.default_rng"),
        ("import os\nos.urandom(8)", "os.urandom"),
        ("import asyncio\nasync def f(x): await asyncio.wait_for(x, 1)", "asyncio.wait_for"),
        ("import asyncio\nasync def f(x): await asyncio.wait([x], timeout=1)", "wait()"),
        ("from concurrent.futures import wait\nwait([], 1)", "wait()"),
        ("def f(loop): loop.call_later(1, print)", "call_later()"),
        ("def f(self): self._changed.wait(timeout=self.left_s)", "wait()"),
        ("def f(ended): ended.wait(1)", "wait()"),
        ("def f(consumer): consumer.poll(timeout_ms=1)", "poll()"),
        ("def f(self): self._room.wait_for(lambda: True, 1)", "wait_for()"),
        ("def f(queue): queue.get(timeout=1)", "get()"),
        ("def f(queue): queue.get(True, 1)", "get()"),
        ("def f(queue): queue.put(0, True, 1)", "put()"),
        ("def f(thread): thread.join(1)", "join()"),
        ("def f(thread): thread.join(timeout=1)", "join()"),
        ("def f(lock): lock.acquire(True, 1)", "acquire()"),
    ],
)
def test_every_way_past_them_is_found(source: str, what: str) -> None:
    assert [breach.what for breach in breaches(source)] == [what]


@pytest.mark.parametrize(
    "source",
    [
        "def f(self): self._clock.wait(self._changed, 5)",
        "def f(clock, queue): clock.get(queue, 5)",
        "def f(self): self._changed.wait()",
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
