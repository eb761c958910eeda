"""A broker with authentication, authorization and TLS on its web service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.certificates import make_authority, make_identity
from tests.support.own_broker import own_broker
from tests.support.tokens import SECURED_SETTINGS
from timewheel.testing import LocalPulsar
from timewheel.testing.ports import free_ports

__all__ = ["Secured", "secured_broker"]


class Secured:
    """The broker, where it speaks TLS, and who vouches for it."""

    def __init__(self, broker: LocalPulsar, tls_url: str, ca_path: str) -> None:
        self.broker = broker
        self.tls_url = tls_url
        self.ca_path = ca_path


@contextmanager
def secured_broker(folder: Path) -> Iterator[Secured]:
    """Start one, its certificates in `folder`; its tokens are those of `tests.support.tokens`."""
    authority = make_authority(folder)
    identity = make_identity(folder, authority, "broker")
    (tls_port,) = free_ports(1)
    config = {
        **SECURED_SETTINGS,
        "webServicePortTls": str(tls_port),
        "tlsCertificateFilePath": identity.certificate_path,
        "tlsKeyFilePath": identity.key_path,
        "tlsTrustCertsFilePath": authority.certificate_path,
    }
    with own_broker(config) as broker:
        yield Secured(broker, f"https://127.0.0.1:{tls_port}", authority.certificate_path)
