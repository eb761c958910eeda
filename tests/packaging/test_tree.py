"""The folders, the links, the build's map and the import tree say the same thing."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from tests.support.checkout import ROOT, package_modules, project


def _libraries(path: Path) -> set[str]:
    """Top-level names outside of the standard library and of this project that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names - sys.stdlib_module_names - {"timewheel", "__future__"}


def test_the_import_rules_know_every_library_in_use() -> None:
    in_use = set().union(*(_libraries(path) for path in package_modules()))
    contracts = {contract["id"]: contract for contract in project()["tool"]["importlinter"]["contracts"]}

    assert in_use <= set(contracts["core"]["forbidden_modules"]), (
        "name it in the contracts of pyproject.toml that must not import it"
    )
