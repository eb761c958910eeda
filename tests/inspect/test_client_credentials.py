"""Tokens from an OAuth2 server, which is made up by the test."""

from __future__ import annotations

import base64
import json
import traceback
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs

import httpx
import pytest

from tests.support.manual_clock import ManualClock
from tests.support.tokens import token_for
from timewheel.broker.admin.client_credentials import AHEAD_MS, PAUSE_MS, ClientCredentials
from timewheel.core.connection import OAuth2, Secret
from timewheel.core.errors import BadConnection, TokenNotGiven

ISSUER = "https://issuer.example/realm"
SECRET = "swordfish"
KEY = json.dumps({"type": "client_credentials", "client_id": "me", "client_secret": SECRET})
OAUTH2 = OAuth2(
    issuer_url=ISSUER + "/",
    private_key=Secret("data:application/json;base64," + base64.b64encode(KEY.encode()).decode()),
    audience="urn:pulsar",
)


class Server:
    """Gives numbered tokens, or what it is told to."""

    def __init__(self) -> None:
        self.asked: list[httpx.Request] = []
        self.life: object = 600
        self.token: Callable[[], str] = lambda: f"token-{len(self.posts)}"
        self.refuses: httpx.Response | None = None

    @property
    def posts(self) -> list[httpx.Request]:
        return [request for request in self.asked if request.method == "POST"]

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        if request.method == "GET":
            return httpx.Response(200, json={"token_endpoint": "https://issuer.example/give"})
        if self.refuses is not None:
            return self.refuses
        return httpx.Response(200, json={"access_token": self.token(), "expires_in": self.life})


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def credentials(server: Callable[[httpx.Request], httpx.Response], clock: ManualClock) -> ClientCredentials:
    return ClientCredentials(OAUTH2, clock=clock, transport=httpx.MockTransport(server))


def test_it_asks_as_the_flow_says(server: Server, clock: ManualClock) -> None:
    assert credentials(server, clock)() == "token-1"
    found, given = server.asked
    assert str(found.url) == f"{ISSUER}/.well-known/openid-configuration"
    assert str(given.url) == "https://issuer.example/give"
    assert given.headers["content-type"] == "application/x-www-form-urlencoded"
    assert parse_qs(given.content.decode()) == {
        "grant_type": ["client_credentials"],
        "client_id": ["me"],
        "client_secret": [SECRET],
        "audience": ["urn:pulsar"],
    }


@pytest.mark.parametrize(("life_s", "kept_ms"), [(600, 600_000 - AHEAD_MS), (10, 9_000)])
def test_a_token_is_kept_until_shortly_before_it_expires_of_a_short_life_nine_tenths(
    server: Server, clock: ManualClock, life_s: int, kept_ms: int
) -> None:
    server.life = life_s
    source = credentials(server, clock)
    source()
    clock.advance(kept_ms - 1)
    assert source() == "token-1"
    clock.advance(1)
    assert source() == "token-2"


def test_a_token_says_its_end_itself_where_the_server_does_not(server: Server, clock: ManualClock) -> None:
    server.life = None
    server.token = lambda: token_for(f"role-{len(server.posts)}", expires_s=clock.now_ms() // 1000 + 100)
    source = credentials(server, clock)
    first = source()
    clock.advance(80_000)
    assert source() == first
    clock.advance(15_000)
    assert source() != first


def test_one_without_an_end_is_asked_for_each_time(server: Server, clock: ManualClock) -> None:
    server.life = None
    source = credentials(server, clock)
    assert [source(), source()] == ["token-1", "token-2"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (httpx.Response(401, json={"error": "invalid_client", "error_description": "no"}), "401: invalid_client: no"),
        (httpx.Response(400, text=f"what is {SECRET}?"), r"what is \*\*\*\?"),
        (httpx.Response(407, text="<html>proxy, please log in</html>"), "status 407"),
        (httpx.Response(302, headers={"Location": "https://elsewhere"}), "status 302"),
        (httpx.Response(200, text="<html>proxy</html>"), "no JSON object; .* no proxy between"),
        (httpx.Response(200, json=["token"]), "no JSON object"),
        (httpx.Response(200, json={"token": "x"}), "no access_token"),
        (httpx.Response(200, json={"access_token": ""}), "no access_token"),
    ],
)
def test_a_refusal_is_one_sentence_without_the_secret(
    server: Server, clock: ManualClock, answer: httpx.Response, said: str
) -> None:
    server.refuses = answer
    with pytest.raises(TokenNotGiven, match=said) as error:
        credentials(server, clock)()
    assert error.value.issuer_url == ISSUER
    assert SECRET not in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("endpoint", ["http://issuer.example/give", "ftp://issuer.example/give", "/give"])
def test_the_secret_is_not_sent_without_tls_where_the_issuer_has_it(endpoint: str, clock: ManualClock) -> None:
    posted = []

    def told(request: httpx.Request) -> httpx.Response:
        posted.extend([request] * (request.method == "POST"))
        return httpx.Response(200, json={"token_endpoint": endpoint})

    with pytest.raises(TokenNotGiven, match="token_endpoint without TLS"):
        credentials(told, clock)()
    assert posted == []


def test_nobody_there_is_a_refusal_too(clock: ManualClock) -> None:
    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("Connection refused", request=request)

    with pytest.raises(TokenNotGiven, match="no answer: ConnectError Connection refused"):
        credentials(away, clock)()


def test_after_a_refusal_the_server_has_peace_and_then_gives(server: Server, clock: ManualClock) -> None:
    source = credentials(server, clock)
    server.refuses = httpx.Response(503)
    for _ in range(3):
        with pytest.raises(TokenNotGiven):
            source()
    assert len(server.posts) == 1
    server.refuses = None
    clock.advance(PAUSE_MS)
    assert source() == "token-2"


@pytest.mark.parametrize("form", ["path", "file:", "file://"])
def test_the_key_can_be_a_file(tmp_path: Path, server: Server, clock: ManualClock, form: str) -> None:
    file = tmp_path / "the key.json"
    file.write_text(KEY)
    key = str(file) if form == "path" else form + str(file).replace(" ", "%20")
    oauth2 = OAuth2(issuer_url=ISSUER, private_key=Secret(key))
    assert ClientCredentials(oauth2, clock=clock, transport=httpx.MockTransport(server))() == "token-1"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (SECRET, "is no JSON object with client_id and client_secret"),
        (json.dumps({"client_id": SECRET}), "is no JSON object with"),
        (json.dumps([SECRET]), "is no JSON object with"),
        (json.dumps({"client_id": "me", "client_secret": 7}), "is no JSON object with"),
    ],
)
def test_a_key_that_is_none_is_told_without_what_stands_there(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "key.json"
    file.write_text(content)
    with pytest.raises(BadConnection, match=said) as error:
        ClientCredentials(OAuth2(issuer_url=ISSUER, private_key=Secret(str(file))))
    assert SECRET not in "".join(traceback.format_exception(error.value))


@pytest.mark.parametrize("key", ["/there/is/none", "data:application/json,{}", "data:application/json;base64,%%"])
def test_a_key_that_cannot_be_read_is_told(key: str) -> None:
    with pytest.raises(BadConnection, match=r"oauth2.private_key cannot be read: (No such file|it is no base64)"):
        ClientCredentials(OAuth2(issuer_url=ISSUER, private_key=Secret(key)))
