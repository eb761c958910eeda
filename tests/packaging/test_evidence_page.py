"""The evidence: a run replaces the rows of its proofs and keeps the others; the page has the worst of each claim."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.checkout import ROOT
from tests.support.evidence import PAGE, Ledger, Row, lines, merged, page, rows, rows_file
from tests.support.evidence_claims import CLAIMS, Claim

CLAIM = Claim(
    "killed, .*", "chaos/test_x.py", "Killed", "{sum kills} kills: lost {lost}, at least {least kills}; {apart a/b}"
)


def row(proof: str, *, seed: int | None = 1, pulsar: str | None = "4.0.7", **figures: object) -> Row:
    figures = {"kills": 12_345, "lost": 0, **figures}
    return Row.of(proof, seed=seed, pulsar=pulsar, figures=figures, machine="AMD EPYC, 2 cores, load 1.0")


def written(*found: Row) -> str:
    """The lines of the page's lists, without the claims that have no play here."""
    lists = (line for line in page(found).splitlines() if line.startswith("- ["))
    return "\n".join(line for line in lists if "not played yet" not in line)


def test_a_proof_that_is_played_again_has_its_rows_replaced_and_the_others_stay() -> None:
    old = [row("b", seed=1), row("b", seed=2), row("a", pulsar=None), row("b", pulsar="4.2.4")]
    again = rows(lines(merged(old, [row("b", seed=3)])))

    assert [(one.proof, one.pulsar, one.seed) for one in again] == [
        ("a", None, 1),
        ("b", "4.0.7", 3),
        ("b", "4.2.4", 1),
    ]
    assert merged(again, []) == again


def test_a_row_reads_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CLAIMS, "Killed", (CLAIM,))
    file = tmp_path / "evidence.md"
    ledger = Ledger(file)
    ledger.add(row("a | b", seed=None, lost=0.012345, gaps="12 to 244"))
    ledger.add(row("c"))

    first, second = rows(rows_file(file).read_text(encoding="utf-8"))
    assert (first.proof, first.seed) == ("a | b", None)
    assert first.text == "kills 12,345, lost 0.0123, gaps 12 to 244"
    assert second == row("c")
    told = file.read_text(encoding="utf-8")
    assert told == page([first, second])


def test_a_run_without_a_page_writes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Ledger(None).add(row("a"))

    assert list(tmp_path.iterdir()) == []


def test_a_line_has_the_worst_of_all_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CLAIMS, "Killed", (CLAIM,))
    told = written(
        row("killed, x", seed=1, kills=20, lost=0, a=100, b=98),
        row("killed, x", seed=2, kills=30, lost=2, a="10 / 1,000", b="10 / 1,030"),
        row("killed, y", seed=2, kills=25, lost=1, pulsar="4.2.4"),
    )

    assert told.startswith(
        "- [Killed](../tests/chaos/test_x.py): 75 kills: lost 2, at least 20; 3.0% (3/2; 4.0.7/4.2.4; 20"
    )
    assert told.endswith("; EPYC)")


def test_the_page_of_the_docs_is_as_a_run_would_write_it() -> None:
    text = rows_file(PAGE).read_text(encoding="utf-8")
    found = rows(text)

    assert lines(found) == text
    assert page(found) == PAGE.read_text(encoding="utf-8"), "run: make docs-tables"
    assert len({(row.proof, row.pulsar, row.seed) for row in found}) == len(found)


def test_every_proof_has_a_claim_and_every_claim_names_its_test_and_figures_that_its_rows_have() -> None:
    found = rows(rows_file(PAGE).read_text(encoding="utf-8"))

    assert {
        row.proof for row in found if not any(claim.covers(row.proof) for each in CLAIMS.values() for claim in each)
    } == set()
    for claim in (claim for claims in CLAIMS.values() for claim in claims):
        assert (ROOT / "tests" / claim.test).is_file()
        own = {name for row in found if claim.covers(row.proof) for name in row.figures}
        assert not own or claim.figures <= own, claim.text
