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


@pytest.mark.parametrize(
    ("pattern", "line", "is_found"),
    [
        *((_HOMES, line, True) for line in ("cd /ro" + "ot/x", "lib: '/wo" + "rk/main'")),
        *((_HOMES, f"{before}wo" + "rk/x", False) for before in ("docs/", "https://example.org/", "$HOME/")),
        (_REGISTRY, "pip install --index" + "-url https://mirror.example/sim" + "ple x", True),
    ],
)
def test_the_search_finds_those_and_leaves_others_alone(pattern: re.Pattern[str], line: str, *, is_found: bool) -> None:
    assert bool(pattern.search(line)) is is_found


def test_the_pins_are_exact_and_name_no_place() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]

    assert pins
    assert [line for line in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []
