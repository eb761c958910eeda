"""No committed file names the machine or the registry that it was written with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.checkout import ROOT, files

# Put together, so that this file does not find itself.
_HOMES = re.compile(r"(?<![\w.~*}-])/(?:" + "|".join(("ro" + "ot", "wo" + "rk")) + r")/")
_CHECKOUT = re.compile(rf"(?<![\w.~*}}-]){re.escape(str(ROOT))}/")
_REGISTRY = re.compile(r"https?://[^\s\"']*/" + "sim" + r"ple\b|--(?:extra-)?index" + r"-url|(?:find)-links")


def _texts() -> list[tuple[Path, str]]:
    found = []
    for path in files():
        if (ROOT / path).is_symlink():
            continue
        data = (ROOT / path).read_bytes()
        if b"\0" not in data:  # an image has no paths to read
            found.append((path, data.decode(errors="replace")))
    return found


@pytest.mark.parametrize("pattern", [_HOMES, _REGISTRY, _CHECKOUT], ids=["home", "registry", "checkout"])
def test_no_file_names_the_machine(pattern: re.Pattern[str]) -> None:
    offenders = [
        f"{path}:{number}: {line.strip()}"
        for path, text in _texts()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]

    assert offenders == []


@pytest.mark.parametrize("line", ["cd /ro" + "ot/x", "lib: '/wo" + "rk/main'"])
def test_the_search_finds_a_home(line: str) -> None:
    assert _HOMES.search(line)


@pytest.mark.parametrize("line", ["docs/wo" + "rk/x", "https://example.org/wo" + "rk/", "$HOME/wo" + "rk/"])
def test_the_search_leaves_other_paths_alone(line: str) -> None:
    assert not _HOMES.search(line)


def test_the_search_finds_a_registry() -> None:
    assert _REGISTRY.search("pip install --index" + "-url https://mirror.example/sim" + "ple x")


def test_the_pins_are_exact_and_name_no_place() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]

    assert pins
    assert [line for line in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []
