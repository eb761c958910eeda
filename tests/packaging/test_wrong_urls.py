"""Commands with a wrong URL: the error names the URL, the option or variable that gave it, and how to give another."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.processes import ran
from timewheel.cli.connecting import Access, ConnectionOptions
from timewheel.cli.planning import ProfileOptions
from timewheel.core.durations import DAY_MS
from timewheel.core.plan import Cancel, Plan, Tiered
from timewheel.core.planfile import save_plan
from timewheel.errors import BadConnection, BrokerLost, BrokerUnreachable, TimewheelError
from timewheel.testing.ports import free_ports

UNKNOWN = "pulsar://no-such-host.invalid:6650"
TOPIC = "persistent://acme/crm/reminders"
TIERS = Tiered(window_ms=DAY_MS, tiers_ms=(DAY_MS,))


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PULSAR_SERVICE_URL", "PULSAR_ADMIN_URL", "TIMEWHEEL_CONNECTION"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    file = tmp_path / "plan.toml"
    save_plan(Plan(due_topic=TOPIC, subscriptions=("billing",), scheme=TIERS, cancel=Cancel()), file)
    return file


def unreached(service_url: str | None = None, file: Path | None = None) -> BrokerUnreachable:
    """The error of a command's first lookup."""
    access = Access(ConnectionOptions(service_url=service_url, connection=file).merged(), ())
    with pytest.raises(BrokerUnreachable) as caught, access.client(TOPIC, operation_timeout_seconds=1) as client:
        client.get_topic_partitions(TOPIC)
    return caught.value


def test_the_url_and_its_source_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = str(unreached(UNKNOWN))
    assert f"{UNKNOWN} gave no answer (Pulsar error: ConnectError): nothing can be reached at" in said
    assert said.endswith("It comes from --service-url; give a broker's with --service-url pulsar://HOST:6650")
    monkeypatch.setenv("PULSAR_SERVICE_URL", UNKNOWN)
    either = "give a broker's with --service-url pulsar://HOST:6650, or set PULSAR_SERVICE_URL"
    assert unreached().remedy.endswith(f"It comes from PULSAR_SERVICE_URL; {either}")
    monkeypatch.delenv("PULSAR_SERVICE_URL")
    file = tmp_path / "connection.toml"
    file.write_text(f'[connection]\nservice_url = "{UNKNOWN}"\n')
    assert unreached(file=file).remedy.endswith(f"It comes from service_url in {file}; {either}")


def test_a_closed_port_and_a_port_of_another_program_are_told_apart() -> None:
    (closed,) = free_ports(1)
    said = unreached(f"pulsar://127.0.0.1:{closed}").cause
    assert "gave no answer within 1 s" in said
    assert f"nothing can be reached at 127.0.0.1:{closed} (Connection refused)" in said
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = unreached(f"pulsar://127.0.0.1:{port},127.0.0.1:{closed}").cause
    assert f"something listens at 127.0.0.1:{port}, and does not answer as a broker" in said
    assert f"nothing can be reached at 127.0.0.1:{closed}" in said


def test_whoever_reads_entries_is_told_the_source_of_the_url_too() -> None:
    (closed,) = free_ports(1)
    dialer = Access(ConnectionOptions(service_url=f"pulsar://127.0.0.1:{closed}").merged(), ()).dialer()
    with pytest.raises(BrokerLost, match=f"127.0.0.1:{closed}: .* is the service URL .* comes from --service-url"):
        dialer.reach(TOPIC)


def test_any_other_error_of_the_client_has_the_url_and_no_traceback() -> None:
    import pulsar

    access = Access(ConnectionOptions(service_url=UNKNOWN).merged(), ())
    with pytest.raises(TimewheelError, match=f"^{UNKNOWN}: Pulsar error: AuthorizationError$"), access.client(TOPIC):
        raise pulsar.AuthorizationError("Pulsar error: AuthorizationError")


def test_a_malformed_setting_is_named_as_the_user_gave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSAR_ADMIN_URL", "localhost:8080")
    with pytest.raises(BadConnection, match="connection: PULSAR_ADMIN_URL must begin with http://"):
        ConnectionOptions().merged()
    monkeypatch.delenv("PULSAR_ADMIN_URL")
    with pytest.raises(BadConnection, match="connection: --service-url must begin with pulsar://"):
        ConnectionOptions(service_url="localhost:6650").merged()
    with pytest.raises(BadConnection, match="connection: --broker must begin with http://"):
        ProfileOptions(admin_url="pulsar://localhost:6650").merged()
    with pytest.raises(BadConnection, match="--service-url has something else in it than hosts and ports"):
        Access(ConnectionOptions(service_url="pulsar://localhost:6650/a/b").merged(), ()).dialer()


SERVICE = "It comes from PULSAR_SERVICE_URL; give a broker's with --service-url pulsar://HOST:6650"
ADMIN = "It comes from PULSAR_ADMIN_URL; give a broker's with"


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (("timer", "cancel", "PLAN", "id"), SERVICE),
        (("relay", "run", "PLAN"), SERVICE),
        (("shadow", "run", "SHADOW"), SERVICE),
        (("cancellations", "list", "PLAN"), SERVICE),
        (("doctor", "PLAN"), f"{ADMIN} --admin-url http://HOST:8080, or set PULSAR_ADMIN_URL"),
        (("gaps", TOPIC), f"{ADMIN} --admin-url http://HOST:8080, or set PULSAR_ADMIN_URL"),
        (("plan", "check", "PLAN"), f"{ADMIN} --broker http://HOST:8080, or set PULSAR_ADMIN_URL"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_every_command_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch, plan: Path, words: Sequence[str], remedy: str
) -> None:
    shadow = plan.with_name("shadow.toml")
    save_plan(Plan(due_topic=TOPIC, subscriptions=("billing",), scheme=TIERS, intake=True, relay="service"), shadow)
    monkeypatch.setenv("PULSAR_SERVICE_URL", UNKNOWN)
    monkeypatch.setenv("PULSAR_ADMIN_URL", "http://127.0.0.1:1")
    files = {"PLAN": str(plan), "SHADOW": str(shadow)}
    done = ran([sys.executable, "-m", "timewheel", *(files.get(word, word) for word in words)], timeout=120)
    assert done.returncode in {1, 4}, done.stderr
    assert "Traceback" not in done.stderr
    assert remedy in [line for line in done.stderr.splitlines() if line.startswith("timewheel: ")][-1]


def test_the_check_of_a_plan_takes_the_admin_url_of_the_file(plan: Path, tmp_path: Path) -> None:
    file = tmp_path / "connection.toml"
    file.write_text('[connection]\nadmin_url = "http://127.0.0.1:1"\n')
    done = ran([sys.executable, "-m", "timewheel", "plan", "check", str(plan), "--connection", str(file)], timeout=120)
    assert f"It comes from admin_url in {file}" in done.stderr
