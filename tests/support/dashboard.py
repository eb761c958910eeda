"""Generates the dashboard, monitoring/grafana/timewheel.json. As a program it writes the file; `make docs-tables` runs
it.

Rows from the general to the special: overall health, gaps, timers, services, relays, shadows.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tests.support.checkout import ROOT

PAGE = ROOT / "monitoring" / "grafana" / "timewheel.json"
WIDTH = 24
HEIGHT = 8
STAT_HEIGHT = 4

STEPS: dict[str, list[dict[str, Any]]] = {
    "short": [{"color": "green", "value": None}, {"color": "red", "value": 0.000001}],
    "percentunit": [{"color": "green", "value": None}, {"color": "orange", "value": 0.8}, {"color": "red", "value": 1}],
}
"""Thresholds of a large figure: a count should be 0, and 80 % of a limit is the level `watch`."""


class Panel(NamedTuple):
    """A panel of the dashboard.

    Args:
        title: Title of the panel.
        queries: PromQL and legend of each line.
        unit: Grafana's name of the unit.
        stat: A large figure instead of lines; red above 0.
        note: Shown behind the i in its corner.
    """

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    stat: bool = False
    note: str = ""


SUB = "{{subscription}} of {{topic}}"
ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Does it go well?",
        (
            Panel(
                "An unload would repeat",
                (("sum(timewheel_unload_again_entries)", ""),),
                stat=True,
                note="Handled entries. Above 0: put off restarts of brokers.",
            ),
            Panel(
                "Most of a gap limit in use", (("max(timewheel_gap_limit_used_ratio)", ""),), "percentunit", stat=True
            ),
            Panel("Latest head", (("max(timewheel_topic_head_late_seconds)", ""),), "s", stat=True),
            Panel("Late and without a relay", (("sum(timewheel_unattended_partitions)", ""),), stat=True),
            Panel("Dead letters", (("sum(timewheel_dead_letters)", ""),), stat=True),
            Panel(
                "Age of this page",
                (("time() - max(timewheel_exporter_last_snapshot_timestamp_seconds)", ""),),
                "s",
                stat=True,
            ),
        ),
    ),
    (
        "Gaps",
        (
            Panel(
                "Of the broker's limit",
                (("topk(10, timewheel_gap_limit_used_ratio)", SUB),),
                "percentunit",
                note="At 100 % the broker forgets acknowledgements at the next reload.",
            ),
            Panel("Gaps of the worst partition", (("topk(10, timewheel_gaps)", SUB),)),
            Panel("Delivered again by an unload", (("topk(10, timewheel_unload_again_entries)", SUB),)),
            Panel("Time to the limit", (("bottomk(10, timewheel_gap_limit_reached_seconds)", SUB),), "s"),
            Panel("Backlog", (("sum by (state) (timewheel_backlog_entries)", "{{state}}"),)),
            Panel(
                "Memory and disk",
                (
                    ("sum(timewheel_delayed_index_bytes)", "index of delayed messages"),
                    ("sum(timewheel_pinned_bytes)", "ledgers that cannot go"),
                ),
                "bytes",
            ),
        ),
    ),
    (
        "Timers",
        (
            Panel("Waiting, by when they are due", (("sum by (due) (timewheel_timers)", "{{due}}"),)),
            Panel("Heads of topics, late by", (("topk(10, timewheel_topic_head_late_seconds)", "{{topic}}"),), "s"),
        ),
    ),
    (
        "Services",
        (
            Panel(
                "Sent",
                (
                    ("sum by (due_topic) (rate(timewheel_producer_stored_total[5m]))", "stored, {{due_topic}}"),
                    (
                        "sum by (due_topic) (rate(timewheel_producer_failed_total[5m])"
                        " + rate(timewheel_producer_unknown_total[5m]))",
                        "failed or unknown, {{due_topic}}",
                    ),
                ),
                "ops",
            ),
            Panel(
                "Handled",
                (
                    ("sum by (subscription) (rate(timewheel_consumer_done_total[5m]))", "done, {{subscription}}"),
                    ("sum by (subscription) (rate(timewheel_consumer_failed_total[5m]))", "failed, {{subscription}}"),
                ),
                "ops",
            ),
            Panel(
                "Given out late by",
                tuple(
                    (
                        f"histogram_quantile({quantile}, sum by (le)"
                        " (rate(timewheel_consumer_lateness_seconds_bucket[5m])))",
                        f"{float(quantile):.0%} within",
                    )
                    for quantile in ("0.5", "0.99")
                ),
                "s",
            ),
            Panel("Held until due", (("sum by (subscription) (timewheel_consumer_held)", "{{subscription}}"),)),
            Panel(
                "Copies that no handler saw",
                (("sum by (why) (rate(timewheel_consumer_copies_dropped_total[5m]))", "{{why}}"),),
                "ops",
            ),
            Panel(
                "Events",
                # Every event is a series from the start: events that did not happen would hide the others.
                (("sum by (event, level) (increase(timewheel_events_total[5m])) > 0", "{{level}} {{event}}"),),
                note="Only those that happened in the last five minutes; none is good.",
            ),
        ),
    ),
    (
        "Relays",
        (
            Panel("Hops", (("sum by (lane) (rate(timewheel_relay_hops_total[5m]))", "{{lane}}"),), "ops"),
            Panel("Entries written", (("sum(rate(timewheel_relay_entries_written_total[5m]))", "entries"),), "wps"),
            Panel("Partitions by state", (("sum by (state) (timewheel_relay_partitions)", "{{state}}"),)),
            Panel(
                "Heads that a relay holds, late by",
                (("topk(10, timewheel_relay_head_late_seconds)", "{{topic}}"),),
                "s",
            ),
            Panel("Hops under way", (("sum by (relay_id) (timewheel_relay_in_flight)", "{{relay_id}}"),)),
            Panel(
                "Sessions begun anew",
                (("sum by (topic) (increase(timewheel_relay_sessions_failed_total[10m]))", "{{topic}}"),),
            ),
        ),
    ),
    (
        "Shadows",
        (
            Panel(
                "Moved, and acknowledged in the due topic",
                (
                    ("sum by (due_topic) (rate(timewheel_shadow_moved_total[5m]))", "moved, {{due_topic}}"),
                    ("sum by (due_topic) (rate(timewheel_shadow_acked_total[5m]))", "acknowledged, {{due_topic}}"),
                ),
                "ops",
            ),
            Panel(
                "From publish to move",
                (
                    ("max by (quantile) (timewheel_shadow_lag_seconds)", "{{quantile}} within"),
                    ("min(timewheel_shadow_guard_seconds)", "least guard"),
                ),
                "s",
            ),
            Panel(
                "Entries by what becomes of them",
                (("sum by (decision) (rate(timewheel_shadow_entries_total[5m])) > 0", "{{decision}}"),),
                "ops",
                note="What is not moved stays in the due topic, and the broker delivers it.",
            ),
            Panel(
                "Partitions",
                (
                    ("max by (due_topic) (timewheel_shadow_partitions)", "all, {{due_topic}}"),
                    ("sum by (due_topic) (timewheel_shadow_led_partitions)", "moved from, {{due_topic}}"),
                    ("sum by (due_topic) (timewheel_shadow_caught_up_partitions)", "caught up, {{due_topic}}"),
                    ("max by (due_topic) (timewheel_shadow_refused)", "refused, {{due_topic}}"),
                ),
            ),
            Panel(
                "Intake and journal",
                (
                    (
                        'sum by (topic, subscription) (timewheel_backlog_entries{topic=~".*[.]tw[.]intake"})',
                        "{{subscription}} of {{topic}}",
                    ),
                ),
                note="By the exporter. The journal keeps copies until no broker can forget their originals.",
            ),
            Panel(
                "Forgotten and begun anew",
                (
                    (
                        "sum by (due_topic) (increase(timewheel_shadow_acked_again_total[10m]))",
                        "acknowledged again, {{due_topic}}",
                    ),
                    (
                        "sum by (due_topic) (increase(timewheel_shadow_sessions_failed_total[10m]))",
                        "begun anew, {{due_topic}}",
                    ),
                ),
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        panels.append(
            {"type": "row", "title": title, "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1}, "collapsed": False}
        )
        top += 1
        width = WIDTH // (len(row) if row[0].stat else min(len(row), 3))
        height = STAT_HEIGHT if row[0].stat else HEIGHT
        for number, panel in enumerate(row):
            line, place = divmod(number, WIDTH // width)
            at = {"x": place * width, "y": top + line * height, "w": width, "h": height}
            panels.append(_drawn(panel, at))
        top += -(-len(row) // (WIDTH // width)) * height
    for number, panel_json in enumerate(panels, start=1):
        panel_json["id"] = number
    return {
        "title": "timewheel",
        "uid": "timewheel",
        "tags": ["pulsar", "timewheel"],
        "timezone": "browser",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
        },
        "panels": panels,
    }


def _drawn(panel: Panel, at: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    plain = [{"color": "text", "value": None}]
    steps = STEPS.get(panel.unit, plain) if panel.stat else plain
    return {
        "type": "stat" if panel.stat else "timeseries",
        "title": panel.title,
        "description": panel.note,
        "datasource": source,
        "gridPos": at,
        "targets": [
            {"refId": chr(ord("A") + number), "expr": query, "legendFormat": legend, "datasource": source}
            for number, (query, legend) in enumerate(panel.queries)
        ],
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
        "options": {} if panel.stat else {"legend": {"displayMode": "list", "placement": "bottom"}},
    }


def text() -> str:
    """Return the text of the file."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
