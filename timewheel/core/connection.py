"""Connection settings: addresses of a cluster, and the identity of its clients, for every kind of client.

The settings come in layers: options of a command, environment, a file, defaults. Fields are named like the arguments
of ``pulsar.Client`` and ``pulsar.AuthenticationOauth2``. No error message repeats a value, which may be a secret.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from timewheel.core.envelope import MAX_TIME_MS
from timewheel.core.errors import BadConnection

HIDDEN = "***"  # placeholder that is shown instead of a secret


class Secret:
    """Holds a secret. Only `reveal` returns it, so that every use can be found in the code."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the secret itself, to send it to its server."""
        return self._text

    def __repr__(self) -> str:
        return f"Secret({HIDDEN})"

    def __str__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))


SERVICE_SCHEMES = ("pulsar", "pulsar+ssl")
WEB_SCHEMES = ("http", "https")
_AUTHENTICATION = ("token", "token_file", "oauth2")
_IDENTITY = ("tls_certificate_file_path", "tls_private_key_file_path")
FILES = ("token_file", "tls_trust_certs_file_path", *_IDENTITY)
_SWITCHES = ("tls_validate_hostname", "tls_allow_insecure_connection")
_URLS = ("service_url", "admin_url")


def urls_of(url: str) -> tuple[str, ...]:
    """Return a URL for each host of one like ``http://one:8080,two:8080/path``, each host once."""
    scheme, mark, rest = url.partition("://")
    hosts, slash, path = rest.partition("/")
    return tuple(dict.fromkeys(f"{scheme}{mark}{host}{slash}{path}" for host in hosts.split(",")))


def _check_urls(name: str, url: str, schemes: tuple[str, ...]) -> None:
    if url.count("://") > 1:
        raise BadConnection(name, "has a second scheme in it; write several hosts behind one, as in scheme://one,two")
    for one in urls_of(url):
        _check_url(name, one, schemes)


def _check_url(name: str, url: str, schemes: tuple[str, ...]) -> None:
    try:
        parts = urlsplit(url)
        host, has_user = parts.hostname, parts.username is not None
        _ = parts.port  # raises if the port is invalid
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
    """OAuth2 with the client credentials flow."""

    # URL of the authorization server, which names its token endpoint under `/.well-known/openid-configuration`
    issuer_url: str
    # a JSON file with `client_id` and `client_secret`: its path, `file://` and its path, or
    # `data:application/json;base64,` and its content
    private_key: Secret
    audience: str | None = None  # audience of the token, if the server requires an audience
    scope: str | None = None  # scope of the token, if the server requires a scope

    def __post_init__(self) -> None:
        _check_url("oauth2.issuer_url", self.issuer_url, WEB_SCHEMES)

    @property
    def key_file(self) -> Path | None:
        """File of the private key; None: `private_key` holds the key itself."""
        key = self.private_key.reveal()
        if key.startswith("data:"):
            return None
        return Path(unquote(urlsplit(key).path)) if key.startswith("file:") else Path(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """One layer of the connection settings, or all layers together; None: the layer leaves the field open.
    `BadConnection`: the settings contradict each other, or a URL is not valid.
    """

    service_url: str | None = None  # brokers: `pulsar://host:6650` or, with TLS, `pulsar+ssl://host:6651`
    # web services of brokers: `http://one:8080,two:8080` or, with TLS, `https://one:8443,two:8443`; one is asked, and
    # the next if it gives no answer
    admin_url: str | None = None
    token: Secret | None = None  # token for the brokers. Only one of `token`, `token_file` and `oauth2` may be given.
    token_file: Path | None = None  # file with the token, read at every connect
    oauth2: OAuth2 | None = None  # authorization server that issues the token
    tls_trust_certs_file_path: Path | None = None  # PEM file with the authorities to trust instead of the system's
    # PEM file with a client certificate. It identifies the client if no token is given.
    tls_certificate_file_path: Path | None = None
    # PEM file with the certificate's key; None: the certificate's file holds both
    tls_private_key_file_path: Path | None = None
    tls_validate_hostname: bool | None = None  # require that a certificate names the host that presents it
    tls_allow_insecure_connection: bool | None = None  # accept any certificate
    # the option, variable or file that gave a URL, by field; errors name it
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if self.service_url is not None:
            _check_urls("service_url", self.service_url, SERVICE_SCHEMES)
        if self.admin_url is not None:
            _check_urls("admin_url", self.admin_url, WEB_SCHEMES)
        given = [name for name in _AUTHENTICATION if getattr(self, name) is not None]
        if len(given) > 1:
            raise BadConnection(given[0], f"give one of {', '.join(_AUTHENTICATION)}, not {' and '.join(given)}")
        if self.tls_private_key_file_path is not None and self.tls_certificate_file_path is None:
            raise BadConnection("tls_private_key_file_path", "needs tls_certificate_file_path beside it")

    def over(self, lower: Connection) -> Connection:
        """Return this layer, with its open fields taken from a lower layer.

        A client's identity comes from one layer alone: a token replaces OAuth2 of the lower layers, and a certificate
        replaces their key.
        """
        taken = {field.name: getattr(lower, field.name) for field in fields(self) if getattr(self, field.name) is None}
        for group in (_AUTHENTICATION, _IDENTITY):
            if any(getattr(self, name) is not None for name in group):
                taken = {name: value for name, value in taken.items() if name not in group}
        sources = {name: source for name, source in lower.sources.items() if name in taken}
        return replace(self, **taken, sources={**sources, **self.sources})

    def given_by(self, source: Callable[[str], str]) -> Connection:
        """Return this layer, with the source of its URLs."""
        return replace(self, sources={name: source(name) for name in _URLS if getattr(self, name) is not None})

    def is_given(self, url: str) -> bool:
        """Return whether a URL comes from a layer above the defaults."""
        return url in self.sources or getattr(self, url) not in (None, getattr(DEFAULTS, url))


DEFAULTS = Connection(
    service_url="pulsar://localhost:6650",
    admin_url="http://localhost:8080",
    tls_validate_hostname=True,
    tls_allow_insecure_connection=False,
)
"""Lowest layer."""


def connection_of_environment(environment: Mapping[str, str]) -> Connection:
    """Build the layer of the variables ``PULSAR_<FIELD>``, and ``PULSAR_OAUTH2_<FIELD>`` for the fields of `OAuth2`. An
    empty variable counts as unset. `BadConnection`: the settings are refused, or a switch is neither ``true`` nor
    ``false``.
    """

    def variable(name: str) -> str:
        return f"PULSAR_{name.upper().replace('.', '_')}"

    def given(name: str) -> str | None:
        return environment.get(variable(name)) or None

    with named_by(variable):
        found: dict[str, Any] = {name: given(name) for name in _URLS}
        found |= {name: Path(path) for name in FILES if (path := given(name))}
        found |= {name: _switch(name, text) for name in _SWITCHES if (text := given(name))}
        if token := given("token"):
            found["token"] = Secret(token)
        oauth2 = {field.name: text for field in fields(OAuth2) if (text := given(f"oauth2_{field.name}"))}
        if oauth2:
            if not {"issuer_url", "private_key"} <= oauth2.keys():
                raise BadConnection("oauth2", "needs both issuer_url and private_key")
            found["oauth2"] = oauth2_of(oauth2)
        return Connection(**found).given_by(variable)


def oauth2_of(given: Mapping[str, Any]) -> OAuth2:
    """Build the settings from texts by field; `private_key` becomes a secret."""
    return OAuth2(**{**given, "private_key": Secret(given["private_key"])})


@contextmanager
def named_by(source: Callable[[str], str]) -> Iterator[None]:
    """Let errors of settings name the place where the user gave them."""
    try:
        yield
    except BadConnection as error:
        raise BadConnection(source(error.field), error.problem) from None


def _switch(name: str, text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise BadConnection(name, "is neither true nor false")
    return text.lower() == "true"


def role_of(token: str | None) -> str | None:
    """Return the role that a token claims; None if it claims no role, or is not a JSON web token.

    Claims are unverified: for messages to people, never for a decision.
    """
    role = _claims_of(token).get("sub")
    return role if isinstance(role, str) else None


def expires_ms_of(token: str | None) -> int | None:
    """Return when a token expires, UTC milliseconds; None if not before the year 9999, or if it is no web token."""
    expires_s = _claims_of(token).get("exp")
    if isinstance(expires_s, bool) or not isinstance(expires_s, int | float):
        return None
    return int(expires_s * 1000) if 0 <= expires_s <= MAX_TIME_MS / 1000 else None


def _claims_of(token: str | None) -> dict[str, Any]:
    parts = (token or "").split(".")
    if len(parts) != 3:
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}
