"""Packages whose names are loaded on first use."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from timewheel.core.extras import names_on_first_use

PACKAGE = "a_door_of_the_tests"


class Missing(ImportError):
    """The extra is not installed."""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / PACKAGE
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "heavy.py").write_text("loaded = object()")
    (folder / "extra.py").write_text("import a_library_that_nobody_has.part")
    (folder / "ours.py").write_text("import timewheel.a_module_that_is_not_there")
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__(PACKAGE)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


def test_a_name_is_loaded_once_and_stays() -> None:
    load = names_on_first_use(PACKAGE, {".heavy": "loaded"})
    assert f"{PACKAGE}.heavy" not in sys.modules
    found = load("loaded")
    assert sys.modules[PACKAGE].__dict__["loaded"] is found, "Python does not ask again"


def test_a_whole_name_leads_out_of_the_package() -> None:
    assert names_on_first_use(PACKAGE, {"timewheel.core.plan": "Plan"})("Plan").__name__ == "Plan"  # type: ignore[attr-defined]


def test_what_is_not_listed_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match=f"module '{PACKAGE}' has no attribute 'other'"):
        names_on_first_use(PACKAGE, {".heavy": "loaded"})("other")


def test_a_missing_library_is_told_by_its_top_level_name() -> None:
    asked: list[str] = []

    def missing(library: str) -> Exception | None:
        asked.append(library)
        return Missing()

    with pytest.raises(Missing) as raised:
        names_on_first_use(PACKAGE, {".extra": "x"}, missing)("x")
    assert asked == ["a_library_that_nobody_has"]
    assert isinstance(raised.value.__cause__, ModuleNotFoundError)


@pytest.mark.parametrize("module", [".extra", ".ours"])
def test_what_no_extra_would_mend_stays_pythons_own_error(module: str) -> None:
    with pytest.raises(ModuleNotFoundError):
        names_on_first_use(PACKAGE, {module: "x"})("x")
