"""What a process tells by HTTP, and what a service of systemd's says to it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from timewheel.cli.relay_processes import reporter
from timewheel.serving import JSON, LOOPBACK, Answer, HttpServer, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("0.0.0.0:8080", ("0.0.0.0", 8080)),
        (":8080", (LOOPBACK, 8080)),
        ("localhost:0", ("localhost", 0)),
        ("[::]:8080", ("::", 8080)),
        ("[::1]:65535", ("::1", 65_535)),
    ],
)
def test_an_address_is_host_and_port(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "8080", "host", "host:", "host:-1", "host:65536", "host:port", "::1:8080", "host:٣"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|brackets"):
        parse_address(text)


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    def breaks() -> Answer:
        raise RuntimeError("the password is swordfish")

    pages = {
        "/readyz": lambda: Answer(503, b'{"ready": false}', JSON),
        "/livez": lambda: Answer(200, b"alive\n"),
        "/breaks": breaks,
    }
    server = HttpServer(LOOPBACK, 0, pages)
    yield server
    server.close()


def get(server: HttpServer, path: str, method: str = "GET") -> httpx.Response:
    return httpx.request(method, f"http://{LOOPBACK}:{server.port}{path}", timeout=10, trust_env=False)


def test_a_page_answers_for_itself(server: HttpServer) -> None:
    answer = get(server, "/readyz")
    assert (answer.status_code, answer.json(), answer.headers["content-type"]) == (503, {"ready": False}, JSON)
    assert get(server, "/livez?verbose=1").text == "alive\n"


def test_head_says_the_length_without_the_body(server: HttpServer) -> None:
    answer = get(server, "/livez", "HEAD")
    assert (answer.status_code, answer.headers["content-length"], answer.content) == (200, "6", b"")


def test_another_path_is_told_which_there_are(server: HttpServer) -> None:
    answer = get(server, "/metrics")
    assert answer.status_code == 404
    assert "/breaks /livez /readyz" in answer.text


def test_a_page_that_breaks_tells_no_secret_and_the_server_lives_on(server: HttpServer) -> None:
    answer = get(server, "/breaks")
    assert (answer.status_code, answer.text) == (500, "RuntimeError\n")
    assert get(server, "/livez").status_code == 200


def test_nothing_can_be_changed(server: HttpServer) -> None:
    assert get(server, "/livez", "POST").status_code == 501


def test_a_port_that_is_taken_is_an_error(server: HttpServer) -> None:
    with pytest.raises(OSError, match="in use"):
        HttpServer(LOOPBACK, server.port, {})


def test_a_client_that_says_nothing_holds_up_nobody(server: HttpServer) -> None:
    with socket.create_connection((LOOPBACK, server.port)):
        assert get(server, "/livez").status_code == 200


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_an_ipv6_address_is_listened_on() -> None:
    server = HttpServer("::1", 0, {"/livez": lambda: Answer(200, b"alive\n")})
    try:
        assert httpx.get(f"http://[::1]:{server.port}/livez", trust_env=False).status_code == 200
    finally:
        server.close()


@pytest.mark.parametrize("form", ["path", "abstract"])
def test_all_is_well_is_said_to_the_socket_that_is_named(tmp_path: Path, form: str) -> None:
    name = str(tmp_path / "notify") if form == "path" else f"@timewheel-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(name.replace("@", "\0", 1) if form == "abstract" else name)
        systemd.settimeout(10)
        on_progress = reporter({"NOTIFY_SOCKET": name})
        for _ in range(2):
            on_progress()
            assert systemd.recv(100) == b"READY=1\nWATCHDOG=1"
    on_progress()  # nobody listens any more: no reason to end


def test_without_systemd_nothing_is_said() -> None:
    reporter({})()
