"""Costs of native delays and of the recommended plan, as tables: in the broker's terms, and in a user's money."""

from __future__ import annotations

from collections.abc import Callable

from timewheel._report.page import Table
from timewheel.core.durations import DAY_MS, MINUTE_MS
from timewheel.spark_planner.job import Planned
from timewheel.spark_planner.pricing.evaluation import Evaluation
from timewheel.spark_planner.results.money import Prices, monthly
from timewheel.spark_planner.results.tables import at_volume

__all__ = ["cost_table", "needs_table"]

MIB_BYTES = 1 << 20


def cost_table(planned: Planned, prices: Prices | None = None) -> Table:
    """Build the table of entries, bytes, disk and topics; with prices also a month's money."""
    cost = planned.constraints.cost_of
    rows: list[tuple[str, Callable[[Evaluation], str]]] = [
        ("entries written a second", lambda one: f"{cost(one).written:,.2f}"),
        ("entries written for each timer", lambda one: f"{one.writes_per_timer:.2f}"),
        ("written a day, all copies, MiB", lambda one: f"{_a_day(one, one.written_bytes) / MIB_BYTES:,.1f}"),
        ("on disk at the peak, all copies, MiB", lambda one: f"{one.storage_bytes / MIB_BYTES:,.1f}"),
        ("partition topics", lambda one: f"{one.partition_topics}"),
        ("relay to run", lambda one: "yes" if one.needs_relay else "no"),
        ("all in all, entries a second (topics, relay)", lambda one: f"{cost(one).writes_per_second:,.1f}"),
    ]
    found = _table("Estimated costs" + at_volume(planned.growth), planned, rows)
    return Table(caption=found.caption, header=found.header, rows=[*found.rows, *_money_rows(planned, prices)])


def needs_table(planned: Planned) -> Table:
    """Build the table of further needs of brokers and relays."""
    rows: list[tuple[str, Callable[[Evaluation], str]]] = [
        ("written in all, all copies, MiB", lambda one: f"{one.written_bytes / MIB_BYTES:,.1f}"),
        ("of that by hops, MiB", lambda one: f"{one.republished_bytes / MIB_BYTES:,.1f}"),
        ("ledgers at the peak", lambda one: f"{one.ledgers:,.0f}"),
        ("persisted cursor of a partition, kB", lambda one: f"{one.cursor_bytes / 1_000:,.1f}"),
        ("delayed index in broker memory, at least, kB", lambda one: f"{one.delayed_index_bytes / 1_000:,.1f}"),
        ("waiting in the due topic's fullest partition", lambda one: f"{one.peak_pending_per_partition:,.0f}"),
        ("silence of it after an unload, s", lambda one: f"{one.silence_seconds:.1f}"),
        ("again after the worst unload, messages", lambda one: f"{one.redelivered.worst_entries:,.0f}"),
        ("relay at the peak, hops/s", lambda one: f"{one.relay_hops_per_second:,.1f}"),
        ("topics (partitions in all)", lambda one: f"{one.topics} ({one.partition_topics})"),
        ("consumers to run", lambda one: f"{one.consumers}"),
    ]
    return _table("Estimated needs" + at_volume(planned.growth), planned, rows)


def _table(caption: str, planned: Planned, rows: list[tuple[str, Callable[[Evaluation], str]]]) -> Table:
    pair = (planned.choice.native, planned.choice.recommended.evaluation)
    return Table(
        caption=caption,
        header=("", "today", "recommended"),
        rows=[(name, *(said(one) for one in pair)) for name, said in rows],
    )


def _money_rows(planned: Planned, prices: Prices | None) -> list[tuple[str, ...]]:
    bills = [monthly(one, prices) for one in (planned.choice.native, planned.choice.recommended.evaluation)]
    found = [bill for bill in bills if bill is not None]
    if len(found) < len(bills):
        return []
    parts = [
        (f"{name}, a month", *(bill.said(bill.parts[number][1]) for bill in found))
        for number, (name, _) in enumerate(found[0].parts)
    ]
    return [*parts, ("money a month, at your prices", *(bill.said(bill.total) for bill in found))]


def _a_day(one: Evaluation, amount: float) -> float:
    return amount * DAY_MS / max(one.history_ms, MINUTE_MS)
