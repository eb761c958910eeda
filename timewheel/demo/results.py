"""Turns the data of players and gauges into rows, JSON and files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.extras import ExtraMissing, need_extras
from timewheel.core.plan import Plan, Tiered
from timewheel.core.steps import far_ms
from timewheel.demo.foresight import Foresight
from timewheel.demo.sampling import Gauge, Sample
from timewheel.demo.settings import DAYS, SchemeName, Settings
from timewheel.demo.verdict import Lateness, Measured, Verdict, figures, lateness, outside
from timewheel.relay.driver.session import BROKER_HELD_ENTRIES
from timewheel.relay.relay import MAX_IN_FLIGHT
from timewheel.testing.evidence.journal import Done
from timewheel.testing.evidence.ledger import Entry, Totals, totals, write_ledger
from timewheel.testing.evidence.trace import predicted_gaps, predicted_pending

GRID_PER_DAY = 20  # moments at which the law is evaluated


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """The broker of a run, with values that a reader can check while it runs; ``config`` differs from its defaults."""

    version: str
    pid: int
    service_url: str
    admin_url: str
    config: Mapping[str, str]
    profile: BrokerProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A complete run; rows, samples and entries are by scheme, times UTC milliseconds.

    The ``checker_trial`` is by its relays' order of publishing and acknowledging, ``seconds`` from the command to the
    end of the play, ``unloads_ms`` the middle of the unload of each scheme's own topics. No ``foresight``: the planner
    was not asked.
    """

    settings: Settings
    broker: BrokerFacts
    rows: Sequence[Measured]
    checker_trial: Mapping[str, Totals]
    verdict: Verdict
    seconds: float
    started_ms: int
    unloaded_ms: int
    unloads_ms: Mapping[SchemeName, int]
    samples: Mapping[SchemeName, Sequence[Sample]]
    entries: Mapping[SchemeName, Sequence[Entry]]
    foresight: Foresight | None = None

    @property
    def due_per_ms(self) -> float:
        """Timers of a scheme that become due in a millisecond."""
        return self.settings.messages / self.settings.span_ms

    @property
    def outside(self) -> list[str]:
        """Sentences about the figures that a machine on time would not have."""
        return outside(self.rows, self.due_per_ms)

    def as_json(self) -> dict[str, Any]:
        settings = asdict(self.settings)
        return {
            "settings": {**settings, "out": str(self.settings.out), "limit": self.settings.limit, "days": DAYS},
            "broker": asdict(self.broker),
            "schemes": {row.scheme: {**asdict(row), "written_multiple": row.written_multiple} for row in self.rows},
            "checker_trial": {name: asdict(found) for name, found in self.checker_trial.items()},
            "kept": self.verdict.kept,
            "broken": list(self.verdict.broken),
            "nearness": [{**asdict(one), "is_near": one.is_near} for one in figures(self.rows, self.due_per_ms)],
            "seconds": round(self.seconds, 1),
            "started_ms": self.started_ms,
            "unloaded_ms": self.unloaded_ms,
            "unloads_ms": dict(self.unloads_ms),
            "planner": None if self.foresight is None else self.foresight.as_json(),
            "samples": {scheme: [asdict(sample) for sample in samples] for scheme, samples in self.samples.items()},
        }


def measure(settings: Settings, scheme: SchemeName, start_ms: int, gauge: Gauge, done: Done) -> Measured:
    sends = [(entry.attempted_ms, entry.due_ms) for entry in done.entries if entry.attempted_ms]
    end_ms = max((due_ms for _, due_ms in sends), default=start_ms + settings.scheme_ms(scheme))
    grid = range(start_ms, end_ms, max(1, settings.day_ms // GRID_PER_DAY))
    found = totals(done.entries)
    played = [sample for sample in gauge.samples if start_ms <= sample.at_ms <= end_ms]
    unacked_originals, left = _unacked_originals(gauge.plan, played, sends) if gauge.plan.intake else (0, 0)
    late = lateness(done.lateness_ms)
    return Measured(
        scheme=scheme,
        due_peak=max((sample.due_gaps for sample in gauge.samples), default=0),
        law_peak=max(predicted_gaps(gauge.plan, sends, grid, settings.day_ms), default=0.0),
        hold=("relay" if gauge.plan.holds_in_relay else "broker") if gauge.plan.needs_relay else None,
        holding_peak=max((sample.holding_gaps for sample in gauge.samples), default=0),
        in_flight_window=_in_flight_window(gauge.plan),
        index_bytes=max((sample.index_bytes for sample in gauge.samples), default=0),
        entries_written=gauge.entries_written,
        hops=done.hops / max(1, found.handled),
        redelivered_due=done.redelivered_due,
        redelivered_holding=done.redelivered_holding,
        totals=found,
        early=sum(entry.early for entry in done.entries),
        behind_ms=_behind_ms(unacked_originals, sends, late) if gauge.plan.intake else 0,
        allowed_ms=far_ms(gauge.plan) // 2 if gauge.plan.intake else 0,
        never_acked=left,
        copied=sum(max(entry.handled - 1 - entry.redelivered, 0) for entry in done.entries),
        late=late,
        overdue=max(unacked_originals, max_overdue(done.entries)),
        samples_per_day=len(played) * settings.day_ms / (end_ms - start_ms),
        topics=gauge.topic_count,
        send_errors=done.errors,
        events=done.events,
        cpu_s=done.cpu_s,
    )


def max_overdue(entries: Iterable[Entry]) -> int:
    """Return the most timers that were due and not handled yet at one moment, of those that were handled at all."""
    late = [entry for entry in entries if entry.handled_ms > entry.due_ms]
    # If a timer is handled in the moment in which another is due, the handled timer no longer counts.
    changes = sorted([(one.due_ms, 1) for one in late] + [(one.handled_ms, -1) for one in late])
    return max(accumulate(change for _, change in changes), default=0)


def _unacked_originals(plan: Plan, samples: Sequence[Sample], sends: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Count originals that a shadow had not acknowledged: at the worst sample of its burst, and at the best sample
    after it.

    After the burst, samples count until half of the way to the last due time: a working shadow has caught up by then,
    on a machine of any speed, and later few timers are left that it could have moved.
    """
    burst_ms = max((sent_ms for sent_ms, _ in sends), default=0)
    half_ms = (burst_ms + max((due_ms for _, due_ms in sends), default=0)) // 2
    wanted = predicted_pending(plan, sends, [sample.at_ms for sample in samples])
    excess = [
        (sample.at_ms, max(sample.due_backlog - pending, 0)) for sample, pending in zip(samples, wanted, strict=True)
    ]
    return (
        max((count for at_ms, count in excess if at_ms <= burst_ms), default=0),
        min((count for at_ms, count in excess if burst_ms < at_ms <= half_ms), default=0),
    )


def _behind_ms(unacked_originals: int, sends: Sequence[tuple[int, int]], late: Lateness) -> int:
    """Return the lag of a shadow, which no sample shows while its topic is unloaded: then timers are late."""
    sent_ms = [sent_ms for sent_ms, _ in sends]
    burst_ms = max(sent_ms, default=0) - min(sent_ms, default=0)
    return max(unacked_originals * burst_ms // max(len(sends), 1), late.max_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Paths of a run's results."""

    results: Path
    ledger: Path
    report: Path

    @classmethod
    def under(cls, folder: Path) -> Files:
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


def _in_flight_window(plan: Plan) -> int:
    """Return the relay's limit of unacknowledged messages over all tiers: of gaps in broker-held tiers too."""
    tiers = len(plan.scheme.tiers_ms) if isinstance(plan.scheme, Tiered) else 0
    return tiers * (MAX_IN_FLIGHT + BROKER_HELD_ENTRIES)
