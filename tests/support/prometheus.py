"""A real Prometheus, and the tool that checks its rules (Debian: apt-get install prometheus)."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.support.checkout import ROOT
from tests.support.processes import ran
from timewheel.testing import eventually
from timewheel.testing.ports import free_ports

RULES = sorted((ROOT / "monitoring" / "prometheus").glob("*.rules.yml"))
START_TIMEOUT_S = 60


def alerts() -> dict[str, dict[str, Any]]:
    """Return all rules of this project, by the alert's name."""
    return {
        rule["alert"]: rule
        for path in RULES
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    }


def need(program: str) -> str:
    """Return a program's path; without it the test is skipped, which is a failure in CI."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not here (Debian: apt-get install prometheus)")
    return found


def alert_case(name: str, series: Mapping[str, str], *, comes: bool) -> dict[str, Any]:
    """Make a case for `assert_alerts`: whether the alert fires at the end of the series, whose values are a minute
    apart.
    """
    # A query on ALERTS: promtool's own assertion would also need every word of the annotations here.
    length = max(int(values.rpartition("x")[2]) for values in series.values())
    expected = [{"labels": "{}", "value": 1}] if comes else []
    return {
        "interval": "1m",
        "input_series": [{"series": one, "values": values} for one, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}})',
                "eval_time": f"{length}m",
                "exp_samples": expected,
            }
        ],
    }


def assert_alerts(cases: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Assert all cases of `alert_case`, by promtool."""
    file = folder / "tests.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(path) for path in RULES], "tests": list(cases)}))
    done = ran([need("promtool"), "test", "rules", str(file)], timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """A running Prometheus."""

    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the result of an instant query; an error in the expression fails the test."""
        answer = httpx.get(
            f"{self._url}/api/v1/query", params={"query": expression}, timeout=10, trust_env=False
        ).json()
        assert answer["status"] == "success", (expression, answer)
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def over(self, expression: str, from_s: float, to_s: float, step_s: float) -> list[dict[str, Any]]:
        """Return the result of a range query, as a dashboard makes it; times are UTC seconds."""
        params = {"query": expression, "start": f"{from_s}", "end": f"{to_s}", "step": f"{step_s}"}
        answer = httpx.get(f"{self._url}/api/v1/query_range", params=params, timeout=30, trust_env=False).json()
        assert answer["status"] == "success", (expression, answer)
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def groups(self) -> list[dict[str, Any]]:
        """Return the rule groups with their evaluation results."""
        answer = httpx.get(f"{self._url}/api/v1/rules", timeout=10, trust_env=False).json()
        found: list[dict[str, Any]] = answer["data"]["groups"]
        return found


@contextmanager
def started(folder: Path, targets: Mapping[str, str], rules: Sequence[Path] = ()) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes each second.

    Args:
        targets: Addresses by job; ``host:port``, or ``host:port/path/``.
    """
    (port,) = free_ports(1)
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [
            {
                "job_name": job,
                "metrics_path": "/" + address.partition("/")[2] if "/" in address else "/metrics",
                "static_configs": [{"targets": [address.partition("/")[0]]}],
            }
            for job, address in targets.items()
        ],
    }
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    log = (folder / "prometheus.log").open("wb")
    process = subprocess.Popen(
        [
            need("prometheus"),
            f"--config.file={file}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=log,
        stderr=log,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        eventually(lambda: _is_ready(url), START_TIMEOUT_S, message=json.dumps(config))
        yield Prometheus(url)
    finally:
        process.terminate()
        process.wait(START_TIMEOUT_S)
        log.close()


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", timeout=5, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
