"""The files of a run: JSON, ledger and report."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from timewheel.core.extras import ExtraMissing, need_extras
from timewheel.demo.results import Result
from timewheel.testing.evidence.ledger import write_ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Paths of a run's results."""

    results: Path
    ledger: Path
    report: Path

    @classmethod
    def under(cls, folder: Path) -> Files:
        """Build the paths in a folder."""
        return cls(results=folder / "results.json", ledger=folder / "ledger.csv", report=folder / "report.html")


def save(result: Result, files: Files) -> None:
    """Write JSON, ledger and, if its libraries are installed, the report; their folder must exist."""
    files.results.write_text(json.dumps(result.as_json(), indent=1), encoding="utf-8")
    write_ledger(files.ledger, result.entries.items())
    try:
        need_extras("a report", "report")
    except ExtraMissing:
        files.report.unlink(missing_ok=True)  # a report of an earlier run must not stay beside this run's ledger
        return
    from timewheel.demo.report import report_page  # noqa: PLC0415 - its drawing library is an extra

    files.report.write_text(report_page(result, files.ledger), encoding="utf-8")
