"""The folders, the links, the build's map and the import tree say the same thing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkout import ROOT, files, mapped_folders, package_folders, package_modules, project, python_files

BARE_IMPORT = re.compile(rf"^\s*(?:>>> )?(?:import|from)\s+(?:{'|'.join(mapped_folders().values())})\b", re.MULTILINE)


def test_every_folder_with_code_is_a_declared_package() -> None:
    on_disk = {path.parent for path in package_modules()}

    assert on_disk == set(package_folders().values())


def test_every_declared_package_has_an_init_file() -> None:
    missing = [folder for folder in package_folders().values() if not (ROOT / folder / "__init__.py").is_file()]

    assert missing == []


def test_every_mapped_folder_stands_at_the_top_level_and_is_linked() -> None:
    expected = {"timewheel/" + folder: "../" + folder for folder in mapped_folders().values()}
    links = {str(path): str((ROOT / path).readlink()) for path in files() if (ROOT / path).is_symlink()}

    assert links == expected


def test_the_links_are_committed_as_links() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--stage", "timewheel"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    links = {line.split("\t")[1] for line in listed.splitlines() if line.startswith("120000 ")}

    assert links == {"timewheel/" + folder for folder in mapped_folders().values()}


def test_coverage_names_every_folder_of_code() -> None:
    tops = {folder.parts[0] for folder in package_folders().values()}

    assert set(project()["tool"]["coverage"]["run"]["source"]) == tops


def test_no_mapped_folder_is_imported_by_its_bare_name() -> None:
    texts = [path for path in files() if path.suffix in {".py", ".md", ".toml", ".ipynb"} and (ROOT / path).is_file()]
    offenders = [str(path) for path in texts if BARE_IMPORT.search((ROOT / path).read_text())]

    assert offenders == [], "a second module object beside timewheel.producers: import it as timewheel.<name>"


@pytest.mark.parametrize(
    "line", ["import producers", "from consumers.relay import machine", "    import spark_planner"]
)
def test_the_search_for_bare_imports_finds_one(line: str) -> None:
    names = "|".join(mapped_folders().values())

    assert re.search(rf"^\s*(?:>>> )?(?:import|from)\s+(?:{names})\b", f"x = 1\n{line}\n", re.MULTILINE)


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


def test_every_python_file_is_in_a_known_place() -> None:
    tops = {folder.parts[0] for folder in package_folders().values()}

    assert {path.parts[0] for path in python_files()} <= tops | {"tests", "examples", "benchmarks", "docs", "deploy"}


def test_every_folder_of_python_is_type_checked() -> None:
    tool = project()["tool"]
    linked = {str(folder) for folder in mapped_folders().values()}
    tops = {path.parts[0] for path in python_files()} - linked

    assert set(tool["mypy"]["files"]) == tops
    assert set(tool["pyright"]["include"]) == tops | {f"timewheel/{folder}" for folder in linked}
