"""The wheel in a clean environment: it runs, and importing it does nothing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import distribution
from tests.support.checkout import package_folders, project
from tests.support.processes import ran

SDK = (
    "timewheel",
    "timewheel.core",
    "timewheel.client",
    "timewheel.producers",
    "timewheel.consumers",
    "timewheel.errors",
    "timewheel.events",
    "timewheel.hooks",
    "timewheel.tokens",
)

PROBE = """
import json, os, sys, threading
environment, folder = dict(os.environ), os.listdir()
def native_threads():
    return len(os.listdir("/proc/self/task"))
before = native_threads()
for name in sys.argv[1:]:
    __import__(name)
print(json.dumps({
    "loaded": sorted(name for name in sys.modules if "." not in name),
    "python_threads": [thread.name for thread in threading.enumerate()],
    "native_threads": native_threads() - before,
    "children": open(f"/proc/self/task/{os.getpid()}/children").read().split(),
    "environment_kept": dict(os.environ) == environment,
    "folder_kept": os.listdir() == folder,
    "home": os.listdir(os.environ["HOME"]),
}))
"""


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run outside of the checkout with an empty home, so that nothing but the wheel can be found or written to."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    return ran(command, cwd=folder, env={"HOME": str(home), "PATH": "/usr/bin:/bin", "COLUMNS": "100"})


def _import(python: Path, folder: Path, *names: str) -> dict[str, Any]:
    done = _run([str(python), "-B", "-c", PROBE, *names], folder)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="session")
def sdk_python(built: distribution.Distribution, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of a new environment with only the wheel, and no extra."""
    return distribution.install(built.wheel, tmp_path_factory.mktemp("sdk") / "venv")


def test_a_service_needs_no_extra_and_the_command_names_its_own(
    sdk_python: Path, tmp_path: Path, say: Callable[[object], None]
) -> None:
    loaded = set(_import(sdk_python, tmp_path, *SDK, "timewheel.relay")["loaded"])
    assert loaded & {"httpcore", "httpx", "rich", "typer", "tenacity"} == set()

    done = _run([str(sdk_python.parent / "timewheel"), "gaps", "public/default"], tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: the command timewheel needs cramjam, google-crc32c, httpcore, httpx, rich, tenacity, typer, "
        "which this line "
        f"installs: {sdk_python} -m pip install 'cramjam>=2.8' 'google-crc32c>=1.5' httpcore httpx rich "
        "tenacity typer\n"
    )
    done = _run([str(sdk_python), "-c", "import timewheel.provision"], tmp_path)
    assert "ExtraMissing: the admin API's client needs cramjam, " in done.stderr
    site = sdk_python.parent.parent / "lib"
    say(f"installed without extras: {sum(path.stat().st_size for path in site.rglob('*.*')) / 1e6:.0f} MB")


def test_the_command_helps(clean_python: Path, tmp_path: Path) -> None:
    done = _run([str(clean_python.parent / "timewheel"), "--help"], tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: timewheel [OPTIONS] COMMAND" in done.stdout


@pytest.mark.parametrize("command", [["timewheel"], ["python", "-m", "timewheel"]], ids=["command", "module"])
def test_the_command_knows_its_version(clean_python: Path, tmp_path: Path, command: list[str]) -> None:
    done = _run([str(clean_python.parent / command[0]), *command[1:], "--version"], tmp_path)

    assert (done.returncode, done.stdout) == (0, f"timewheel {project()['project']['version']}\n")


@pytest.mark.parametrize("package", sorted(package_folders()))
def test_every_package_imports_alone(clean_python: Path, tmp_path: Path, package: str) -> None:
    assert "timewheel" in _import(clean_python, tmp_path, package)["loaded"]


def test_looking_at_single_entries_takes_no_extra(clean_python: Path, tmp_path: Path) -> None:
    """Else commands would ask the admin API, for which a broker opens whatever its sender says."""
    assert "timewheel" in _import(clean_python, tmp_path, "timewheel.shadow.stored_entries")["loaded"]


@pytest.mark.parametrize(
    ("names", "heavy"),
    [
        (SDK, {"httpx", "pyspark", "rich", "typer"}),
        (["timewheel.cli.app"], {"httpx", "pulsar", "pydantic", "pyspark"}),
        (["timewheel.errors"], {"pulsar", "pydantic", "httpx", "pyspark", "structlog"}),
    ],
    ids=["the SDK", "the command line", "errors to catch"],
)
def test_an_import_loads_nothing_that_it_does_not_need(
    clean_python: Path, tmp_path: Path, names: list[str], heavy: set[str]
) -> None:
    assert set(_import(clean_python, tmp_path, *names)["loaded"]) & heavy == set()


def test_nothing_happens_at_import(clean_python: Path, tmp_path: Path) -> None:
    seen = _import(clean_python, tmp_path, *SDK)
    del seen["loaded"]

    assert seen == {
        "python_threads": ["MainThread"],
        "native_threads": 0,
        "children": [],
        "environment_kept": True,
        "folder_kept": True,
        "home": [],
    }


def test_the_probe_sees_a_thread_a_child_and_a_written_environment(clean_python: Path, tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(
        "import os, subprocess, threading\n"
        "threading.Thread(target=threading.Event().wait, name='stray', daemon=True).start()\n"
        "os.environ['STRAY'] = '1'\n"
        "open('stray', 'w').close()\n"
        "subprocess.Popen(['sleep', '1'])\n"
    )
    seen = _import(clean_python, tmp_path, "busy")

    assert "stray" in seen["python_threads"]
    assert seen["native_threads"] == 1
    assert len(seen["children"]) == 1
    assert (seen["environment_kept"], seen["folder_kept"]) == (False, False)


def test_without_the_extra_a_relays_page_of_metrics_says_what_is_missing(clean_python: Path, tmp_path: Path) -> None:
    program = """
from timewheel.cli.relay import metrics_of_service
metrics, pages = metrics_of_service()
print(metrics, pages["/metrics"]().status, pages["/metrics"]().body.decode(), end="")
"""
    done = _run([str(clean_python), "-B", "-c", program], tmp_path)

    assert done.stdout == (
        "None 501 a page of metrics needs prometheus-client, which this line installs: "
        f"{clean_python} -m pip install 'prometheus-client>=0.20'\n"
    ), done.stderr
