"""The verdict as a table of texts, for terminal and page alike. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from timewheel.demo.settings import PLAIN, SchemeName
from timewheel.demo.verdict import Lateness, Measured, gap_band

LABELS: dict[SchemeName, str] = {
    "native": "native, raw client",
    "tiered-relay": "tiered, relay-held",
    "tiered-broker": "tiered, broker-held",
    "calendar": "calendar, day topics",
    "wheel": "wheel, 32 day slots",
    "shadow": "shadow, plain clients",
}

HEADER = (
    "scheme", "gaps: due", "law", "held", "index kB", "written", "hops", "redelivered", "twice", "lost", "early",
    "late p50/p99/max",
)  # fmt: skip
NOT_APPLICABLE = "-"
SECOND_MS = 1_000


def row_texts(row: Measured) -> tuple[str, ...]:
    return (
        LABELS[row.scheme],
        f"{row.due_peak:,}",
        _law(row),
        f"{row.holding_peak:,}" if row.hold else NOT_APPLICABLE,
        f"{row.index_bytes / 1_000:,.1f}",
        f"{row.written_multiple:.2f} x",
        f"{row.hops:.2f}",
        f"{row.redelivered_due:,}"
        + (f" + {row.redelivered_holding:,}" if row.hold and row.scheme not in PLAIN else ""),
        _twice(row),
        f"{row.totals.lost:,}",
        f"{row.early:,}",
        _late(row.late),
    )


def plain_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Align the columns: the first to the left, the others to the right."""
    cells = [header, *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    return [
        "  ".join(
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]


def meaning(rows: Sequence[Measured], limit: int, *, kept: bool) -> str:
    if not kept:
        return "timewheel did not do what it promises, by the lines above: a bug."
    parts = [
        f"native delays made {row.due_peak:,} gaps where the broker keeps {limit:,}, and an unload brought "
        f"{row.redelivered_due:,} handled messages again"
        for row in rows
        if row.scheme == "native"
    ]
    ours = [row for row in rows if row.scheme != "native"]
    if ours:
        parts.append(f"timewheel had at most {max(row.due_peak for row in ours):,} gaps and lost no timer")
    if any(row.scheme not in PLAIN for row in ours):
        parts[-1] += ", and its consumers handled none early or twice"
    parts += [
        f"{row.copied:,} timers were handled as original and as copy, since the shadow lagged by "
        f"{row.behind_ms / SECOND_MS:.1f} s"
        for row in ours
        if row.copied
    ]
    sentence = "; ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]}." if sentence.startswith("native") else f"{sentence}."


def where_we_lose(rows: Sequence[Measured]) -> list[str]:
    return [
        f"{LABELS[row.scheme]}: {row.written_multiple:.2f} x entries written, "
        f"{row.topics} topic{'s' if row.topics > 1 else ''}, {_runs(row)}"
        for row in rows
    ]


def _law(row: Measured) -> str:
    is_max = row.scheme == "shadow"
    slack = gap_band(row.law_peak, row.overdue, is_max=is_max).most - row.law_peak
    return f"{'<= ' if is_max else ''}{row.law_peak:,.0f} {'+' if is_max else '+-'} {slack:,.0f}"


def _twice(row: Measured) -> str:
    """Format the timers handled twice: a plain client handles every redelivery, and a shadow adds none."""
    if row.scheme == "native":
        return NOT_APPLICABLE
    return f"{row.copied if row.scheme in PLAIN else row.totals.duplicated:,}"


def _runs(row: Measured) -> str:
    if row.scheme == "shadow":
        behind = (
            f"; here it was {row.behind_ms / SECOND_MS:.1f} s behind, too much for such days" if row.is_behind else ""
        )
        return "a shadow" + behind
    return "a relay" if row.hold else "nothing to run"


def _late(late: Lateness) -> str:
    if late.max_ms >= 10 * SECOND_MS:
        values = [f"{value / SECOND_MS:.1f}" for value in (late.p50_ms, late.p99_ms, late.max_ms)]
        return " / ".join(values) + " s"
    return f"{late.p50_ms} / {late.p99_ms} / {late.max_ms} ms"
