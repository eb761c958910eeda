"""Public names change on purpose or not at all."""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import sys
import typing
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.support.checkout import ROOT, package_folders, package_modules
from tests.support.processes import ran
from tests.support.public_api import DOORS, public_names
from timewheel import errors, spark_planner


def test_the_public_names_are_the_committed_ones() -> None:
    committed = (ROOT / "tests/packaging/public_api.txt").read_text().splitlines()
    difference = "\n".join(difflib.unified_diff(committed, public_names(), "committed", "now", lineterm="", n=0))

    assert not difference, f"the public names changed:\n{difference}\nif that is meant: make api, CHANGELOG.md, commit"


# Raised by commands, which end with them as one line; no function that a user calls raises them.
OF_COMMANDS = {"BadSettings", "DemoFailed", "PlayerFailed"}


@pytest.mark.parametrize("package", sorted((*package_folders(), *DOORS)))
def test_every_public_name_exists_and_is_listed_once(package: str) -> None:
    module = importlib.import_module(package)
    names = list(getattr(module, "__all__", ()))

    assert sorted(names) == sorted(set(names))
    assert [name for name in names if not hasattr(module, name)] == []


def _bases_by_class() -> dict[str, set[str]]:
    """Every class of the package code, by name, with the names of its bases."""
    return {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for path in package_modules()
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.ClassDef)
    }


def test_the_door_of_errors_has_every_error() -> None:
    bases = _bases_by_class()
    found = {"TimewheelError"}
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more

    assert found >= OF_COMMANDS
    assert set(errors.__all__) == found - OF_COMMANDS
    assert all(issubclass(getattr(errors, name), errors.TimewheelError) for name in errors.__all__)


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))


def _code_of(path: Path) -> list[str]:
    """Of a page its Python blocks, of a program all of it."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return [text]
    return [token.content for token in MarkdownIt().parse(text) if token.type == "fence" and token.info == "python"]


def _imports(code: str) -> list[str]:
    """What it imports from us: `timewheel.core Plan`; of a plain import the module alone."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("timewheel"):
            found += [f"{node.module} {alias.name}" for alias in node.names]
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.startswith("timewheel")]
    return found


def test_docs_and_examples_import_from_doors_only() -> None:
    public = set(public_names())
    used = {(path.name, one) for path in (*PAGES, *EXAMPLES) for code in _code_of(path) for one in _imports(code)}

    assert {"README.md", "tutorial.md", "plan_on_cluster.py"} <= {name for name, _ in used}
    assert {(name, one) for name, one in used if one not in public} == set()


def test_what_the_planners_functions_take_and_give_has_a_door() -> None:
    public = {name.split()[1] for name in public_names()}
    functions = [one for name in spark_planner.__all__ if inspect.isfunction(one := getattr(spark_planner, name))]
    ours = {
        kind.__name__
        for function in functions
        for hint in typing.get_type_hints(function).values()
        for kind in (hint, *typing.get_args(hint))
        if inspect.isclass(kind) and kind.__module__.startswith("timewheel")
    }

    assert {"History", "Planned", "Prediction", "Plan", "BrokerProfile"} <= ours
    assert ours - public == set()


WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = None  # as if it were not installed
from timewheel import spark_planner
assert not {"numpy", "pandas", "pyarrow"} & sys.modules.keys(), "importing the planner costs nothing"
from timewheel.spark_planner import survey
"""


def test_without_its_extra_the_planner_says_how_to_install_it() -> None:
    done = ran([sys.executable, "-c", WITHOUT_SPARK], cwd=ROOT)

    assert done.stderr.splitlines()[-1] == (
        "timewheel.core.extras.ExtraMissing: the planner needs pyspark, which this line installs: "
        f"{sys.executable} -m pip install 'pyspark>=4.1'"
    )
