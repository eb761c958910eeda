"""What commands write for people goes through `timewheel.cli.terminal`, which escapes what others chose."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support.checkout import ROOT

FOLDERS = ("timewheel", "producers", "consumers", "spark_planner")
HOME = "timewheel/cli/terminal.py"
ALLOWED = {
    ("timewheel/cli/app.py", "print(visible_lines(traceback.format_exc()), file=sys.stderr)"),
    ("timewheel/cli/app.py", "print(f'{usage}{mark}{visible_lines(message)}', file=sys.stderr)"),
    ("timewheel/cli/app.py", "print(f'timewheel {__version__}')"),
    ("timewheel/cli/plan_check.py", "console.print()"),
    ("timewheel/demo/live.py", "self._console.print(visible(line), highlight=False, markup=False, soft_wrap=True)"),
}


def printing(text: str) -> Iterator[ast.Call]:
    """Calls that write to a terminal, but for JSON, which escapes all but ASCII."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            is_json = len(node.args) == 1 and ast.unparse(node.args[0]).startswith("json.dumps(")
            is_escaped = is_json and "ensure_ascii" not in ast.unparse(node)
            if name.rpartition(".")[2] in {"print", "echo", "secho"} and not is_escaped:
                yield node


def test_every_place_that_prints_is_known() -> None:
    found = {
        (str(path.relative_to(ROOT)), ast.unparse(node))
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.is_relative_to(ROOT / folder)
        for node in printing(path.read_text(encoding="utf-8"))
        if str(path.relative_to(ROOT)) != HOME
    }
    assert found == ALLOWED


@pytest.mark.parametrize(
    "text", ["print(name)", "console.print(name)", "typer.echo(name)", "print(json.dumps(name, ensure_ascii=False))"]
)
def test_a_place_that_prints_is_found(text: str) -> None:
    assert [ast.unparse(node) for node in printing(text)] == [text]


def test_json_may_be_printed() -> None:
    assert not [*printing("print(json.dumps(facts), flush=True)")]
