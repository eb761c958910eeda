"""Description of a shadow: its moves, their costs, and the effect on plain clients."""

from __future__ import annotations

from timewheel._report.page import Table
from timewheel.core.durations import format_duration, rounded_up, spelled
from timewheel.spark_planner.job import Planned
from timewheel.spark_planner.pricing.evaluation import Evaluation

__all__ = ["WITHOUT_SLIDERS", "describe_limit", "shadow_table"]

WITHOUT_SLIDERS = (
    "For a shadow there are no sliders: its moves depend on the window in a way that sliders do not compute. Plan "
    "again with --growth, --gap-fraction or --topic-cost."
)


def shadow_table(evaluation: Evaluation) -> Table | None:
    """Build the table of a shadow's effects on a history; None: the plan has no shadow."""
    shadow = evaluation.shadow
    if shadow is None:
        return None
    far = spelled(shadow.far_ms)
    share = shadow.moved / max(evaluation.timers, 1.0)
    pending = f"{evaluation.peak_pending_per_partition:,.0f}"
    return Table(
        caption="The shadow, estimated: producers and consumers stay as they are",
        header=("", "", "derived from"),
        rows=[
            ("moved, timers", f"{shadow.moved:,.0f} ({share:.0%})", f"sent {far} or more before they are due"),
            ("entries into the intake", f"{shadow.intake_entries:,.0f}", "moves of 20 ms go as one entry"),
            (
                "more entries written, for each moved timer",
                f"{shadow.extra_writes_per_moved:.2f}",
                "into the intake, hops, into the due topic",
            ),
            (
                "messages read besides by consumers, for each timer",
                f"{shadow.extra_reads_per_timer:.2f}",
                "all by the mover, copies by relays",
            ),
            ("waiting in the due topic's fullest partition", pending, "near timers, and copies in their last stretch"),
            (
                "originals in the broker's index at the peak",
                f"{shadow.peak_stale_entries:,.0f}",
                "moved and not due yet",
            ),
            ("memory of these, kB", f"{shadow.stale_index_bytes / 1_000:,.1f}", "until due, or an unload"),
            ("late by at most, plain clients", format_duration(shadow.lateness_ms), "the broker's tick"),
        ],
    )


def describe_limit(planned: Planned) -> str:
    """Describe the treatment of delays longer than those of the history."""
    longest_ms = int(planned.history.cells(planned.topic).delay_max_ms.max())
    limit = format_duration(planned.plan.max_delay_ms)
    what = f"of more than {limit} will be refused"
    if planned.plan.intake:
        what = f"of more than {limit} stay in the due topic and make gaps there"
    return f"Sends {what} (max_delay, --max-delay); the longest of this history is of {rounded_up(longest_ms)}."
