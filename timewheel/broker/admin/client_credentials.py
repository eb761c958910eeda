"""Tokens from an OAuth2 server, for brokers and for their admin API alike.

pulsar-client has its own OAuth2 flow, and the admin API needs a flow too. Two flows would ask the server twice, and a
failure in the client's own flow ends as a bare AuthenticationError. So both use this flow, which reports the cause.
"""

from __future__ import annotations

import base64
import binascii
import json
import threading
from typing import Any

import httpx

from timewheel.broker.admin.http import Connections, Tls
from timewheel.core.clock import Clock, SystemClock
from timewheel.core.connection import HIDDEN, OAuth2, expires_ms_of
from timewheel.core.errors import BadConnection, TokenNotGiven

TIMEOUT_S = 10.0  # Time-out of each step of a request: pulsar-client's thread waits meanwhile
AHEAD_MS = 60_000
"""A token is renewed this long before it expires, or in the last tenth of its lifetime if that is shorter."""
PAUSE_MS = 5_000  # pause after a refusal: the server is not asked meanwhile, and callers get the same refusal again
LONGEST_REASON_CHARS = 200
WELL_KNOWN = "/.well-known/openid-configuration"


class ClientCredentials:
    """Returns the current token, requested once and again shortly before it expires; for any number of threads.

    Args:
        oauth2: The issuer, the credentials, and the audience and scope to request.
        tls: TLS settings, or a function that returns the current settings; None: the system's authorities.
        clock: Decides whether a token is about to expire.
        transport: An httpx transport, for tests.

    Raises:
        BadConnection: The credentials cannot be read.
    """

    def __init__(
        self,
        oauth2: OAuth2,
        *,
        tls: Tls = None,
        clock: Clock | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._issuer_url = oauth2.issuer_url.rstrip("/")
        self._client_id, self._client_secret = _credentials(oauth2)
        optional = {"audience": oauth2.audience, "scope": oauth2.scope}
        self._asks_for = {name: value for name, value in optional.items() if value is not None}
        self._clock = clock or SystemClock()
        self._http = Connections(tls, timeout_s=TIMEOUT_S, transport=transport)
        self._lock = threading.Lock()
        self._token = ""
        self._renew_at_ms = 0
        self._refused: TokenNotGiven | None = None
        self._ask_again_at_ms = 0

    def __call__(self) -> str:
        """Return the current token. TokenNotGiven: the server returned no token."""
        with self._lock:
            now_ms = self._clock.now_ms()
            if now_ms < self._renew_at_ms:
                return self._token
            if self._refused is not None and now_ms < self._ask_again_at_ms:
                raise self._refused
            try:
                self._token, life_ms = self._asked()
            except TokenNotGiven as error:
                self._refused, self._ask_again_at_ms = error, now_ms + PAUSE_MS
                raise
            self._refused = None
            self._renew_at_ms = now_ms + life_ms - min(AHEAD_MS, life_ms // 10)
            return self._token

    def close(self) -> None:
        """Close the connections to the server."""
        self._http.close()

    def _asked(self) -> tuple[str, int]:
        """Request a new token; return it with its lifetime in milliseconds."""
        told = self._json(self._request("GET", self._issuer_url + WELL_KNOWN))
        endpoint = told.get("token_endpoint")
        if not isinstance(endpoint, str):
            raise TokenNotGiven(self._issuer_url, f"{WELL_KNOWN} names no token_endpoint")
        if _has_tls(self._issuer_url) and not _has_tls(endpoint):
            reason = f"{WELL_KNOWN} names a token_endpoint without TLS; the client's secret is not sent in the clear"
            raise TokenNotGiven(self._issuer_url, reason)
        form = {
            "grant_type": "client_credentials",
            "client_id": self._client_id,
            "client_secret": self._client_secret,
            **self._asks_for,
        }
        told = self._json(self._request("POST", endpoint, form))
        token = told.get("access_token")
        if not isinstance(token, str) or not token:
            raise TokenNotGiven(self._issuer_url, "its answer holds no access_token")
        return token, self._life_ms(token, told.get("expires_in"))

    def _life_ms(self, token: str, expires_in_s: object) -> int:
        if isinstance(expires_in_s, int | float) and not isinstance(expires_in_s, bool) and expires_in_s > 0:
            return int(expires_in_s * 1000)
        expires_ms = expires_ms_of(token)
        # A token without an expiry time is requested again at every connect.
        return 0 if expires_ms is None else max(expires_ms - self._clock.now_ms(), 0)

    def _request(self, method: str, url: str, form: dict[str, str] | None = None) -> httpx.Response:
        try:
            response = self._http.request(method, url, data=form, headers={"Accept": "application/json"})
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise TokenNotGiven(self._issuer_url, f"no answer: {type(error).__name__} {error}") from error
        if not response.is_success:
            raise TokenNotGiven(self._issuer_url, f"status {response.status_code}: {self._reason_of(response)}")
        return response

    def _reason_of(self, response: httpx.Response) -> str:
        try:
            told = response.json()
            words = [told[name] for name in ("error", "error_description") if name in told]
            reason = ": ".join(map(str, words)) or response.text
        except (ValueError, TypeError):
            reason = response.text
        # A server may repeat the request, and with it the secret.
        return " ".join(reason.replace(self._client_secret, HIDDEN).split())[:LONGEST_REASON_CHARS]

    def _json(self, response: httpx.Response) -> dict[str, Any]:
        try:
            told = response.json()
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise TokenNotGiven(
                self._issuer_url, "its answer is no JSON object; is the URL that of the issuer, and no proxy between?"
            )
        return told


def _has_tls(url: str) -> bool:
    return url.lower().startswith("https://")


def _credentials(oauth2: OAuth2) -> tuple[str, str]:
    """Read id and secret of the client; no error message repeats the content."""
    try:
        text = _content_of(oauth2)
    except (OSError, ValueError, binascii.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is no base64 or no UTF-8"
        raise BadConnection("oauth2.private_key", f"cannot be read: {reason}") from None
    try:
        told = json.loads(text)
        found = told["client_id"], told["client_secret"]
    except (ValueError, TypeError, KeyError):
        found = (None, None)
    client_id, client_secret = found
    if not isinstance(client_id, str) or not isinstance(client_secret, str) or not client_secret:
        raise BadConnection("oauth2.private_key", "is no JSON object with client_id and client_secret")
    return client_id, client_secret


def _content_of(oauth2: OAuth2) -> str:
    if oauth2.key_file is not None:
        return oauth2.key_file.read_text(encoding="utf-8")
    head, comma, content = oauth2.private_key.reveal().partition(",")
    if not comma or not head.endswith(";base64"):
        raise ValueError
    return base64.b64decode(content, validate=True).decode()
