"""An OAuth2 server that issues the tokens of `tests.support.tokens`, by the client credentials flow, over TLS."""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from tests.support.certificates import Identity
from tests.support.http_servers import QuietHandler, serving
from tests.support.tokens import token_for

SECRET = "swordfish-of-the-client"


class OAuth2Server:
    """The state of the server."""

    def __init__(self, port: int) -> None:
        self.issuer_url = f"https://127.0.0.1:{port}"
        self.given = 0
        self.life_s = 600
        self.away = False

    def key_of(self, role: str) -> str:
        """Return the credentials of a client with this role, as pulsar-client expects them."""
        key = json.dumps({"type": "client_credentials", "client_id": role, "client_secret": SECRET})
        return "data:application/json;base64," + base64.b64encode(key.encode()).decode()

    def answer(self, form: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        """Answer a request for a token."""
        if self.away:
            return 503, {"error": "temporarily_unavailable"}
        if form.get("client_secret") != [SECRET] or form.get("grant_type") != ["client_credentials"]:
            return 401, {"error": "invalid_client"}
        self.given += 1
        (role,) = form["client_id"]
        token = token_for(role, expires_s=int(time.time()) + self.life_s)
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": self.life_s}


@contextmanager
def oauth2_server(identity: Identity) -> Iterator[OAuth2Server]:
    """Start a server with this certificate."""

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.0"  # no connection outlives its answer

        def respond(self) -> None:
            status, facts = 200, {"issuer": told.issuer_url, "token_endpoint": f"{told.issuer_url}/oauth/token"}
            if self.command == "POST":
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                status, facts = told.answer(form)
            self.answer(status, json.dumps(facts).encode(), "application/json")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate_path, identity.key_path)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    told = OAuth2Server(server.server_address[1])
    with serving(server):
        yield told
