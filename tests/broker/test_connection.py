"""Where the brokers are and who we are there: one file says it to relay and commands, and a wrong URL is answered."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Literal
from urllib.parse import urlsplit

import psutil
import pytest
import tomli_w

from tests.broker.relay_service import RelayProcess
from tests.broker.relay_stage import Stage, plan_of
from tests.conftest import Evidence
from tests.support.command_line import timewheel, well
from tests.support.oauth2_server import SECRET, OAuth2Server, oauth2_server
from tests.support.processes import ran
from tests.support.secured import Secured
from tests.support.tokens import token_for
from timewheel.broker.admin import AdminClient
from timewheel.cli.connecting import Access, ConnectionOptions
from timewheel.client.port_probe import mistake_in
from timewheel.core.connection_file import load_connection
from timewheel.core.durations import HOUR_MS
from timewheel.core.errors import AdminDenied
from timewheel.core.plan import Cancel, Plan, Tiered
from timewheel.core.planfile import save_plan
from timewheel.errors import AdminUnreachable, BrokerLost, BrokerUnreachable, TimewheelError
from timewheel.hooks import Event
from timewheel.provision.provisioning import ensure
from timewheel.testing import Broker, eventually
from timewheel.testing.ports import free_ports

WAYS = ("token", "token_file", "certificate", "oauth2")


@dataclass(frozen=True)
class Who:
    """A connection's file, and what of it must never be shown."""

    file: Path
    secrets: tuple[str, ...]


@pytest.fixture
def issuer(secured: Secured) -> Iterator[OAuth2Server]:
    with oauth2_server(secured.certificate_of("issuer")) as started:
        yield started


@pytest.fixture
def who(secured: Secured, issuer: OAuth2Server, tmp_path: Path) -> Callable[..., Who]:
    """Writes the file of a role that is shown in one of the ways."""

    def write(way: str, role: str, **more: Any) -> Who:
        said: dict[str, Any] = {
            "service_url": secured.tls_service_url,
            "admin_url": secured.tls_url,
            "tls_trust_certs_file_path": secured.ca_path,
            **more,
        }
        token = token_for(role)
        secrets = [token]
        if way == "token":
            said["token"] = token
        elif way == "token_file":
            (tmp_path / "token").write_text(token)
            said["token_file"] = "token"
        elif way == "certificate":
            identity = secured.certificate_of(role)
            said["tls_certificate_file_path"] = identity.certificate_path
            said["tls_private_key_file_path"] = identity.key_path
        else:
            key = issuer.key_of(role)
            said["oauth2"] = {"issuer_url": issuer.issuer_url, "private_key": key, "audience": "urn:pulsar"}
            secrets += [SECRET, key.partition(",")[2]]
        file = tmp_path / "connection.toml"
        file.touch(mode=0o600)
        file.write_text(tomli_w.dumps({"connection": said}))
        return Who(file, tuple(secrets))

    return write


def shown(relay: RelayProcess) -> str:
    """All that others can see of it: log, pages, command lines."""
    family = [psutil.Process(relay.process.pid), *psutil.Process(relay.process.pid).children(recursive=True)]
    pages = [relay.ask(path).text for path in ("/readyz", "/livez")]
    return "\n".join([relay.log.read_text(), *pages, *(" ".join(process.cmdline()) for process in family)])


@pytest.mark.parametrize("way", [way for way in WAYS if way != "token_file"])  # test_token_expires has that one
@pytest.mark.short
def test_relay_and_commands_are_who_the_file_says_and_show_nothing_of_it(
    secured: Secured, who: Callable[..., Who], way: str, tmp_path: Path
) -> None:
    me = who(way, "admin")
    # Two processes where a token would have to be handed on.
    more = ["--processes", "2"] if way == "token" else []
    with Stage(secured.broker, plan_of()) as stage:
        save_plan(stage.plan, tmp_path / "plan.toml")
        ensured = well(timewheel("topics", "ensure", str(tmp_path / "plan.toml"), "--connection", str(me.file)))
        with RelayProcess(secured.broker, stage.plan, tmp_path, connection=me.file, more=more) as relay:
            relay.await_ready()
            stage.hold([2_100])
            stage.await_due(1)
            seen = shown(relay)
            assert relay.terminate() == 0, relay.log.read_text()
        seen += relay.log.read_text() + ensured.stdout + ensured.stderr
    assert "timewheel" in seen
    assert [secret for secret in me.secrets if secret in seen] == []


LOUD = """
    import sys
    from pathlib import Path
    import pulsar
    from timewheel.cli.connecting import Access
    from timewheel.core.connection_file import load_connection

    connection = load_connection(Path(sys.argv[1]))
    options = Access(connection, ()).client_options()
    # As loud as the client can be: what it says of its own must hold no secret either.
    loud = pulsar.FileLogger(pulsar.LoggerLevel.Debug, sys.argv[2])
    client = pulsar.Client(connection.service_url, logger=loud, operation_timeout_seconds=20, **options)
    try:
        client.subscribe("persistent://public/default/not-for-strangers", "s")
    except pulsar.PulsarException as error:
        print(type(error).__name__)
    client.close()
"""


@pytest.mark.parametrize("way", WAYS)
def test_both_doors_ask_for_the_role(who: Callable[..., Who], way: str, tmp_path: Path) -> None:
    """Whoever shows nothing is a superuser here: so a stranger is refused only if he is known as one."""
    me = who(way, "stranger")
    access = Access(load_connection(me.file), (lambda _: None,))
    with access.admin() as admin, pytest.raises(AdminDenied):
        admin.tenants.list()
    log = tmp_path / "client.log"
    # A process of its own: the client's log is the process's, and the first one decides where it goes.
    done = ran([sys.executable, "-c", textwrap.dedent(LOUD), str(me.file), str(log)])
    assert done.stdout == "AuthorizationError\n", done.stderr
    said = log.read_text() + done.stdout + done.stderr
    assert "DEBUG" in said
    assert [secret for secret in me.secrets if secret in said] == []


def test_one_token_of_the_issuer_serves_relay_and_commands_until_it_expires(
    who: Callable[..., Who], issuer: OAuth2Server
) -> None:
    events: list[Event] = []
    issuer.life_s = 3
    me = who("oauth2", "admin")
    access = Access(load_connection(me.file), (events.append,))
    with access.admin() as admin, access.client("persistent://public/default/issued") as client:
        admin.tenants.list()
        client.subscribe("persistent://public/default/issued", "s").close()
        assert issuer.given == 1
        issuer.away = True
        expires = time.monotonic() + issuer.life_s
        while time.monotonic() < expires:
            admin.clusters()
        assert {event.name for event in events} >= {"token_unreadable"}, "it cannot be renewed"
        issuer.away = False
    with Access(load_connection(me.file), (events.append,)).admin() as again:
        assert again.tenants.list()
    assert SECRET not in str(events)


def test_an_option_comes_before_the_variable_and_that_before_the_file(
    who: Callable[..., Who], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each layer is another role, and the admin API says whom it refused."""
    me = who("token", "of-the-file")
    save_plan(plan_of(), me.file.with_name("plan.toml"))

    def refused(*options: str) -> str:
        return sentence_of(timewheel("topics", "ensure", str(me.file.with_name("plan.toml")), *options))

    monkeypatch.setenv("TIMEWHEEL_CONNECTION", str(me.file))
    assert "role is 'of-the-file'" in refused()
    monkeypatch.setenv("PULSAR_TOKEN", token_for("of-the-variable"))
    assert "role is 'of-the-variable'" in refused()
    assert "role is 'of-the-option'" in refused("--token", token_for("of-the-option"))


@pytest.fixture
def proxy() -> Iterator[str]:
    """Something that speaks HTTP where a broker was expected."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<html>please log in</html>"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def sentence_of(done: subprocess.CompletedProcess[str]) -> str:
    """What a command that ended badly said: one sentence to a human, and no traceback."""
    assert done.returncode in {1, 2}, done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("timewheel: ")]
    assert lines, done.stderr
    return lines[-1]


def test_what_is_wrong_with_a_connection_is_one_sentence(
    secured: Secured, who: Callable[..., Who], issuer: OAuth2Server, proxy: str, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.toml"
    save_plan(plan_of(), plan)

    def ensure(*options: str) -> str:
        return sentence_of(timewheel("topics", "ensure", str(plan), *options))

    assert "the answer is no JSON; is the admin URL that of a broker?" in ensure("--admin-url", f"http://{proxy}")
    assert "--admin-url must begin with http://" in ensure("--admin-url", "broker:8080")
    assert "no connection to http://127.0.0.1:1" in ensure("--admin-url", "http://127.0.0.1:1")
    assert "CERTIFICATE_VERIFY_FAILED" in ensure("--admin-url", secured.tls_url)
    expired = token_for("admin", expires_s=int(time.time()) - 60)
    # This broker takes whoever shows nothing valid for a stranger whom it lets in; the command tells all the same.
    gaps = timewheel("gaps", "public/default", "--admin-url", secured.tls_url, "--token", expired)
    assert "token_expired" in gaps.stderr
    assert "none.toml cannot be read" in ensure("--connection", str(tmp_path / "none.toml"))
    assert "token_file" in ensure("--token-file", str(tmp_path / "no-token"))
    assert "not token and token_file" in ensure("--token", "a", "--token-file", "b")
    assert "/nowhere" in ensure("--tls-ca", "/nowhere")
    assert "tls_trust_certs_file_path has no matching PEM" in ensure("--tls-ca", str(plan))
    issuer.away = True
    assert f"no token from {issuer.issuer_url}: status 503" in ensure("--connection", str(who("oauth2", "admin").file))

    def relay(*options: str) -> str:
        return sentence_of(timewheel("relay", "run", str(plan), *options))

    assert "--service-url must begin with pulsar://" in relay("--service-url", f"http://{proxy}")
    assert "--http" in timewheel("relay", "run", str(plan), "--http", "8080").stderr
    assert f"cannot listen on 127.0.0.1 port {proxy.rpartition(':')[2]}" in relay("--http", proxy)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param("proxy", marks=pytest.mark.proof),
        pytest.param("expired", marks=pytest.mark.proof),
        pytest.param("no-broker", marks=pytest.mark.proof),
        pytest.param("silence", marks=pytest.mark.short),  # a third of what the others wait
    ],
)
def test_a_relay_that_cannot_begin_says_why(
    secured: Secured, proxy: str, case: str, tmp_path: Path, evidence: Evidence
) -> None:
    """Each waits for the time-outs of pulsar-client."""
    plan = tmp_path / "plan.toml"
    save_plan(plan_of(), plan)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        urls = {
            "proxy": f"pulsar://{proxy}",
            "expired": secured.broker.service_url,
            "no-broker": "pulsar://127.0.0.1:1",
            "silence": f"pulsar://127.0.0.1:{silent.getsockname()[1]}",
        }
        token = token_for("admin", expires_s=int(time.time()) - 60)
        options = ["--service-url", urls[case], "--admin-url", secured.broker.admin_url]
        options += ["--token", token] if case == "expired" else []
        began_s = time.monotonic()
        done = timewheel("relay", "run", str(plan), *options, timeout=120)
    assert options[1] in sentence_of(done)
    if case == "expired":
        told = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
        assert "token_expired" in {line["event"] for line in told}
    evidence(f"a relay that cannot begin says why: {case}", {"said after (s)": time.monotonic() - began_s})


TOPIC = "persistent://public/default/reminders"


def urls(secured: Secured) -> dict[str, str]:
    """The right URL of each port by its scheme."""
    right = (secured.broker.admin_url, secured.tls_url, secured.broker.service_url, secured.tls_service_url)
    return {urlsplit(url).scheme: url for url in right}


def failed(call: Callable[[], object]) -> TimewheelError:
    with pytest.raises(TimewheelError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("spoken", ["http", "https", "pulsar", "pulsar+ssl"])
@pytest.mark.parametrize("scheme", ["http", "https", "pulsar", "pulsar+ssl"])
def test_a_port_that_speaks_otherwise_is_told_with_the_right_url(secured: Secured, scheme: str, spoken: str) -> None:
    url = urls(secured)[spoken]
    at = urlsplit(url)
    assert at.hostname is not None
    assert at.port is not None
    said = mistake_in(scheme, at.hostname, at.port)
    if scheme == spoken:
        assert said == ""
    elif ("http" in scheme) == ("http" in spoken):
        assert said == f"{at.netloc} speaks {'TLS' if spoken in {'https', 'pulsar+ssl'} else 'no TLS'}: write {url}"
    else:
        usual = {"http": "web port is usually 8080", "pulsar": "brokers' own port is usually 6650"}
        usual |= {"https": "web port is usually 8443", "pulsar+ssl": "brokers' own port is usually 6651"}
        assert f"{at.netloc} is the port of the " in said
        assert said.endswith(f", {url}; the {usual[scheme]}")


def test_every_client_says_so_and_has_no_words_of_openssl(secured: Secured) -> None:
    right = urls(secured)

    def access(**given: str) -> Access:
        connection = ConnectionOptions(**given, tls_ca=Path(secured.ca_path)).merged()  # type: ignore[arg-type]
        return Access(connection, ())

    def look_up(url: str) -> None:
        with access(service_url=url).client(TOPIC, operation_timeout_seconds=1) as client:
            client.get_topic_partitions(TOPIC)

    wrong = right["http"].replace("http", "https")
    with access(admin_url=wrong).admin() as admin:
        said = failed(admin.brokers.version)
    assert isinstance(said, AdminUnreachable)
    assert f"speaks no TLS: write {right['http']}; It comes from --admin-url" in said.reason
    assert said.wrong_url, "so that it is not repeated"

    wrong = right["pulsar"].replace("pulsar", "pulsar+ssl")
    said = failed(lambda: access(service_url=wrong).dialer().reach(TOPIC))
    assert isinstance(said, BrokerLost)
    assert f"speaks no TLS: write {right['pulsar']}" in said.reason
    said = failed(lambda: look_up(wrong))
    assert isinstance(said, BrokerUnreachable)
    assert f"speaks no TLS: write {right['pulsar']}" in said.cause


def test_a_port_where_nobody_listens_has_no_mistake_of_this_kind() -> None:
    (closed,) = free_ports(1)
    assert mistake_in("http", "127.0.0.1", closed) == ""
    assert mistake_in("http", "no-such-host.invalid", closed) == ""
    assert mistake_in("http", "x" * 70, closed) == ""


def long_plan(topic: str, kind: str) -> Plan:
    plan = Plan(
        due_topic=topic,
        subscriptions=("billing",),
        scheme=Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, 12 * HOUR_MS)),
        relay="service",
    )
    return replace(plan, intake=True, readers="any") if kind == "shadow" else replace(plan, cancel=Cancel(), retry=True)


@pytest.fixture
def admin_alone(pulsar_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A connection's file with an admin URL; nothing listens where a client would go by default."""
    assert ":6650" not in pulsar_broker.service_url
    for name in ("PULSAR_SERVICE_URL", "PULSAR_ADMIN_URL"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "connection.toml"
    file.write_text(f'[connection]\nadmin_url = "{pulsar_broker.admin_url}"\n')
    return file


def output_of(folder: Path, connection: Path, *words: str) -> str:
    """What a command printed that ended well."""
    done = well(timewheel(*words, "--connection", connection, cwd=folder))
    return done.stdout


def test_timers_are_cancelled_looked_at_and_relayed(
    pulsar_broker: Broker, topic: str, admin_alone: Path, tmp_path: Path
) -> None:
    plan = long_plan(topic, "relay")
    save_plan(plan, tmp_path / "plan.toml")
    done = timewheel("timer", "cancel", "plan.toml", "one", "--connection", admin_alone, cwd=tmp_path)
    assert done.returncode == 1
    assert "timewheel topics ensure plan.toml" in done.stderr, "also where there is nothing to look up yet"
    with AdminClient(pulsar_broker.admin_url) as admin:
        ensure(admin, plan, now_ms=admin.clock.now_ms())
    assert "one" in output_of(tmp_path, admin_alone, "timer", "cancel", "plan.toml", "one")
    assert "one" in output_of(tmp_path, admin_alone, "cancellations", "list", "plan.toml")
    assert "1 cancellation" in output_of(tmp_path, admin_alone, "cancellations", "compact", "plan.toml")
    assert "remembered until" in output_of(tmp_path, admin_alone, "timer", "show", "plan.toml", "one")
    _runs("relay", pulsar_broker, plan, tmp_path, admin_alone)


def test_a_shadow_is_begun_looked_at_run_and_ended(
    pulsar_broker: Broker, topic: str, admin_alone: Path, tmp_path: Path
) -> None:
    plan = long_plan(topic, "shadow")
    save_plan(plan, tmp_path / "plan.toml")
    with AdminClient(pulsar_broker.admin_url) as admin:
        admin.topics.create(topic, 1)
        admin.subscriptions.create(topic, "billing")
    begun = output_of(tmp_path, admin_alone, "shadow", "start", "plan.toml")
    assert "timewheel shadow run plan.toml --connection" in begun
    assert "--service-url" not in begun, "the next command looks it up as well"
    _runs("shadow", pulsar_broker, plan, tmp_path, admin_alone)
    assert "audit balances" in output_of(tmp_path, admin_alone, "shadow", "verify", "plan.toml")
    assert "put back" in output_of(tmp_path, admin_alone, "shadow", "abort", "plan.toml")
    assert "native" in output_of(tmp_path, admin_alone, "shadow", "status", "plan.toml")


def _runs(kind: Literal["relay", "shadow"], broker: Broker, plan: Plan, folder: Path, connection: Path) -> None:
    with RelayProcess(broker, plan, folder, connection=connection, kind=kind) as service:
        eventually(service.ready_file.exists, 60, message="it reaches the broker")
