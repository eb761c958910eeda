"""The alert on an exporter that sees nothing: whatever its interval, and if it never saw anything."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.prometheus import RULES, need

LAST, EVERY, FAILED = (
    f"timewheel_exporter_{name}" for name in ("last_look_timestamp_seconds", "interval_seconds", "looks_failed_total")
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
    query = 'count(ALERTS{alertname="TimewheelMetricsAreOld", alertstate="firing"})'
    test = {
        "interval": "1m",
        "input_series": [{"series": f'{name}{{instance="e"}}', "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": query, "eval_time": "60m", "exp_samples": [{"labels": "{}", "value": 1}] if comes else []}
        ],
    }
    file = tmp_path / "tests.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES / "timewheel.rules.yml")], "tests": [test]}))
    done = subprocess.run(
        [need("promtool"), "test", "rules", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
