"""TLS between the admin client and a server of this test."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import Identity, make_authority, make_identity
from timewheel.broker.admin.http import AdminHttp, tls_context
from timewheel.core.errors import AdminUnreachable


class Handler(BaseHTTPRequestHandler):
    """Answers with the authorization it got, and redirects a call that ends with /moved to the other server."""

    other = ""

    def do_GET(self) -> None:
        if type(self).other and self.path.endswith("/moved"):
            self.send_response(307)
            self.send_header("Location", f"{type(self).other}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = f'"{self.headers.get("Authorization")}"'.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        del format, args


class QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A refused handshake is what some tests are about."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return make_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def client_identity(tmp_path_factory: pytest.TempPathFactory, authority: Identity) -> Identity:
    return make_identity(tmp_path_factory.mktemp("client"), authority, "client")


def serve(identity: Identity, *, client_authority: Identity | None = None) -> tuple[QuietServer, str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate_path, identity.key_path)
    if client_authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_authority.certificate_path)
    server = QuietServer(("127.0.0.1", 0), type("OwnHandler", (Handler,), {}))
    # The handshake belongs to the thread of the connection: a refused one must not end the accepting loop.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    return server, f"https://127.0.0.1:{server.server_port}"


@pytest.fixture(scope="module")
def secure_url(tmp_path_factory: pytest.TempPathFactory, authority: Identity) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("servers")
    asked, asked_url = serve(make_identity(folder, authority, "asked"))
    owner, owner_url = serve(make_identity(folder, authority, "owner"))
    asked.RequestHandlerClass.other = owner_url  # type: ignore[attr-defined]
    yield asked_url
    for server in (asked, owner):
        server.shutdown()
        server.server_close()


def test_a_server_of_a_trusted_authority_is_asked_and_its_redirect_followed(
    secure_url: str, authority: Identity
) -> None:
    http = AdminHttp(secure_url, token="t0ken", tls=tls_context(ca_path=authority.certificate_path))

    assert http.get("/here") == "Bearer t0ken"
    assert http.get("/moved") == "Bearer t0ken"
    http.close()


def test_an_unknown_authority_is_refused(secure_url: str) -> None:
    http = AdminHttp(secure_url, token="t0ken", retry_for_s=0)

    with pytest.raises(AdminUnreachable, match="CERTIFICATE_VERIFY_FAILED") as refused:
        http.get("/here")

    assert refused.value.sent is False
    http.close()


def test_a_certificate_for_another_name_is_refused(authority: Identity, tmp_path: Path) -> None:
    server, url = serve(make_identity(tmp_path, authority, "elsewhere", alternative="DNS:elsewhere.example"))
    http = AdminHttp(url, tls=tls_context(ca_path=authority.certificate_path), retry_for_s=0)

    with pytest.raises(AdminUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
        http.get("/here")

    http.close()
    server.shutdown()
    server.server_close()


def test_a_client_certificate_is_shown_to_a_server_that_asks_for_one(
    authority: Identity, client_identity: Identity, tmp_path: Path
) -> None:
    server, url = serve(make_identity(tmp_path, authority, "mutual"), client_authority=authority)
    ca_path = authority.certificate_path
    shown = tls_context(
        ca_path=ca_path, certificate_path=client_identity.certificate_path, key_path=client_identity.key_path
    )
    with_certificate = AdminHttp(url, tls=shown, retry_for_s=0)
    without = AdminHttp(url, tls=tls_context(ca_path=ca_path), retry_for_s=0)

    assert with_certificate.get("/here") == "None"
    with pytest.raises(AdminUnreachable):
        without.get("/here")

    with_certificate.close()
    without.close()
    server.shutdown()
    server.server_close()


def test_a_missing_file_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        tls_context(ca_path=str(tmp_path / "no.pem"))
