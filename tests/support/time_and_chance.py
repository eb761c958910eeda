"""Finds code that reads the time, waits for time to pass, or draws random values, past the injected dependencies."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Breach", "breaches"]

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
