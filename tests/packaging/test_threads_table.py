"""The table of threads in docs/internals.md names those that the code starts, and no others."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.checkout import ROOT, package_modules

ROLES = (
    "producers/",
    "consumers/",
    "timewheel/broker/admin/",
    "timewheel/dead_letters/",
    "timewheel/inspect/",
    "timewheel/provision/",
    "timewheel/relay/",
    "timewheel/shadow/",
    "timewheel/client/",
    "timewheel/core/",
    "timewheel/serving.py",
)
STARTERS = {"Thread": "name", "ThreadPoolExecutor": "thread_name_prefix"}


def thread_names(source: str) -> set[str]:
    """Names of the threads that a module starts, up to where they vary; "" for one without a name."""
    found = set()
    variables = {
        target.id: node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(ast.parse(source)):
        called = node.func if isinstance(node, ast.Call) else None
        starter = (
            called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        )
        if starter not in STARTERS:
            continue
        assert isinstance(node, ast.Call)
        given = {word.arg: word.value for word in node.keywords}
        value: ast.expr | None = given.get(STARTERS[starter])
        if starter == "ThreadPoolExecutor" and value is None and len(node.args) > 1:
            value = node.args[1]
        if isinstance(value, ast.Name):
            value = variables.get(value.id)
        found.add(_constant_head(value))
    return found


def _constant_head(value: ast.expr | None) -> str:
    first = value.values[0] if isinstance(value, ast.JoinedStr) else value
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


def in_table() -> list[str]:
    text = (ROOT / "docs" / "internals.md").read_text()
    table = text[text.index("## Threads") : text.index("### Order of stopping")]
    return re.findall(r"`(timewheel-[^`]*)`", "\n".join(row.split("|")[1] for row in table.splitlines() if "|" in row))


def modules() -> list[Path]:
    return [path for path in package_modules() if str(path).startswith(ROLES)]


def in_code() -> set[str]:
    return set().union(*(thread_names((ROOT / path).read_text()) for path in modules())) - {""}


def test_every_thread_of_a_role_has_a_name_and_stands_in_the_table() -> None:
    assert {name for name in in_code() if not any(row.startswith(name) for row in in_table())} == set()
    nameless = {str(path) for path in modules() if "" in thread_names((ROOT / path).read_text())}
    assert nameless <= {"consumers/consumer.py", "timewheel/serving.py"}, "a parameter, with a default in the table"


def test_every_name_in_the_table_is_one_of_the_code() -> None:
    code = "\n".join((ROOT / path).read_text() for path in modules())
    for row in in_table():
        head = re.split(r" TOPIC|INTERVAL|_?-?N$", row)[0]
        assert f'"{head}' in code or f'"{head.rstrip("-")}' in code, row


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('threading.Thread(target=f, name="timewheel-x")', {"timewheel-x"}),
        ('threading.Thread(target=f, name=f"timewheel-x {y}")', {"timewheel-x "}),
        ('ThreadPoolExecutor(3, "timewheel-x")', {"timewheel-x"}),
        ('ThreadPoolExecutor(3, thread_name_prefix="timewheel-x")', {"timewheel-x"}),
        ('name = "timewheel-x"\nthreading.Thread(target=f, name=name)', {"timewheel-x"}),
        ("threading.Thread(target=f)", {""}),
    ],
)
def test_the_search_finds_names(line: str, found: set[str]) -> None:
    assert thread_names(line) == found
