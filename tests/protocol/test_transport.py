"""Real sockets on this machine: time-outs are kept, names are checked, and every failure is one of ours."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.certificates import Identity, make_authority, make_identity
from timewheel.broker.admin.http import tls_context
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.errors import BrokerLost, BrokerSilent, FrameTooLarge
from timewheel.broker.protocol.session import Address, Authentication, Session, SocketTransport
from timewheel.core.clock import SystemClock

TIMEOUT_MS = 10_000  # for what should come; nothing waits for its end


@contextmanager
def listening(serve: Callable[[socket.socket], None], tls: ssl.SSLContext | None = None) -> Iterator[Address]:
    """A server of one connection, which ends when its client does."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            try:
                connection, _ = server.accept()
                with connection if tls is None else tls.wrap_socket(connection, server_side=True) as talking:
                    serve(talking)
            except OSError:
                pass  # the client is gone, or did not like the certificate

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield Address("127.0.0.1", server.getsockname()[1])
    thread.join(20)
    assert not thread.is_alive()


def drained(connection: socket.socket) -> None:
    """Take all that comes, until the client is gone."""
    while connection.recv(1 << 16):
        pass


def server_tls(identity: Identity, client_authority: Identity | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(identity.certificate_path, identity.key_path)
    if client_authority is not None:
        context.load_verify_locations(client_authority.certificate_path)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return make_authority(tmp_path_factory.mktemp("authority"))


def open_to(address: Address, tls: ssl.SSLContext | None = None) -> SocketTransport:
    return SocketTransport(address, tls=tls, timeout_ms=TIMEOUT_MS)


def test_bytes_go_both_ways() -> None:
    def echo(connection: socket.socket) -> None:
        connection.sendall(connection.recv(100).upper())
        drained(connection)

    with listening(echo) as address:
        transport = open_to(address)
        transport.send(b"hello", TIMEOUT_MS)
        assert transport.receive(TIMEOUT_MS) == b"HELLO"
        transport.close()


def test_silence_is_nothing_and_no_error() -> None:
    with listening(drained) as address:
        transport = open_to(address)
        assert [transport.receive(1), transport.receive(0)] == [b"", b""]
        transport.close()


def test_the_other_sides_end_is_told() -> None:
    with listening(lambda _: None) as address:
        transport = open_to(address)
        with pytest.raises(BrokerLost, match=f"no connection to {address}: it was closed by the other side"):
            transport.receive(TIMEOUT_MS)
        transport.close()


def test_whoever_takes_nothing_is_given_up_in_time() -> None:
    over = threading.Event()

    def take_nothing(_: socket.socket) -> None:
        over.wait(20)

    with listening(take_nothing) as address:
        transport = open_to(address)
        with pytest.raises(BrokerLost, match="it did not answer in time"):
            transport.send(b"x" * (64 << 20), 100)  # more than any buffer on the way
        transport.close()
        over.set()


def test_where_nobody_listens_the_remedy_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Address("127.0.0.1", server.getsockname()[1])
    with pytest.raises(BrokerLost, match="is a broker there, and is this its own port"):
        open_to(address)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 70 + ".invalid", "a..b"])
def test_a_host_that_is_none_is_one_of_our_errors(host: str) -> None:
    with pytest.raises(BrokerLost):
        open_to(Address(host, 1))


def test_a_certificate_must_name_the_host(authority: Identity, tmp_path: Path) -> None:
    trusting = tls_context(ca_path=authority.certificate_path)
    right = make_identity(tmp_path, authority, "right")
    with listening(drained, server_tls(right)) as address:
        open_to(address, trusting).close()

    wrong = make_identity(tmp_path, authority, "wrong", "DNS:elsewhere.example")
    with (
        listening(drained, server_tls(wrong)) as address,
        pytest.raises(BrokerLost, match="use a host that its certificate names") as refused,
    ):
        open_to(address, trusting)
    assert isinstance(refused.value.__cause__, ssl.SSLCertVerificationError)

    unchecked = tls_context(ca_path=authority.certificate_path, validate_hostname=False)
    with listening(drained, server_tls(wrong)) as address:
        open_to(address, unchecked).close()


def test_an_unknown_authority_is_not_trusted(authority: Identity, tmp_path: Path) -> None:
    identity = make_identity(tmp_path, authority, "broker")
    with listening(drained, server_tls(identity)) as address, pytest.raises(BrokerLost, match="trust its authority"):
        open_to(address, tls_context())


def test_a_client_without_the_certificate_that_is_asked_for_is_told(authority: Identity, tmp_path: Path) -> None:
    identity = make_identity(tmp_path, authority, "broker")
    client = make_identity(tmp_path, authority, "client")
    shows = tls_context(
        ca_path=authority.certificate_path, certificate_path=client.certificate_path, key_path=client.key_path
    )
    with listening(drained, server_tls(identity, authority)) as address:
        transport = open_to(address, shows)
        assert transport.receive(1) == b""
        transport.close()
    with listening(drained, server_tls(identity, authority)) as address, pytest.raises(BrokerLost):
        # TLS 1.3 tells it with the first bytes, so that connecting succeeds.
        Session(
            open_to(address, tls_context(ca_path=authority.certificate_path)), Authentication(), clock=SystemClock()
        ).close()


def test_tls_to_a_plain_port_ends_with_the_remedy() -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(1_000)
        connection.sendall(b"\x00\x00\x00\x0anot TLS at all")

    with listening(answer) as address, pytest.raises(BrokerLost, match="does it speak TLS at this port"):
        open_to(address, tls_context())


@pytest.mark.parametrize(
    ("answer", "said"),
    [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "use the service URL"), (b"\x15\x03\x03\x00\x02\x02\x46", "pulsar.ssl")],
)
def test_plain_to_a_web_service_or_to_tls_says_what_it_found(answer: bytes, said: str) -> None:
    def serve(connection: socket.socket) -> None:
        connection.sendall(answer)
        drained(connection)

    with listening(serve) as address, pytest.raises(FrameTooLarge, match=said):
        Dialer(f"pulsar://{address}").reach("persistent://public/default/t")


def test_a_broker_that_accepts_and_says_nothing_is_given_up_in_time() -> None:
    with listening(drained) as address, pytest.raises(BrokerSilent, match="answer to CONNECT within 50 ms"):
        Session(open_to(address), Authentication(), clock=SystemClock(), connect_ms=50)


def test_a_broker_that_never_stops_talking_nonsense_is_given_up_in_time() -> None:
    """Each command is passed over, and none of them is what is waited for."""
    unknown = b"\x00\x00\x00\x07\x00\x00\x00\x03\x08\xc8\x01"

    def babble(connection: socket.socket) -> None:
        while True:
            connection.sendall(unknown * 100)

    with listening(babble) as address, pytest.raises(BrokerSilent):
        Session(open_to(address), Authentication(), clock=SystemClock(), connect_ms=200)
