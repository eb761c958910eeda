"""Public names change on purpose or not at all."""

from __future__ import annotations

import ast
import difflib
import importlib

import pytest

from tests.support.checkout import ROOT, package_folders, package_modules
from tests.support.public_api import DOORS, public_names
from timewheel import errors


def test_the_public_names_are_the_committed_ones() -> None:
    committed = (ROOT / "tests/packaging/public_api.txt").read_text().splitlines()
    difference = "\n".join(difflib.unified_diff(committed, public_names(), "committed", "now", lineterm="", n=0))

    assert not difference, f"the public names changed:\n{difference}\nif that is meant: make api, CHANGELOG.md, commit"


# Raised by commands, which end with them as one line; no function that a user calls raises them.
OF_COMMANDS = {
    "BadSettings",
    "DemoFailed",
    "NothingToSample",
    "ParquetMissing",
    "PlannerMissing",
    "PlayerFailed",
    "ReportMissing",
}


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
