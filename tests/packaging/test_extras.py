"""What is missing is named at once, and the line that installs it is one that pip takes and that cures it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.checkout import ROOT, files
from tests.support.processes import ran
from timewheel.core.extras import EXTRAS, ExtraMissing, missing_extra, need_extras

SPARK_AND_METRICS = ["pyspark>=4.1", "prometheus-client>=0.20"]


def _hide(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)


def test_the_requirements_are_those_of_the_package() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    of_libraries = {
        extra: {one for one in declared[extra] if not one.startswith("pulsar-timewheel")} for extra in EXTRAS
    }

    assert {extra: set(modules.values()) for extra, modules in EXTRAS.items()} == of_libraries
    # No code of ours imports SQLAlchemy; what the extra testing lacks, pytest and the engines say.
    assert declared.keys() - EXTRAS.keys() == {"sql", "testing", "all", "docs", "dev"}


def test_all_that_is_missing_is_named_at_once_and_java_too(monkeypatch: pytest.MonkeyPatch) -> None:
    _hide(monkeypatch, "pyspark", "prometheus_client")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)

    with pytest.raises(ExtraMissing) as caught:
        need_extras("a fleet", "planner", "metrics", java=True)

    assert caught.value.java
    assert list(caught.value.missing) == SPARK_AND_METRICS
    assert "apt-get install openjdk-17-jre-headless" in str(caught.value)
    assert str(caught.value).endswith("-m pip install 'pyspark>=4.1' 'prometheus-client>=0.20'")


def test_java_alone_is_named_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)

    with pytest.raises(ExtraMissing, match=r"^the planner needs Java 17 or newer on PATH .*headless\)$"):
        need_extras("the planner", "planner", java=True)


def test_what_is_there_is_not_asked_for() -> None:
    need_extras("everything", *EXTRAS, java=shutil.which("java") is not None)


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_line_is_one_that_pip_takes_and_that_is_satisfied_by_the_extra(
    extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hide(monkeypatch, *EXTRAS[extra])
    with pytest.raises(ExtraMissing) as caught:
        need_extras("it", extra)
    line = str(caught.value).rpartition("installs: ")[2]

    # Everything is installed here: without an index pip answers that it is, or that it does not understand.
    done = ran(shlex.split(line), env={**os.environ, "PIP_NO_INDEX": "1", "PIP_DRY_RUN": "1"})

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Requirement already satisfied") >= len(EXTRAS[extra])
    assert "Would install" not in done.stdout


def test_a_door_leaves_errors_of_other_libraries_alone() -> None:
    error_for = missing_extra("tracing", "otel")

    assert error_for("timewheel") is None
    found = error_for("opentelemetry")
    assert found is not None
    assert found.missing == ("opentelemetry-api",)


HIDDEN = """
import sys
for name in {hidden}:
    sys.modules[name] = None  # as if it were not installed
from timewheel.cli.app import main
main()
"""
TOPIC = "persistent://public/default/orders"


@pytest.mark.parametrize(
    ("arguments", "hidden", "missing"),
    [
        (["plan", "history.parquet", "--report", "{folder}/r.html"], ["pyspark", "altair"], ["pyspark", "altair"]),
        (["sample", TOPIC, "-o", "{folder}/s.parquet"], ["pyarrow", "pyspark"], ["pyarrow", "pyspark"]),
        (["exporter", "--all"], ["prometheus_client"], ["prometheus-client"]),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_a_command_names_all_that_it_needs_before_anything_else(
    arguments: list[str], hidden: list[str], missing: list[str], tmp_path: Path
) -> None:
    (tmp_path / "plan.toml").write_text(
        f'format = 1\ndue_topic = "{TOPIC}"\nsubscriptions = ["billing"]\nmax_delay = "30d"\nintake = true\n'
        'relay = "service"\nreaders = "any"\n[tiered]\nwindow = "1h"\ntiers = ["1d"]\n'
    )
    words = [argument.format(folder=tmp_path) for argument in arguments]
    done = ran([sys.executable, "-c", HIDDEN.format(hidden=hidden), *words])

    assert done.returncode == 1
    (said,) = done.stderr.splitlines()
    assert f" needs {', '.join(missing)}, which this line installs: {sys.executable} -m pip install " in said


INSTALLS = re.compile(r"pip install (?!--)(.*)")


def test_no_page_installs_from_an_index_that_has_no_timewheel_and_each_extra_is_one() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    shown = [
        line
        for path in files()
        if path.suffix in {".md", ".service"} and path.name != "CHANGELOG.md"
        for line in INSTALLS.findall((ROOT / path).read_text(encoding="utf-8"))
    ]

    assert len(shown) > 10
    assert [line for line in shown if "pulsar-timewheel" in line] == []
    extras = [name for line in shown for named in re.findall(r"\[([\w,]+)\]['\"]", line) for name in named.split(",")]
    assert {"cli", "planner", "metrics", "otel", "redis", "sql", "testing"} <= set(extras) <= declared.keys()
