"""How clients reach a cluster and who they are there: one value, whoever makes a client of it.

It comes in layers: options of a command, environment, a file, defaults. Its fields are named as the arguments of
``pulsar.Client`` and of ``pulsar.AuthenticationOauth2``. No message about it repeats a value, which may be a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from timewheel.core.errors import BadConnection
from timewheel.core.secret import Secret

__all__ = ["DEFAULTS", "Connection", "OAuth2", "connection_of_environment"]

SERVICE_SCHEMES = ("pulsar", "pulsar+ssl")
WEB_SCHEMES = ("http", "https")
_AUTHENTICATION = ("token", "token_file", "oauth2")
_IDENTITY = ("tls_certificate_file_path", "tls_private_key_file_path")
_FILES = ("token_file", "tls_trust_certs_file_path", *_IDENTITY)
_SWITCHES = ("tls_validate_hostname", "tls_allow_insecure_connection")


def _check_url(name: str, url: str, schemes: tuple[str, ...]) -> None:
    try:
        parts = urlsplit(url)
        host, has_user = parts.hostname, parts.username is not None
        _ = parts.port  # raises for one that is none
    except ValueError as error:
        raise BadConnection(name, "is no URL") from error
    if parts.scheme not in schemes or not host:
        raise BadConnection(name, f"must begin with {' or '.join(f'{scheme}://' for scheme in schemes)} and a host")
    if schemes == WEB_SCHEMES and (parts.query or parts.fragment):
        raise BadConnection(name, "has a query or a fragment")
    if has_user:
        raise BadConnection(name, "has a user in it; give a token, OAuth2 or a certificate instead")


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuth2:
    """The flow of client credentials.

    Args:
        issuer_url: Of the authorization server, which tells under ``/.well-known/openid-configuration`` where it gives
            tokens.
        private_key: A JSON file with ``client_id`` and ``client_secret``: its path, ``file://`` and its path, or
            ``data:application/json;base64,`` and its content.
        audience: What the token is for, where the server asks for that.
        scope: The same.
    """

    issuer_url: str
    private_key: Secret
    audience: str | None = None
    scope: str | None = None

    def __post_init__(self) -> None:
        _check_url("oauth2.issuer_url", self.issuer_url, WEB_SCHEMES)

    @property
    def key_file(self) -> Path | None:
        """The file of the private key; None: the key holds its content itself."""
        key = self.private_key.reveal()
        if key.startswith("data:"):
            return None
        return Path(unquote(urlsplit(key).path)) if key.startswith("file:") else Path(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """One layer of it, or all of them together; None: this layer says nothing.

    Args:
        service_url: Where the brokers are: ``pulsar://host:6650`` or, with TLS, ``pulsar+ssl://host:6651``.
        admin_url: Web service of any broker: ``http://host:8080`` or ``https://host:8443``.
        token: Shown to brokers; one of `token`, `token_file` and `oauth2`.
        token_file: A file with it, read at every connect.
        oauth2: Who gives it.
        tls_trust_certs_file_path: PEM file with the authorities to trust instead of the system's.
        tls_certificate_file_path: PEM file with a client certificate. Without a token it says who the client is.
        tls_private_key_file_path: PEM file with its key; None: the certificate's file holds both.
        tls_validate_hostname: Whether a certificate must name the host that shows it.
        tls_allow_insecure_connection: Whether any certificate will do.

    Raises:
        BadConnection: It contradicts itself, or an URL is none.
    """

    service_url: str | None = None
    admin_url: str | None = None
    token: Secret | None = None
    token_file: Path | None = None
    oauth2: OAuth2 | None = None
    tls_trust_certs_file_path: Path | None = None
    tls_certificate_file_path: Path | None = None
    tls_private_key_file_path: Path | None = None
    tls_validate_hostname: bool | None = None
    tls_allow_insecure_connection: bool | None = None

    def __post_init__(self) -> None:
        if self.service_url is not None:
            # pulsar-client takes several hosts behind one scheme.
            _check_url("service_url", self.service_url.partition(",")[0], SERVICE_SCHEMES)
        if self.admin_url is not None:
            _check_url("admin_url", self.admin_url, WEB_SCHEMES)
        given = [name for name in _AUTHENTICATION if getattr(self, name) is not None]
        if len(given) > 1:
            raise BadConnection(given[0], f"give one of {', '.join(_AUTHENTICATION)}, not {' and '.join(given)}")
        if self.tls_private_key_file_path is not None and self.tls_certificate_file_path is None:
            raise BadConnection("tls_private_key_file_path", "needs tls_certificate_file_path beside it")

    def over(self, lower: Connection) -> Connection:
        """This layer, and what it leaves open taken from a lower one.

        Who a client is comes from one layer alone: a token replaces the lower layers' OAuth2, and a certificate their
        key.

        Args:
            lower: The layer that counts for less.
        """
        taken = {field.name: getattr(lower, field.name) for field in fields(self) if getattr(self, field.name) is None}
        for group in (_AUTHENTICATION, _IDENTITY):
            if any(getattr(self, name) is not None for name in group):
                taken = {name: value for name, value in taken.items() if name not in group}
        return replace(self, **taken)


DEFAULTS = Connection(
    service_url="pulsar://localhost:6650",
    admin_url="http://localhost:8080",
    tls_validate_hostname=True,
    tls_allow_insecure_connection=False,
)
"""The lowest layer."""


def connection_of_environment(environment: Mapping[str, str]) -> Connection:
    """The layer of the variables ``PULSAR_`` and a field's name in capitals, ``PULSAR_OAUTH2_`` for those of `OAuth2`.

    Args:
        environment: A variable that is empty is as one that is not set.

    Raises:
        BadConnection: As `Connection`; or a switch is neither ``true`` nor ``false``.
    """

    def said(name: str) -> str | None:
        return environment.get(f"PULSAR_{name.upper()}") or None

    token = said("token")
    paths: dict[str, Any] = {name: None if (path := said(name)) is None else Path(path) for name in _FILES}
    switches: dict[str, Any] = {name: _switch(name, said(name)) for name in _SWITCHES}
    return Connection(
        service_url=said("service_url"),
        admin_url=said("admin_url"),
        token=None if token is None else Secret(token),
        oauth2=_oauth2({field.name: said(f"oauth2_{field.name}") for field in fields(OAuth2)}),
        **paths,
        **switches,
    )


def _oauth2(given: Mapping[str, str | None]) -> OAuth2 | None:
    if not any(given.values()):
        return None
    issuer_url, private_key = given["issuer_url"], given["private_key"]
    if issuer_url is None or private_key is None:
        raise BadConnection("oauth2", "needs both issuer_url and private_key")
    return OAuth2(
        issuer_url=issuer_url, private_key=Secret(private_key), audience=given["audience"], scope=given["scope"]
    )


def _switch(name: str, text: str | None) -> bool | None:
    if text is None:
        return None
    if text.lower() not in {"true", "false"}:
        raise BadConnection(name, "is neither true nor false")
    return text.lower() == "true"
