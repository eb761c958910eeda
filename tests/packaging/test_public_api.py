"""Public names change on purpose or not at all."""

from __future__ import annotations

import difflib
import importlib

import pytest

from tests.support.checkout import ROOT, package_folders
from tests.support.public_api import public_names


def test_the_public_names_are_the_committed_ones() -> None:
    committed = (ROOT / "tests/packaging/public_api.txt").read_text().splitlines()
    difference = "\n".join(difflib.unified_diff(committed, public_names(), "committed", "now", lineterm="", n=0))

    assert not difference, f"the public names changed:\n{difference}\nif that is meant: make api, CHANGELOG.md, commit"


@pytest.mark.parametrize("package", sorted(package_folders()))
def test_every_public_name_exists_and_is_listed_once(package: str) -> None:
    module = importlib.import_module(package)
    names = list(getattr(module, "__all__", ()))

    assert sorted(names) == sorted(set(names))
    assert [name for name in names if not hasattr(module, name)] == []
