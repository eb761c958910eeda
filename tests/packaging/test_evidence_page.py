"""The page of evidence: a run replaces the rows of what it played, and keeps the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.checkout import ROOT
from tests.support.evidence import HEAD, Ledger, Row, merged, rows

PAGE = ROOT / "docs" / "evidence.md"


def row(proof: str, *, seed: int | None = 1, pulsar: str = "4.0.7", lost: object = 0) -> Row:
    return Row.of(proof, seed=seed, pulsar=pulsar, figures={"kills": 12_345, "lost": lost}, machine="2 cores")


def test_a_proof_that_is_played_again_has_its_rows_replaced_and_the_others_stay() -> None:
    page = merged("", [row("b", seed=1), row("b", seed=2), row("a"), row("b", pulsar="4.2.4")])
    again = merged(page, [row("b", seed=3)])

    assert [(one.proof, one.pulsar, one.seed) for one in rows(again)] == [
        ("a", "4.0.7", "1"),
        ("b", "4.0.7", "3"),
        ("b", "4.2.4", "1"),
    ]
    assert merged(again, []) == again


def test_a_row_reads_as_it_was_written(tmp_path: Path) -> None:
    page = tmp_path / "evidence.md"
    ledger = Ledger(page)
    ledger.add(row("a | b", seed=None, lost=0.01234))
    ledger.add(row("c"))

    (first, second) = rows(page.read_text(encoding="utf-8"))
    assert (first.proof, first.seed) == ("a / b", "")
    assert first.figures == "kills 12,345, lost 0.0123"
    assert second == row("c")


def test_a_run_without_a_page_writes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Ledger(None).add(row("a"))

    assert list(tmp_path.iterdir()) == []


def test_the_page_of_the_docs_is_as_a_run_would_write_it() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert page.startswith(HEAD)
    assert merged(page, []) == page
