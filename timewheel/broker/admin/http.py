"""HTTP calls to the brokers' admin API, with credentials, redirects and retries."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping
from typing import Any

import httpx
from tenacity import wait_random_exponential

from timewheel.broker.admin.answers import error_of
from timewheel.broker.admin.connections import AnswerTooLarge, Connections, Tls
from timewheel.broker.admin.redirects import API, REDIRECTS, origin_of, owner_url
from timewheel.broker.admin.retrying import Repeat, attempts, may_repeat
from timewheel.client.port_probe import mistake_in
from timewheel.core.clock import Clock, SystemClock
from timewheel.core.errors import AdminError, AdminMissing, AdminUnreachable

Token = str | Callable[[], str] | None
"""A bearer token; or a function that returns the current token, called before every request so that tokens can be
renewed."""

DEFAULT_TIMEOUT_S = 30.0
"""Time-out of each step of a request (connect, send, wait for data); deleting a topic of many partitions takes
seconds."""
DEFAULT_RETRY_FOR_S = 20.0
"""A topic moves to another broker within seconds; a longer failure is for a human."""
MAX_REDIRECTS = 5
"""From the asked broker to the owner is one redirect; more happen only while the topic moves."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0


_PORTS = {"http": 80, "https": 443}
_NO_HEADER = "illegal header line"
"""Begin of h11's error for an invalid header name."""
_UNREADABLE = (
    "the answer has an invalid HTTP header: brokers up to 3.x use each message property's key as a header's name, so "
    "keys with a space or an accent cannot be read"
)


def tls_context(
    *,
    ca_path: str | None = None,
    certificate_path: str | None = None,
    key_path: str | None = None,
    key_password: str | None = None,
    validate_hostname: bool = True,
    allow_insecure: bool = False,
) -> ssl.SSLContext:
    """Build TLS settings from files; by default host names are checked, and certificates by the trusted authorities.

    Args:
        ca_path: PEM file with the authorities to trust instead of the system's.
        certificate_path: PEM file with a client certificate, for brokers that ask for it.
        key_path: PEM file with its key, unless the certificate's file holds it.
        key_password: Password of that key, if it has any.
        validate_hostname: Whether a certificate must name the host that presents it.
        allow_insecure: Whether any certificate is accepted.

    Raises:
        OSError: A file cannot be read (ssl.SSLError: it holds no certificate or key).
    """
    context = ssl.create_default_context(cafile=ca_path)
    context.check_hostname = validate_hostname and not allow_insecure
    if allow_insecure:
        context.verify_mode = ssl.CERT_NONE
    if certificate_path is not None:
        context.load_cert_chain(certificate_path, key_path, key_password)
    return context


class AdminHttp:
    """Calls to a cluster; safe to share between threads.

    A broker answers a call about a topic of another broker with a redirect to the owner. The redirect is followed here
    and not by httpx, which rightly sends no authorization to another host by itself; the owner needs it.

    Args:
        admin_url: ``http://broker:8080`` or ``https://...``; a path before ``/admin`` is kept (proxies), and all
            from there on is cut.
        token: Bearer token, or a function that returns the current token.
        tls: See `tls_context`; or a function that returns the current settings; None: the system's authorities.
        timeout_s: Seconds for each step of a request.
        retry_for_s: Seconds since a call's begin within which it may be repeated; 0: never.
        transport: An httpx transport, for tests.
        clock: Waits between attempts; None: the machine's.
        url_hint: Where the URL came from, and how to give another; errors that a wrong URL explains end with it.
    """

    def __init__(
        self,
        admin_url: str,
        *,
        token: Token = None,
        tls: Tls = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retry_for_s: float = DEFAULT_RETRY_FOR_S,
        transport: httpx.BaseTransport | None = None,
        clock: Clock | None = None,
        url_hint: str = "",
    ) -> None:
        base = httpx.URL(admin_url)
        if base.scheme not in {"http", "https"} or not base.host:
            raise ValueError(f"not an admin URL: {admin_url!r}; write it like http://broker:8080")
        if base.userinfo or base.query or base.fragment:
            raise ValueError("an admin URL has no user, query or fragment; hand credentials in as token=")
        self._base = str(base).partition(API)[0].rstrip("/").removesuffix("/admin")
        self.is_secure = base.scheme == "https"
        """True if the URL uses TLS."""
        self._url_hint = f"is the admin URL that of a broker?{f' {url_hint}' if url_hint else ''}"
        self._source_hint = url_hint
        self._has_answered = False
        self._probes = transport is None
        self._token = token
        self._retry_for_ms = int(retry_for_s * 1000)
        self._clock: Clock = clock or SystemClock()
        self._connections = Connections(tls, timeout_s=timeout_s, transport=transport)

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        repeat: Repeat | None = None,
        base: str = API,
    ) -> httpx.Response:
        """Call the broker that owns the resource, and repeat the call if that is safe.

        Args:
            method: HTTP method.
            path: Path after the base, quoted.
            query: Query parameters.
            body: Sent as JSON; None: no body is sent.
            repeat: The effect of a second call; None: READ for GET, WRITE for the others.
            base: Base of the path.

        Returns:
            A successful answer (status 2xx).

        Raises:
            AdminDenied: 401 or 403.
            AdminMissing: 404.
            AdminUnreachable: No broker answered.
            AdminError: Any other refusal.
        """
        kind = repeat or (Repeat.READ if method == "GET" else Repeat.WRITE)
        content = None if body is None else json.dumps(body).encode()
        repeated = attempts(
            self._clock,
            again=lambda error: may_repeat(kind, error),
            within_ms=self._retry_for_ms,
            pauses=wait_random_exponential(multiplier=FIRST_PAUSE_S, max=LONGEST_PAUSE_S),
        )
        return repeated(self._attempt, method, base + path, dict(query or {}), content)

    def get(self, path: str, query: Mapping[str, str] | None = None, *, base: str = API) -> Any:
        """Return the JSON of a GET; None for an empty answer (a policy that is not set).

        Raises:
            AdminError: As for `call`, and if the answer is no JSON, such as a proxy's login page.
        """
        return self.read_json(self.call("GET", path, query=query, base=base))

    def read_json(self, response: httpx.Response) -> Any:
        """Return the answer's JSON; None if the answer is empty.

        Raises:
            AdminError: The answer is no JSON.
        """
        if not response.content:
            return None
        try:
            return response.json()
        except ValueError as error:
            endpoint = f"{response.request.method} {response.request.url.path}"
            raise AdminError(response.status_code, endpoint, f"the answer is no JSON; {self._url_hint}") from error

    def make(self, path: str, *, body: Any = None) -> bool:
        """PUT a new resource; False if it exists already, perhaps from our own attempt whose answer was lost."""
        try:
            self.call("PUT", path, body=body)
        except AdminError as error:
            if error.status == httpx.codes.CONFLICT:
                return False
            raise
        return True

    def remove(self, path: str, query: Mapping[str, str] | None = None) -> bool:
        """DELETE a resource; False if it is missing, perhaps by our own attempt whose answer was lost."""
        try:
            self.call("DELETE", path, query=query)
        except AdminMissing:
            return False
        return True

    def _attempt(self, method: str, path: str, query: dict[str, str], content: bytes | None) -> httpx.Response:
        token = self._current_token()
        response = self._to_owner(method, path, query, content, token)
        if response.status_code == httpx.codes.UNAUTHORIZED and callable(self._token):
            # The token may have expired between its creation and its use; sending the same token again would not help.
            renewed = self._current_token()
            if renewed != token:
                token = renewed
                response = self._to_owner(method, path, query, content, token)
        if not response.is_success:
            raise error_of(response, f"{method} {path}", token)
        return response

    def _current_token(self) -> str | None:
        token = self._token() if callable(self._token) else self._token
        return token.strip() if token is not None else None  # token files end with a newline

    def _to_owner(
        self, method: str, path: str, query: dict[str, str], content: bytes | None, token: str | None
    ) -> httpx.Response:
        endpoint = f"{method} {path}"
        headers = {"Accept": "application/json, */*;q=0.5"}
        if content is not None:
            headers["Content-Type"] = "application/json"
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        url = httpx.URL(self._base + path, params=query) if query else httpx.URL(self._base + path)
        redirects = 0
        while True:
            try:
                response = self._connections.request(method, url, headers=headers, content=content)
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
                raise self._unreachable(endpoint, url, error, redirects, sent=False) from error
            except httpx.TransportError as error:
                if str(error).startswith(_NO_HEADER):
                    raise AdminError(httpx.codes.OK, endpoint, _UNREADABLE) from error
                raise self._unreachable(endpoint, url, error, redirects, sent=True) from error
            except AnswerTooLarge as error:
                raise AdminError(httpx.codes.OK, endpoint, f"{error}; {self._url_hint}") from error
            self._has_answered = True
            if response.status_code not in REDIRECTS:
                return response
            url = owner_url(response, url, method, endpoint)
            redirects += 1
            if redirects > MAX_REDIRECTS:
                raise AdminError(
                    response.status_code, endpoint, f"more than {MAX_REDIRECTS} redirects, the last to {origin_of(url)}"
                )

    def _unreachable(
        self, endpoint: str, url: httpx.URL, error: httpx.TransportError, redirects: int, *, sent: bool
    ) -> AdminUnreachable:
        """Describe the error with a remedy; before the first answer, a mistake in the URL explains it."""
        failed = f"{origin_of(url)} gave no answer" if sent else f"no connection to {origin_of(url)}"
        mistake = ""
        if self._probes and not (self._has_answered or redirects or isinstance(error, httpx.TimeoutException)):
            mistake = mistake_in(url.scheme, url.host, url.port or _PORTS[url.scheme])
        if mistake:
            hint = f"; {self._source_hint}" if self._source_hint else ""
            return AdminUnreachable(endpoint, f"{failed}: {mistake}{hint}", sent=sent, wrong_url=True)
        said = str(error) if isinstance(error, httpx.ConnectError) else f"{type(error).__name__} {error}"
        return AdminUnreachable(endpoint, f"{failed}: {said}{self._remedy(redirects)}", sent=sent)

    def _remedy(self, redirects: int) -> str:
        if redirects:
            return f"; {self._base} redirected there: does this host reach the web address that this broker advertises?"
        return "" if self._has_answered else f"; {self._url_hint}"
