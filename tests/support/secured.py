"""A broker with authentication, authorization, and TLS on both of its ports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.certificates import Identity, make_authority, make_identity
from tests.support.own_broker import own_broker
from tests.support.tokens import SECURED_SETTINGS
from timewheel.testing import LocalPulsar
from timewheel.testing.ports import free_ports


class Secured:
    """The broker, its TLS addresses, and its certificate authority."""

    def __init__(
        self, broker: LocalPulsar, *, tls_url: str, tls_service_url: str, authority: Identity, folder: Path
    ) -> None:
        self.broker = broker
        self.tls_url = tls_url
        self.tls_service_url = tls_service_url
        self.ca_path = authority.certificate_path
        self._authority = authority
        self._folder = folder

    def certificate_of(self, role: str) -> Identity:
        """Make a client's certificate, whose name is its role."""
        return make_identity(self._folder, self._authority, role)


@contextmanager
def secured_broker(folder: Path) -> Iterator[Secured]:
    """Start a broker with its certificates in `folder`; its tokens are those of `tests.support.tokens`."""
    authority = make_authority(folder)
    identity = make_identity(folder, authority, "broker")
    web_port, port = free_ports(2)
    config = {
        **SECURED_SETTINGS,
        "webServicePortTls": str(web_port),
        "brokerServicePortTls": str(port),
        "tlsCertificateFilePath": identity.certificate_path,
        "tlsKeyFilePath": identity.key_path,
        "tlsTrustCertsFilePath": authority.certificate_path,
    }
    with own_broker(config) as broker:
        yield Secured(
            broker,
            tls_url=f"https://127.0.0.1:{web_port}",
            tls_service_url=f"pulsar+ssl://127.0.0.1:{port}",
            authority=authority,
            folder=folder,
        )
