"""monitoring/: rules that Prometheus takes, alerts that come when they should, panels with data."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import ROOT
from tests.support.processes import ran
from tests.support.prometheus import RULES, alert_case, alerts, assert_alerts, need
from tests.support.runbook import Sign, links
from timewheel.metrics import CATALOGUE

BROKERS = {
    "pulsar_subscription_blocked_on_unacked_messages",
    "pulsar_delayed_message_index_size_bytes",
    "pulsar_ml_cursor_nonContiguousDeletedMessagesRange",
    "pulsar_ml_cursor_persistLedgerErrors",
}
"""Of a broker itself; tests/broker/test_monitoring.py reads them there."""


Series = dict[str, str]


def case(series: str, bad: str, good: str) -> tuple[Series, Series]:
    return {series: bad}, {series: good}


CASES: dict[str, tuple[Series, Series]] = {
    "TimewheelGapsNearLimit": case("timewheel_gap_limit_used_ratio", "0.8x60", "0.79x60"),
    "TimewheelUnloadWouldRepeat": case("timewheel_unload_again_entries", "1x60", "0x60"),
    "TimewheelGapLimitWithinADay": case("timewheel_gap_limit_reached_seconds", "80000x120", "90000x120"),
    "TimewheelTimersLate": case("timewheel_topic_head_late_seconds", "61x60", "59x60"),
    "TimewheelNoRelay": case("timewheel_unattended_partitions", "1x60", "0x60"),
    "TimewheelDeadLetters": case("timewheel_dead_letters", "1x60", "0x60"),
    "TimewheelTimersEarly": case("timewheel_consumer_far_too_early_total", "0+1x60", "7x60"),
    "TimewheelRelayNotReady": case("timewheel_relay_ready", "0x60", "1x60"),
    "TimewheelRelayLate": case("timewheel_relay_head_late_seconds", "61x60", "59x60"),
    "TimewheelRelayStuck": case("timewheel_relay_stuck_partitions", "1x60", "0x60"),
    "TimewheelRelayBeginsAnew": case("timewheel_relay_sessions_failed_total", "0+2x60", "0+0.5x60"),
    "TimewheelFormerTopicUnreadable": case("timewheel_relay_unreadable_topics", "1x60", "0x60"),
    "TimewheelDisconnected": case("timewheel_relay_disconnected_partitions", "1x60", "0x60"),
    "TimewheelShadowRefuses": case("timewheel_shadow_refused", "1x60", "0x60"),
    "TimewheelShadowBeginsAnew": case("timewheel_shadow_sessions_failed_total", "0+2x60", "0+0.5x60"),
    "TimewheelShadowStuck": case("timewheel_shadow_stuck_partitions", "1x60", "0x60"),
    "TimewheelConsumerNotReady": case("timewheel_consumer_ready", "0x60", "1x60"),
    "TimewheelError": case('timewheel_events_total{level="error"}', "0+1x60", "3x60"),
    "TimewheelMetricsAreOld": case("timewheel_exporter_last_snapshot_timestamp_seconds", "0x60", "0+60x60"),
    "TimewheelNotAllSeen": case("timewheel_exporter_unseen", "1x60", "0x60"),
    "PulsarGapsNearLimit": case("pulsar_ml_cursor_nonContiguousDeletedMessagesRange", "8000x60", "7999x60"),
    "PulsarGapsAtLimit": case("brk_ml_cursor_nonContiguousDeletedMessagesRange", "10000x60", "9999x60"),
    "PulsarGapLimitWithinADay": case(
        "pulsar_ml_cursor_nonContiguousDeletedMessagesRange", "1000+10x120", "1500+0.5x120"
    ),
    "PulsarSubscriptionBlocked": case("pulsar_subscription_blocked_on_unacked_messages", "1x60", "0x60"),
    "PulsarDelayedIndexLarge": case("pulsar_delayed_message_index_size_bytes", "2000000000x60", "900000000x60"),
    "PulsarCursorNotWritten": case("pulsar_ml_cursor_persistLedgerErrors", "0+1x60", "5x60"),
    "TimewheelHandlersFail": (
        {"timewheel_consumer_failed_total": "0+2x60", "timewheel_consumer_handed_total": "0+10x60"},
        {"timewheel_consumer_failed_total": "0+1x60", "timewheel_consumer_handed_total": "0+20x60"},
    ),
    "TimewheelShadowNobodyMoves": (
        {
            'timewheel_shadow_state{state="shadowing"}': "1x60",
            'timewheel_shadow_partitions{relay_id="a"}': "4x60",
            'timewheel_shadow_partitions{relay_id="b"}': "4x60",
            'timewheel_shadow_led_partitions{relay_id="a"}': "2x60",
            'timewheel_shadow_led_partitions{relay_id="b"}': "1x60",
        },
        {
            'timewheel_shadow_state{state="shadowing"}': "1x60",
            'timewheel_shadow_partitions{relay_id="a"}': "4x60",
            'timewheel_shadow_partitions{relay_id="b"}': "4x60",
            'timewheel_shadow_led_partitions{relay_id="a"}': "1x60",
            'timewheel_shadow_led_partitions{relay_id="b"}': "3x60",
            # Of another topic, where nobody is to move.
            'timewheel_shadow_state{due_topic="other",state="shadowing"}': "0x60",
            'timewheel_shadow_state{due_topic="other",state="paused"}': "1x60",
            'timewheel_shadow_partitions{due_topic="other"}': "4x60",
            'timewheel_shadow_led_partitions{due_topic="other"}': "0x60",
        },
    ),
    "TimewheelShadowLags": (
        {
            'timewheel_shadow_lag_seconds{quantile="0.5"}': "1x60",
            'timewheel_shadow_lag_seconds{quantile="0.99"}': "61x60",
            "timewheel_shadow_guard_seconds": "60x60",
            "timewheel_shadow_moved_total": "0+1x60",
        },
        {
            'timewheel_shadow_lag_seconds{relay_id="a",quantile="0.99"}': "59x60",
            'timewheel_shadow_guard_seconds{relay_id="a"}': "60x60",
            'timewheel_shadow_moved_total{relay_id="a"}': "0+1x60",
            # What was moved long ago says nothing of now.
            'timewheel_shadow_lag_seconds{relay_id="b",quantile="0.99"}': "61x60",
            'timewheel_shadow_guard_seconds{relay_id="b"}': "60x60",
            'timewheel_shadow_moved_total{relay_id="b"}': "5x60",
        },
    ),
    "TimewheelSendsFail": (
        {"timewheel_producer_failed_total": "0x60", "timewheel_producer_unknown_total": "0+1x60"},
        {"timewheel_producer_failed_total": "4x60", "timewheel_producer_unknown_total": "4x60"},
    ),
    "TimewheelHandedLate": (
        {
            'timewheel_consumer_lateness_seconds_bucket{le="10"}': "0+90x60",
            'timewheel_consumer_lateness_seconds_bucket{le="60"}': "0+100x60",
            'timewheel_consumer_lateness_seconds_bucket{le="+Inf"}': "0+100x60",
        },
        {
            'timewheel_consumer_lateness_seconds_bucket{le="1"}': "0+100x60",
            'timewheel_consumer_lateness_seconds_bucket{le="60"}': "0+100x60",
            'timewheel_consumer_lateness_seconds_bucket{le="+Inf"}': "0+100x60",
        },
    ),
}
"""By alert: series by which it comes after an hour, and by which it does not; values a minute apart."""


def test_prometheus_takes_the_rules() -> None:
    done = ran([need("promtool"), "check", "rules", *map(str, RULES)])
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_comes_when_it_should_and_only_then(tmp_path: Path) -> None:
    tests = []
    for name in alerts():
        bad, good = CASES[name]
        tests += [alert_case(name, series, comes=comes) for series, comes in ((bad, True), (good, False))]
    assert_alerts(tests, tmp_path)


LAST, EVERY, FAILED = (
    f"timewheel_exporter_{name}"
    for name in ("last_snapshot_timestamp_seconds", "interval_seconds", "snapshots_failed_total")
)


@pytest.mark.parametrize(
    ("series", "comes"),
    [
        pytest.param({LAST: "0+60x60", EVERY: "30x60", FAILED: "0x60"}, False, id="all is well"),
        pytest.param({LAST: "0x60", EVERY: "30x60", FAILED: "0+2x60"}, True, id="no look has come to an end for long"),
        pytest.param({LAST: "3000x60", EVERY: "600x60", FAILED: "0x60"}, False, id="it looks every ten minutes"),
        pytest.param({LAST: "1200x60", EVERY: "600x60", FAILED: "0+0.1x60"}, True, id="and three times in vain"),
        pytest.param({EVERY: "30x60", FAILED: "0+2x60"}, True, id="it never saw anything"),
        pytest.param({EVERY: "30x60", FAILED: "2x60"}, False, id="it has just begun"),
    ],
)
def test_the_alert_on_an_exporter_comes_if_and_only_if_it_sees_nothing(
    series: dict[str, str], comes: bool, tmp_path: Path
) -> None:
    labelled = {f'{name}{{instance="e"}}': values for name, values in series.items()}
    assert_alerts([alert_case("TimewheelMetricsAreOld", labelled, comes=comes)], tmp_path)


@pytest.mark.parametrize("name", alerts())
def test_an_alert_says_how_bad_it_is_and_where_to_read_on(name: str) -> None:
    rule = alerts()[name]
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert rule["annotations"]["runbook"] == links()[Sign("Alerts", name)]


def _metrics_in(expression: str) -> set[str]:
    names = set(re.findall(r"\b(?:timewheel|pulsar)_\w+", expression))
    names |= {f"pulsar_{name}" for name in re.findall(r'=~"\(pulsar\|brk\)_(\w+)"', expression)}
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


def test_no_rule_and_no_panel_asks_for_a_metric_that_nobody_tells() -> None:
    told = {metric.name for metric in CATALOGUE} | BROKERS
    asked = {name for rule in alerts().values() for name in _metrics_in(rule["expr"])}
    asked |= {name for query in queries() for name in _metrics_in(query)}
    assert asked - told == set()


def panels() -> list[dict[str, Any]]:
    """The panels of the dashboard, with the titles of its rows among them."""
    file = ROOT / "monitoring" / "grafana" / "timewheel.json"
    found: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["panels"]
    return found


def queries() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel.get("targets", ())]


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        places = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not places & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= places
