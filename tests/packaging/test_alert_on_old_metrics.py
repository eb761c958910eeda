"""The alert on an exporter that sees nothing: whatever its interval, and if it never saw anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.prometheus import alert_case, assert_alerts

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
def test_it_comes_if_and_only_if_nothing_is_seen(series: dict[str, str], comes: bool, tmp_path: Path) -> None:
    labelled = {f'{name}{{instance="e"}}': values for name, values in series.items()}
    assert_alerts([alert_case("TimewheelMetricsAreOld", labelled, comes=comes)], tmp_path)
