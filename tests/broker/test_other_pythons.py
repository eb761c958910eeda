"""The wheel works on the other supported Pythons of this machine."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from tests.support import distribution
from tests.support.checkout import ROOT, package_folders, project
from tests.support.processes import ran

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from timewheel.testing import Broker

TESTED = ("3.12", "3.13")  # beside the Python of this run; pyproject.toml declares these
NEEDS_SPARK = {"timewheel.spark_planner"}


@pytest.mark.short
def test_the_sdk_the_command_and_an_example_work_on_every_python(
    built: distribution.Distribution, pulsar_broker: Broker, tmp_path: Path, say: Callable[[object], None]
) -> None:
    found = {version: path for version, path in distribution.interpreters().items() if version in TESTED}
    if not found:
        pytest.skip(f"this machine has none of Python {', '.join(TESTED)}")

    def works_on(version: str) -> str:
        python = distribution.install(built.wheel, tmp_path / version, extras="[cli]", interpreter=found[version])
        packages = sorted(package_folders().keys() - NEEDS_SPARK)
        done = ran([str(python), "-W", "error::SyntaxWarning", "-c", f"import {', '.join(packages)}"], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        done = ran([str(python.parent / "timewheel"), "--version"], cwd=tmp_path)
        assert done.stdout == f"timewheel {project()['project']['version']}\n", done.stderr
        example = (ROOT / "examples" / "tiered.py").read_text().replace("tiered-example", f"tiered-{uuid4().hex[:8]}")
        urls = {"PULSAR_SERVICE_URL": pulsar_broker.service_url, "PULSAR_ADMIN_URL": pulsar_broker.admin_url}
        done = ran([str(python), "-c", example], cwd=tmp_path, env={**os.environ, **urls}, timeout=120)
        assert done.returncode == 0, done.stderr
        assert len(re.findall(r"hops, late by", done.stdout)) == 5, done.stdout
        return done.stdout

    with ThreadPoolExecutor() as threads:
        handled = dict(zip(found, threads.map(works_on, found), strict=True))
    say(f"worked on Python {', '.join(handled)}")


def test_pyproject_declares_the_tested_pythons() -> None:
    declared = [line.rpartition(" ")[2] for line in project()["project"]["classifiers"] if "Python :: 3." in line]

    assert declared == ["3.11", *TESTED]
