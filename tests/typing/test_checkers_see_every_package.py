"""The checkers are configured such that a fault in any package is found: each is seeded and must be reported."""

from __future__ import annotations

import re
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.checkout import ROOT, mapped_folders, package_folders, project
from tests.support.processes import ran
from tests.support.public_api import DOORS

BIN = Path(sys.executable).parent


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The project's configuration, folders and links with one seeded module in each package and nothing else."""
    shutil.copy2(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / ".venv").symlink_to(BIN.parent)
    for folder in package_folders().values():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "__init__.py").touch()
    for door in DOORS:
        (tmp_path / door.replace(".", "/")).with_suffix(".py").touch()
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
    done = ran([BIN / command[0], *command[1:]], cwd=tree, timeout=120)
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


def _contracts(kind: str) -> list[dict[str, list[str]]]:
    return [one for one in project()["tool"]["importlinter"]["contracts"] if one["type"] == kind]


@pytest.mark.parametrize("contract", _contracts("forbidden"), ids=lambda contract: str(contract["id"]))
def test_each_import_rule_finds_each_forbidden_import(tree: Path, contract: dict[str, list[str]]) -> None:
    sources, forbidden = contract["source_modules"], contract["forbidden_modules"]
    packages = package_folders()
    for name in forbidden:  # a module of one of our packages, which the empty tree lacks
        package, _, module = name.rpartition(".")
        if package != "timewheel" and package in packages and name not in packages:
            (tree / packages[package] / f"{module}.py").touch()
    expected = set()
    for source in sources:
        seeded = tree / "timewheel" / f"{source.rpartition('.')[2]}.py"
        if source not in DOORS:
            seeded = tree / packages[source] / "seeded.py"
        seeded.write_text("".join(f"import {name}\n" for name in forbidden))
        expected |= {f"{source if source in DOORS else f'{source}.seeded'} -> {name} " for name in forbidden}
    out = _run(tree, "lint-imports", "--contract", str(contract["id"]), "--no-cache")

    told = " ".join(out.split())  # long names are broken over two lines

    assert {line for line in expected if line in told} == expected


@pytest.mark.parametrize("contract", _contracts("layers"), ids=lambda contract: str(contract["id"]))
def test_each_layer_that_knows_the_one_above_is_found(tree: Path, contract: dict[str, list[str]]) -> None:
    (container,) = contract["containers"]
    folder = tree / package_folders()[container]
    layers = [layer.split(" | ") for layer in contract["layers"]]
    for name in (name for layer in layers for name in layer if not (folder / name).is_dir()):
        (folder / f"{name}.py").touch()
    upward: set[str] = set()
    for above, below in pairwise(layers):
        for name in below:
            is_package = (folder / name).is_dir()
            seeded = folder / name / "seeded.py" if is_package else folder / f"{name}.py"
            seeded.write_text(f"import {container}.{above[0]}\n")
            importer = f"{container}.{name}" + ".seeded" * is_package
            upward.add(f"{importer} -> {container}.{above[0]} ")
    out = _run(tree, "lint-imports", "--contract", str(contract["id"]), "--no-cache")

    told = " ".join(out.split())  # as above

    assert {line for line in upward if line in told} == upward


def test_every_other_contract_names_all_parts_of_its_folder() -> None:
    """With ``exhaustive``, `lint-imports` refuses a part that no layer has."""
    contracts = project()["tool"]["importlinter"]["contracts"]
    layers = [one for one in contracts if one["type"] == "layers"]
    assert len(contracts) == len(_contracts("forbidden")) + len(layers)
    assert all(one["exhaustive"] for one in layers)
