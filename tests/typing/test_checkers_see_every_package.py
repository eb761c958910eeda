"""The checkers are configured such that a fault in any package is found: each is seeded and must be reported."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkout import ROOT, mapped_folders, package_folders, project

BIN = Path(sys.executable).parent


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The project's configuration, folders and links with one seeded module in each package and nothing else."""
    shutil.copy2(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / ".venv").symlink_to(BIN.parent)
    for folder in package_folders().values():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "__init__.py").touch()
    for top in mapped_folders().values():
        (tmp_path / "timewheel" / top).symlink_to((ROOT / "timewheel" / top).readlink())
    for folder in set(project()["tool"]["mypy"]["files"]) - {"timewheel"}:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"nothing_in_{folder}.py").touch()
    return tmp_path


def _seed(tree: Path, line: str) -> None:
    for folder in package_folders().values():
        (tree / folder / "seeded.py").write_text(line + "\n")


def _run(tree: Path, *command: str) -> str:
    done = subprocess.run(
        [BIN / command[0], *command[1:]], cwd=tree, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def _linked_names() -> set[str]:
    """Every package as a path through the links."""
    return {package.replace(".", "/") + "/seeded.py" for package in package_folders()}


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_wrong_type_is_found_in_every_package(tree: Path, checker: str) -> None:
    _seed(tree, 'value: int = "text"')
    out = _run(tree, checker)

    assert {name for name in _linked_names() if re.search(rf"{name}:\d", out)} == _linked_names()


@pytest.mark.parametrize(
    "contract", project()["tool"]["importlinter"]["contracts"], ids=lambda contract: str(contract["id"])
)
def test_each_import_rule_finds_each_forbidden_import(tree: Path, contract: dict[str, list[str]]) -> None:
    (source,) = contract["source_modules"]
    forbidden = contract["forbidden_modules"]
    seeded = tree / package_folders()[source] / "seeded.py"
    seeded.write_text("".join(f"import {name}\n" for name in forbidden))
    out = _run(tree, "lint-imports", "--contract", str(contract["id"]), "--no-cache")

    assert {name for name in forbidden if f"{source}.seeded -> {name} " in out} == set(forbidden)
