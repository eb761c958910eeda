"""No committed file names the machine or the registry that it was written with, and each pin is exact."""

from __future__ import annotations

import re

from tests.support.checkout import ROOT, files

# Put together, so that this file does not find itself.
_HOMES = r"(?<![\w.~*}-])/(?:" + "|".join(("ro" + "ot", "wo" + "rk")) + r")/"
_REGISTRY = r"https?://[^\s\"']*/" + "sim" + r"ple\b|--(?:extra-)?index" + r"-url|(?:find)-links"
_MACHINE = re.compile(rf"{_HOMES}|(?<![\w.~*}}-]){re.escape(str(ROOT))}/|{_REGISTRY}")


def test_no_file_names_the_machine() -> None:
    texts = {path: (ROOT / path).read_bytes() for path in files() if not (ROOT / path).is_symlink()}
    found = [
        f"{path}:{number}: {line.strip()}"
        for path, data in texts.items()
        if b"\0" not in data  # an image has no paths to read
        for number, line in enumerate(data.decode(errors="replace").splitlines(), 1)
        if _MACHINE.search(line)
    ]
    assert found == []


def test_the_search_finds_a_path_and_a_registry_and_leaves_others_alone() -> None:
    told = ("cd /ro" + "ot/x", "lib: '/wo" + "rk/main'", "pip install --index" + "-url https://mirror.example/x")
    assert all(_MACHINE.search(line) for line in told)
    assert not any(_MACHINE.search(f"{before}wo" + "rk/x") for before in ("docs/", "https://example.org/", "$HOME/"))


def test_the_pins_are_exact() -> None:
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert pins
    assert [line for line in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []
