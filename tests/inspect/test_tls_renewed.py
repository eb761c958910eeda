"""TLS: whom an admin client refuses, and files renewed while a process runs: the next connection is made with them."""

from __future__ import annotations

import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import pytest

from tests.support.certificates import Identity, make_authority, make_identity
from tests.support.manual_clock import ManualClock
from tests.support.oauth2_server import oauth2_server
from timewheel.broker.admin.client_credentials import PAUSE_MS, ClientCredentials
from timewheel.broker.admin.http import AdminHttp, tls_context
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.errors import BrokerLost
from timewheel.cli.connecting import Access
from timewheel.client.credentials import TlsReader
from timewheel.core.connection import DEFAULTS, Connection, OAuth2, Secret
from timewheel.core.errors import AdminUnreachable, TokenNotGiven

TOPIC = "persistent://public/default/t"
TIMEOUT_S = 20.0  # for what should come; nothing waits for its end


class Made(NamedTuple):
    """Certificates, made once: they are expensive."""

    authority: Identity
    server: Identity
    first: Identity
    second: Identity


class Handler(BaseHTTPRequestHandler):
    """Answers any GET with whose certificate was shown."""

    protocol_version = "HTTP/1.1"
    name = "nobody who asked"

    @property
    def of(self) -> Server:
        assert isinstance(self.server, Server)
        return self.server

    def do_GET(self) -> None:
        assert isinstance(self.connection, ssl.SSLSocket)
        self.name = shown_to(self.connection)
        if self.name == self.of.holds_back:
            self.of.is_asked.set()
            assert self.of.may_answer.wait(TIMEOUT_S)
        body = f'["{self.name}"]'.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def finish(self) -> None:
        super().finish()
        self.of.ended.put(self.name)  # the connection does not tell any more

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        del format, args


class Server(ThreadingHTTPServer):
    """Asks for a certificate.

    Attributes:
        holds_back: Whose answers wait until they may be given.
        ended: Whose connections have ended.
    """

    daemon_threads = True

    def __init__(self, identity: Identity, authority: Identity) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.tls = server_tls(identity, authority)
        self.socket = self.tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.holds_back: str | None = None
        self.is_asked, self.may_answer = threading.Event(), threading.Event()
        self.ended: SimpleQueue[str] = SimpleQueue()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """One that trusts nobody, or is trusted by nobody, is no matter of this server."""


def server_tls(identity: Identity, client_authority: Identity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate_path, identity.key_path)
    context.load_verify_locations(client_authority.certificate_path)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def shown_to(connection: ssl.SSLSocket) -> str:
    """The name in the client's certificate."""
    subject: Any = (connection.getpeercert() or {})["subject"]
    return str(subject[0][0][1])


def put(source: str, path: Path) -> None:
    """Renew a file as it should be done: by a rename."""
    written = path.with_suffix(".new")
    shutil.copy(source, written)
    written.replace(path)


class Files(NamedTuple):
    """What a connection names, in a folder of one test."""

    authority: Path
    certificate: Path
    key: Path

    def show(self, identity: Identity) -> None:
        put(identity.certificate_path, self.certificate)
        put(identity.key_path, self.key)

    def access(self, *, port: int) -> Access:
        connection = Connection(
            service_url=f"pulsar+ssl://127.0.0.1:{port}",
            admin_url=f"https://127.0.0.1:{port}",
            tls_trust_certs_file_path=self.authority,
            tls_certificate_file_path=self.certificate,
            tls_private_key_file_path=self.key,
        )
        return Access(connection.over(DEFAULTS), ())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    authority = make_authority(folder)
    return Made(authority, *(make_identity(folder, authority, name) for name in ("server", "first", "second")))


@pytest.fixture
def files(made: Made, tmp_path: Path) -> Files:
    found = Files(tmp_path / "ca.pem", tmp_path / "tls.crt", tmp_path / "tls.key")
    put(made.authority.certificate_path, found.authority)
    found.show(made.first)
    return found


@pytest.fixture
def server(made: Made) -> Iterator[Server]:
    with Server(made.server, made.authority) as started:
        thread = threading.Thread(target=started.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield started
        started.shutdown()
    thread.join()


Shown = Callable[[], str]  # connects once more, and tells whose certificate was shown


@pytest.fixture
def admin_shows(files: Files, server: Server) -> Iterator[Shown]:
    with files.access(port=server.server_port).admin() as admin:
        yield lambda: admin.clusters()[0]


class HangingUp(NamedTuple):
    """A dialer, and a broker that hangs up as soon as it has seen the certificate: more is not asked here."""

    dialer: Dialer
    seen: Callable[[], Future[str]]

    def shows(self) -> str:
        seen = self.seen()
        with pytest.raises(BrokerLost):
            self.dialer.reach(TOPIC)
        return seen.result(TIMEOUT_S)


@pytest.fixture
def hanging_up(made: Made, files: Files) -> Iterator[HangingUp]:
    tls = server_tls(made.server, made.authority)
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:
        listening.settimeout(TIMEOUT_S)

        def seen() -> str:
            with listening.accept()[0] as plain, tls.wrap_socket(plain, server_side=True) as connection:
                return shown_to(connection)

        dialer = files.access(port=listening.getsockname()[1]).dialer()
        yield HangingUp(dialer, lambda: pool.submit(seen))


@pytest.fixture
def dialer_shows(hanging_up: HangingUp) -> Shown:
    return hanging_up.shows


@pytest.fixture(params=["admin", "dialer"])
def shows(request: pytest.FixtureRequest) -> Shown:
    shown: Shown = request.getfixturevalue(f"{request.param}_shows")
    return shown


def admin_http(server: Server, ca_path: str | None = None) -> AdminHttp:
    tls = tls_context(ca_path=ca_path)
    return AdminHttp(f"https://127.0.0.1:{server.server_port}", tls=tls, retry_for_s=0)


def test_an_unknown_authority_is_refused_before_anything_is_sent(server: Server) -> None:
    with pytest.raises(AdminUnreachable, match="CERTIFICATE_VERIFY_FAILED") as refused:
        admin_http(server).get("/here")
    assert refused.value.sent is False


def test_a_certificate_for_another_name_is_refused(server: Server, made: Made, tmp_path: Path) -> None:
    elsewhere = make_identity(tmp_path, made.authority, "elsewhere", alternative="DNS:elsewhere.example")
    server.tls.load_cert_chain(elsewhere.certificate_path, elsewhere.key_path)
    with pytest.raises(AdminUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
        admin_http(server, ca_path=made.authority.certificate_path).get("/here")


def test_a_server_that_asks_for_a_certificate_answers_nobody_without_one(server: Server, made: Made) -> None:
    with pytest.raises(AdminUnreachable):
        admin_http(server, ca_path=made.authority.certificate_path).get("/here")


def test_a_missing_file_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        tls_context(ca_path=str(tmp_path / "no.pem"))


def test_a_renewed_certificate_is_shown_at_the_next_connection(shows: Shown, files: Files, made: Made) -> None:
    assert shows() == "first"
    files.show(made.second)
    assert shows() == "second"


def test_of_a_pair_that_is_half_written_the_one_before_is_shown(shows: Shown, files: Files, made: Made) -> None:
    put(made.second.certificate_path, files.certificate)
    assert shows() == "first", "its key is still the first's"
    put(made.second.key_path, files.key)
    assert shows() == "second"


def test_files_that_are_away_for_a_moment_are_missed_by_nobody(shows: Shown, files: Files, made: Made) -> None:
    for path in files:
        path.unlink()
    assert shows() == "first"
    put(made.authority.certificate_path, files.authority)
    files.show(made.second)
    assert shows() == "second"


def test_an_authority_that_is_renewed_is_trusted_by_who_runs(
    hanging_up: HangingUp, files: Files, made: Made, tmp_path: Path
) -> None:
    put(make_authority(tmp_path, "other").certificate_path, files.authority)
    refused = hanging_up.seen()
    with pytest.raises(BrokerLost, match="trust its authority"):
        hanging_up.dialer.reach(TOPIC)
    with pytest.raises(ssl.SSLError):
        refused.result(TIMEOUT_S)
    put(made.authority.certificate_path, files.authority)
    assert hanging_up.shows() == "first"


def test_a_request_under_way_has_its_answer_and_its_connection_ends_then(
    files: Files, server: Server, made: Made
) -> None:
    server.holds_back = "first"
    with files.access(port=server.server_port).admin() as admin, ThreadPoolExecutor(1) as pool:
        held = pool.submit(admin.clusters)
        assert server.is_asked.wait(TIMEOUT_S)
        files.show(made.second)

        assert admin.clusters() == ("second",)
        assert server.ended.empty()
        server.may_answer.set()
        assert held.result(TIMEOUT_S) == ("first",)
        assert server.ended.get(timeout=TIMEOUT_S) == "first"
        assert admin.clusters() == ("second",)
        assert server.ended.empty(), "what is of now is kept"


def test_a_token_is_asked_for_with_the_authority_of_now(made: Made, files: Files, tmp_path: Path) -> None:
    put(make_authority(tmp_path, "other").certificate_path, files.authority)
    clock = ManualClock()
    tls = TlsReader(partial(tls_context, ca_path=str(files.authority)), [files.authority], clock=clock)
    with oauth2_server(made.server) as issuer:
        oauth2 = OAuth2(issuer_url=issuer.issuer_url, private_key=Secret(issuer.key_of("ops")))
        credentials = ClientCredentials(oauth2, tls=tls, clock=clock)
        with pytest.raises(TokenNotGiven, match="CERTIFICATE_VERIFY_FAILED"):
            credentials()

        put(made.authority.certificate_path, files.authority)
        clock.advance(PAUSE_MS)
        assert credentials()
        credentials.close()
