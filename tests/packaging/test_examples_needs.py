"""An example says, where it says how it is run, what it imports beyond the package and its requirements."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.checkout import ROOT

EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BROUGHT = {"timewheel", "pulsar", *(re.split("[<>=]", one)[0] for one in PROJECT["dependencies"])}
"""By ``pip install .``."""
PLANNER = {"numpy", "pandas", "pyarrow", "pyspark"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_names_what_it_needs(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    head = ast.get_docstring(tree) or ""
    modules = {one.names[0].name for one in ast.walk(tree) if isinstance(one, ast.Import)}
    modules |= {one.module or "" for one in ast.walk(tree) if isinstance(one, ast.ImportFrom)}
    foreign = {module.partition(".")[0] for module in modules} - {*sys.stdlib_module_names} - BROUGHT

    others = foreign - PLANNER
    named = {word for line in re.findall("pip install (.*)", head) for word in line.split()}
    assert others <= named
    assert not foreign & PLANNER or "the extra ``planner``" in head
