"""The checkout: its root, its packages and its files."""

from __future__ import annotations

import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@cache
def project() -> dict[str, Any]:
    """Return the parsed pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def package_folders() -> dict[str, Path]:
    """Return every declared package and its real folder, relative to the root, by the build's own map."""
    setuptools = project()["tool"]["setuptools"]
    mapped: dict[str, str] = setuptools["package-dir"]
    folders = {}
    for package in setuptools["packages"]:
        parts = package.split(".")
        for cut in range(len(parts), -1, -1):
            head = ".".join(parts[:cut])
            if head in mapped:
                folders[package] = Path(mapped[head], *parts[cut:])
                break
        else:
            folders[package] = Path(*parts)
    return folders


def mapped_folders() -> dict[str, str]:
    """Return the packages at the top level: import name to folder."""
    return dict(project()["tool"]["setuptools"]["package-dir"])


@cache
def files() -> tuple[Path, ...]:
    """Return all files of the project, relative to the root: committed files, and new files that git does not ignore.

    Links are listed as themselves. A file that is deleted but not yet committed is omitted.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    paths = (Path(name) for name in listed.split("\0") if name)
    return tuple(path for path in paths if (ROOT / path).is_symlink() or (ROOT / path).is_file())


def package_modules() -> tuple[Path, ...]:
    """Return every Python file of the package code, by its real folder."""
    tops = {folder.parts[0] for folder in package_folders().values()}
    return tuple(path for path in files() if path.suffix == ".py" and path.parts[0] in tops)
