"""Builds the project as for a release, and installs it as a user does."""

from __future__ import annotations

import shutil
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tests.support.checkout import ROOT, files
from tests.support.processes import ran


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """An sdist, and two wheels that must be equal: from the checkout and from the sdist."""

    sdist: Path
    wheel: Path
    wheel_of_sdist: Path


def wheel_files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def copy_of_checkout(target: Path, *, links: bool) -> Path:
    """Copy the project's files, without leftovers of former builds.

    Args:
        links: False writes each link as a text file with its target, as git does if the file system has no links.
    """
    for path in files():
        source, copy = ROOT / path, target / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not source.is_symlink():
            shutil.copy2(source, copy)
        elif links:
            copy.symlink_to(source.readlink())
        else:
            copy.write_text(str(source.readlink()))
    return target


def build_wheel(source: Path, out: Path) -> Path:
    _build("--wheel", source, out)
    return _only(out, "*.whl")


def build(work: Path) -> Distribution:
    """Build all files inside `work`; the checkout itself is not written to."""
    source = copy_of_checkout(work / "checkout", links=True)
    _build("--sdist", source, work / "sdist")
    sdist = _only(work / "sdist", "*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(work / "unpacked", filter="data")
    return Distribution(
        sdist=sdist,
        wheel=build_wheel(source, work / "wheel"),
        wheel_of_sdist=build_wheel(_only(work / "unpacked", "*"), work / "wheel_of_sdist"),
    )


def install(wheel: Path, environment: Path, *, extras: str = "", interpreter: str = sys.executable) -> Path:
    """Make a new environment with only the wheel and its pinned dependencies.

    Args:
        extras: In brackets, as pip takes them.

    Returns:
        The environment's Python.
    """
    python = environment / "bin" / "python"
    # Use our own pip: to install pip there takes as long as all other steps.
    _run([interpreter, "-m", "venv", "--without-pip", str(environment)])
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    _run([*pip, "install", "--quiet", "--no-compile", "-c", str(ROOT / "constraints.txt"), f"{wheel}{extras}"])
    return python


def interpreters() -> dict[str, str]:
    """Return the other Pythons of this machine that can run timewheel, by their minor version: on PATH or of pyenv."""
    found = {}
    for minor in range(11, 20):
        name = f"python3.{minor}"
        paths = [shutil.which(name), *Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/{name}")]
        works = [str(path) for path in paths if path and ran([path, "-c", ""]).returncode == 0]
        if works and minor != sys.version_info.minor:
            found[f"3.{minor}"] = works[0]
    return found


def _build(kind: str, source: Path, out: Path) -> None:
    # Without isolation: the pinned setuptools of this environment, and no network.
    _run([sys.executable, "-m", "build", "--no-isolation", kind, "--outdir", str(out), str(source)])


def _only(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


def _run(command: list[str]) -> None:
    done = ran(command, timeout=240)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
