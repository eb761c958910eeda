"""HTTP calls to the brokers' admin API, with credentials, redirects, retries and a change of the asked host."""

from __future__ import annotations

import datetime as dt
import functools
import json
import math
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote

import httpcore
import httpx
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential
from tenacity.wait import WaitBaseT

from timewheel.client.port_probe import mistake_in
from timewheel.core.clock import Clock, SystemClock, pause
from timewheel.core.connection import expires_ms_of, role_of, urls_of
from timewheel.core.errors import (
    OWNER_DIED,
    AdminDenied,
    AdminError,
    AdminMissing,
    AdminUnreachable,
    OwnerUnreachable,
)

MAX_REASON_CHARACTERS = 400  # limit of a reason in an error: brokers put whole Java stack traces into it


T = TypeVar("T")


def asked(call: Callable[[], T], refused: Callable[[AdminError], object]) -> T | None:
    """Return the result of a call; None if its subject does not exist, or if the broker refuses.

    Args:
        call: Reads from the broker.
        refused: Called with a refusal.

    Raises:
        AdminUnreachable: No broker answers.
    """
    try:
        return call()
    except AdminMissing:
        return None
    except AdminUnreachable:
        raise
    except AdminError as error:
        refused(error)
        return None


def error_of(response: httpx.Response, endpoint: str, token: str | None) -> AdminError:
    """Return the error that a refusing answer stands for; of a token its role and expiry are shown, never itself."""
    reason = _reason(response)
    match response.status_code:
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
            return AdminDenied(response.status_code, endpoint, f"{reason}; {_who(token)}; {_needed(endpoint)}")
        case HTTPStatus.NOT_FOUND:
            return AdminMissing(response.status_code, endpoint, reason)
        case _:
            return AdminError(response.status_code, endpoint, reason)


def _reason(response: httpx.Response) -> str:
    """Extract the broker's reason; of a stack trace only its message, of an HTML page nothing."""
    text = response.text.strip()
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if isinstance(said, dict) and isinstance(said.get("reason"), str):
        text = said["reason"].strip()
    elif text.startswith("<"):
        text = ""
    _, _, message = text.partition("\nMessage: ")
    words = " ".join((message.partition("\n\nStacktrace")[0] or text).split())
    if not words:
        words = response.reason_phrase or "no reason was given"
    return words if len(words) <= MAX_REASON_CHARACTERS else f"{words[:MAX_REASON_CHARACTERS]}..."


def _who(token: str | None) -> str:
    if token is None:
        return "no token was sent"
    role, expires_ms = role_of(token), expires_ms_of(token)
    who = "the token names no role" if role is None else f"the token's role is {role!r}"
    if expires_ms is None:
        return who
    return f"{who}, valid until {dt.datetime.fromtimestamp(expires_ms / 1000, dt.UTC):%Y-%m-%d %H:%M:%SZ}"


def _needed(endpoint: str) -> str:
    path = endpoint.partition("/admin/v2/")[2]
    if path.startswith(("brokers", "clusters", "tenants")):
        return "this call needs a superuser (superUserRoles of the broker)"
    parts = path.split("/")
    tenant = parts[1] if len(parts) > 1 else "?"
    return f"this call needs an admin of tenant {tenant!r} or a superuser"


API: Final = "/admin/v2"
LOOKUP: Final = "/lookup/v2/topic"
_KEEPS_METHOD: Final = frozenset({307, 308})
REDIRECTS: Final = _KEEPS_METHOD | {301, 302, 303}


def owner_url(response: httpx.Response, asked: httpx.URL, method: str, endpoint: str) -> httpx.URL:
    """Return the target of a redirect, if the token may go there.

    Raises:
        AdminError: It leads out of HTTP, from HTTPS down to HTTP, to another call, or would turn a write into a read.
    """
    status = response.status_code
    if status not in _KEEPS_METHOD and method != "GET":
        raise AdminError(status, endpoint, f"a redirect that does not keep {method}; is a proxy in between?")
    url = asked.join(response.headers.get("Location", ""))  # httpx has already refused a malformed location
    if "Location" not in response.headers or url.scheme not in {"http", "https"} or not url.host or url.userinfo:
        raise AdminError(status, endpoint, f"a redirect to {origin_of(url)}, which is no broker's address")
    if asked.scheme == "https" and url.scheme == "http":
        raise AdminError(
            status,
            endpoint,
            f"a redirect from HTTPS down to {origin_of(url)}; the credentials are not sent in the clear",
        )
    if _call_of(url) != _call_of(asked):
        raise AdminError(status, endpoint, f"a redirect at {origin_of(url)} to another call; is a proxy in between?")
    return url


def _call_of(url: httpx.URL) -> tuple[list[str], Counter[tuple[str, str]]]:
    """Return the call in a URL, without its origin: a proxy may have a prefix of its own before the path of the admin
    API, and brokers add to the query that they looked up the owner.
    """
    path, _, query = url.raw_path.decode("ascii", "replace").partition("?")
    _, mark, call = path.partition(API)
    segments = [unquote(part) for part in (call if mark else path).split("/")]
    return segments, Counter((name, value) for name, value in parse_qsl(query, True) if name != "authoritative")


def origin_of(url: httpx.URL) -> str:
    """Return scheme, host and port; never a user or a password."""
    return f"{url.scheme}://{url.netloc.decode('ascii', 'replace').rpartition('@')[2]}"


class Repeat(Enum):
    """Effect of a second call after a first call whose outcome is unknown."""

    READ = "changes nothing"
    WRITE = "leaves what the first would have left"
    NEVER = "adds to what the first did"


class _NoAnswer(Enum):
    NOT_SENT = "no connection was made"
    UNKNOWN = "the connection broke or timed out after the call was sent"


# 503: the broker does not own the topic yet, or is starting. 429: refused before processing. 502 and 504 come from a
# proxy. 500 answers a write that may be half done, and reads while a topic moves.
# Never: 401, 403, 404, 409 and 412, which concern the call itself.
_REPEATED: Mapping[Repeat, frozenset[int | _NoAnswer]] = {
    Repeat.READ: frozenset({_NoAnswer.NOT_SENT, _NoAnswer.UNKNOWN, 429, 500, 502, 503, 504}),
    Repeat.WRITE: frozenset({_NoAnswer.NOT_SENT, _NoAnswer.UNKNOWN, 429, 502, 503, 504}),
    Repeat.NEVER: frozenset({_NoAnswer.NOT_SENT, 429}),
}


def may_repeat(repeat: Repeat, error: BaseException) -> bool:
    """Return whether a call that ended with this error may be repeated at once."""
    outcome: int | _NoAnswer | None = None
    if isinstance(error, AdminUnreachable | OwnerUnreachable):
        if not (isinstance(error, AdminUnreachable) and error.wrong_url):
            outcome = _NoAnswer.UNKNOWN if error.sent else _NoAnswer.NOT_SENT
    elif isinstance(error, AdminError):
        outcome = error.status
    return outcome in _REPEATED[repeat]


def attempts(clock: Clock, *, again: Callable[[BaseException], bool], within_ms: int, pauses: WaitBaseT) -> Retrying:
    """Build a retry loop that uses a clock: no attempt begins later than ``within_ms`` from now; 0: only one."""
    last_begin_ms = clock.monotonic_ms() + within_ms

    def too_late(state: RetryCallState) -> bool:
        return clock.monotonic_ms() + state.upcoming_sleep * 1000 >= last_begin_ms

    return Retrying(
        retry=retry_if_exception(again),
        stop=too_late,
        wait=pauses,
        sleep=lambda pause_s: pause(clock, round(pause_s * 1000)),
        reraise=True,
    )


MAX_ANSWER_BYTES = 256 << 20
"""Limit of an answer after decompression: larger than the largest entry and the longest list of topics in use, small
enough not to exhaust a process's memory."""
_OF_THE_WAY = frozenset({b"content-encoding", b"transfer-encoding"})  # headers that no longer apply once a body is read

Tls = ssl.SSLContext | Callable[[], ssl.SSLContext] | None
"""TLS settings; or a function that returns the current settings, called before every request; None: the system's
authorities."""


SWITCH_S = 1.0
"""With several hosts: a host that was silent for this long, and then gives no answer to a trivial call for as long
again, is left for the next one. A connection may take both together."""
_TRIVIAL_CALL = f"{API}/brokers/version"


class _WatchedStream(httpcore.NetworkStream):
    """A connection whose host is asked, while an answer is awaited, whether it answers at all.

    A frozen broker accepts connections and is silent, as a broker is that works on a long call. So a silence alone
    ends no call, unless the host is silent to everybody.
    """

    def __init__(self, stream: httpcore.NetworkStream, url: str, answers: Callable[[str], bool]) -> None:
        self._stream = stream
        self._url = url
        self._answers = answers

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        looks = math.inf if timeout is None else timeout / SWITCH_S
        while True:
            try:
                return self._stream.read(max_bytes, SWITCH_S)
            except httpcore.ReadTimeout:
                looks -= 1
                if looks <= 0 or not self._answers(self._url):
                    raise

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, timeout)

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        secure = self._stream.start_tls(ssl_context, server_hostname, timeout)
        return _WatchedStream(secure, self._url.replace("http:", "https:"), self._answers)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _WatchedNetwork(httpcore.SyncBackend):
    """Makes connections that are watched."""

    def __init__(self, answers: Callable[[str], bool]) -> None:
        self._answers = answers

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        stream = super().connect_tcp(host, port, timeout, local_address, socket_options)
        return _WatchedStream(
            stream, f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}", self._answers
        )


class _WatchedTransport(httpx.HTTPTransport):
    """The transport of httpx on watched connections."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        super().__init__(verify=tls)
        self._tls = tls
        self._pool = httpcore.ConnectionPool(ssl_context=tls, network_backend=_WatchedNetwork(self._answers))

    def _answers(self, url: str) -> bool:
        """Return whether a host answers anything within a moment; no credentials are sent."""
        with httpx.Client(verify=self._tls, timeout=SWITCH_S, trust_env=False) as client:
            try:
                client.get(url + _TRIVIAL_CALL)
            except httpx.TransportError:
                return False
        return True


class AnswerTooLarge(httpx.HTTPError):
    """The answer is larger than `MAX_ANSWER_BYTES`; the rest of it is not read."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the answer is larger than {limit:,} bytes, the most that is read")


@dataclass(slots=True)
class _Shared:
    """A client, the settings that it was made with, and the number of requests under way with it."""

    client: httpx.Client
    settings: ssl.SSLContext | None
    users: int = 0


@functools.cache
def _usual_tls() -> ssl.SSLContext:
    """Return the settings of all who give none; to read the authorities takes 20 ms of the processor."""
    return httpx.create_ssl_context(trust_env=False)


class Connections:
    """Sends requests, and keeps connections open between them; safe to share between threads.

    An httpx client keeps the TLS settings that it was made with. After a renewal a new client replaces it, and the old
    client is closed when its last request has ended: a renewal loses no answer.
    """

    def __init__(
        self, tls: Tls, *, timeout_s: float, transport: httpx.BaseTransport | None = None, watched: bool = False
    ) -> None:
        self._settings_of_now = tls if callable(tls) and transport is None else None
        self._timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, 2 * SWITCH_S) if watched else timeout_s)
        self._watched = watched
        self._transport = transport
        self._lock = threading.Lock()
        self._is_closed = False
        self._current = self._made(tls() if callable(tls) else tls)

    def request(self, method: str, url: str | httpx.URL, **arguments: Any) -> httpx.Response:
        """Send a request, and read its whole answer.

        Raises:
            AnswerTooLarge: The body is longer than the limit, or endless.
            httpx.HTTPError: No answer came.
        """
        with self._borrowed() as client, client.stream(method, url, **arguments) as response:
            body = bytearray()
            for part in response.iter_bytes():
                body += part
                if len(body) > MAX_ANSWER_BYTES:
                    raise AnswerTooLarge(MAX_ANSWER_BYTES)
            return httpx.Response(
                response.status_code,
                headers=[(name, value) for name, value in response.headers.raw if name.lower() not in _OF_THE_WAY],
                content=bytes(body),
                request=response.request,
                extensions=response.extensions,
            )

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            self._is_closed = True
            self._current.client.close()

    @contextmanager
    def _borrowed(self) -> Iterator[httpx.Client]:
        with self._lock:
            self._renew()
            shared = self._current
            shared.users += 1
        try:
            yield shared.client
        finally:
            with self._lock:
                shared.users -= 1
                self._close_if_left(shared)

    def _renew(self) -> None:
        if self._settings_of_now is None or self._is_closed:
            return
        # Read under the lock: otherwise a thread that is late with its result would restore outdated settings.
        settings = self._settings_of_now()
        if settings is not self._current.settings:
            before, self._current = self._current, self._made(settings)
            self._close_if_left(before)

    def _close_if_left(self, shared: _Shared) -> None:
        if shared is not self._current and shared.users == 0:
            shared.client.close()

    def _made(self, settings: ssl.SSLContext | None) -> _Shared:
        transport = self._transport
        if transport is None and self._watched:
            transport = _WatchedTransport(settings or _usual_tls())
        # Not trust_env: the token goes only to the brokers, whatever HTTP_PROXY or .netrc contain.
        client = httpx.Client(
            verify=settings or _usual_tls(),
            timeout=self._timeout,
            transport=transport,
            trust_env=False,
            follow_redirects=False,
        )
        return _Shared(client, settings)


Token = str | Callable[[], str] | None
"""A bearer token; or a function that returns the current token, called before every request so that tokens can be
renewed."""

DEFAULT_TIMEOUT_S = 30.0
"""Time-out of each step of a request (connect, send, wait for data); deleting a topic of many partitions takes
seconds."""
DEFAULT_RETRY_FOR_S = 20.0  # a topic moves to another broker within seconds; a longer failure is for a human
MAX_REDIRECTS = 5  # from the asked broker to the owner is one redirect; more happen only while the topic moves
REMEMBERED_MS = 30_000  # a host that gave no answer is asked last for this long
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0


_PORTS = {"http": 80, "https": 443}
_NO_HEADER = "illegal header line"  # begin of h11's error for an invalid header name
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
    """Calls to a cluster; safe to share between threads. Arguments as for `AdminClient`.

    A broker answers a call about a topic of another broker with a redirect to the owner. The redirect is followed here
    and not by httpx, which rightly sends no authorization to another host by itself; the owner needs it.

    A path before ``/admin`` in the URL is kept (proxies), and all from there on is cut.

    Of several hosts one is asked, and the next if it gives no answer, or an answer such as 503, by the table of
    `Repeat`: a call that adds to what it did before goes to another host only if it was not sent to the first. If the
    owner gives no answer, no other host is asked, since it would name the same owner.
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
        self._bases = tuple(dict.fromkeys(_base_of(url) for url in urls_of(admin_url)))
        self._preferred = 0
        self._silent_until_ms = [0] * len(self._bases)
        self.is_secure = admin_url.lower().startswith("https:")  # True if the URL uses TLS
        self._url_hint = f"is the admin URL that of a broker?{f' {url_hint}' if url_hint else ''}"
        self._source_hint = url_hint
        self._has_answered = False
        self._probes = transport is None
        self._token = token
        self._retry_for_ms = int(retry_for_s * 1000)
        self._clock: Clock = clock or SystemClock()
        several = len(self._bases) > 1
        self._connections = Connections(tls, timeout_s=timeout_s, transport=transport, watched=several)

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
        timeout_s: float | None = None,
    ) -> httpx.Response:
        """Call the broker that owns the resource, and repeat the call if that is safe.

        Args:
            method: HTTP method.
            path: Path after the base, quoted.
            query: Query parameters.
            body: Sent as JSON; None: no body is sent.
            repeat: The effect of a second call; None: READ for GET, WRITE for the others.
            base: Base of the path.
            timeout_s: Seconds for each step of the request; None: those of the client.

        Returns:
            A successful answer (status 2xx).

        Raises:
            AdminError: `AdminDenied` for 401 or 403, `AdminMissing` for 404, `AdminUnreachable` without an answer.
        """
        kind = repeat or (Repeat.READ if method == "GET" else Repeat.WRITE)
        content = None if body is None else json.dumps(body).encode()
        repeated = attempts(
            self._clock,
            again=lambda error: may_repeat(kind, error),
            within_ms=self._retry_for_ms,
            pauses=wait_random_exponential(multiplier=FIRST_PAUSE_S, max=LONGEST_PAUSE_S),
        )
        request = _Request(method, base + path, dict(query or {}), content, kind, timeout_s)
        return repeated(self._attempt, request)

    def get(self, path: str, query: Mapping[str, str] | None = None, *, base: str = API) -> Any:
        """Return the JSON of a GET; None for an empty answer (an unset policy). Raises as `call` and `read_json`."""
        return self.read_json(self.call("GET", path, query=query, base=base))

    def read_json(self, response: httpx.Response) -> Any:
        """Return the answer's JSON; None if it is empty. AdminError: it is no JSON, such as a proxy's login page."""
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

    def _attempt(self, request: _Request) -> httpx.Response:
        """Ask one host after the other, until one answers."""
        failures: list[AdminUnreachable] = []
        for host in self._in_turn():
            try:
                response = self._asked(host, request)
            except AdminUnreachable as error:
                self._silent_until_ms[host] = self._clock.monotonic_ms() + REMEMBERED_MS
                failures.append(error)
                if not (error.wrong_url or may_repeat(request.repeat, error)):
                    break
            except AdminError as error:
                if may_repeat(request.repeat, error):
                    self._preferred = (host + 1) % len(self._bases)
                raise
            else:
                self._preferred = host
                return response
        if len(failures) == 1:
            raise failures[0]
        raise AdminUnreachable(
            request.endpoint,
            "; ".join(error.reason for error in failures),
            sent=any(error.sent for error in failures),
            wrong_url=all(error.wrong_url for error in failures),
        )

    def _in_turn(self) -> list[int]:
        """Return the hosts, beginning with the one that answered last; those that gave no answer come last."""
        now_ms, preferred = self._clock.monotonic_ms(), self._preferred
        hosts = range(len(self._bases))
        return sorted(hosts, key=lambda host: (self._silent_until_ms[host] > now_ms, (host - preferred) % len(hosts)))

    def _asked(self, host: int, request: _Request) -> httpx.Response:
        token = self._current_token()
        response = self._to_owner(host, request, token)
        if response.status_code == httpx.codes.UNAUTHORIZED and callable(self._token):
            # The token may have expired between its creation and its use; sending the same token again would not help.
            renewed = self._current_token()
            if renewed != token:
                token = renewed
                response = self._to_owner(host, request, token)
        if not response.is_success:
            raise error_of(response, request.endpoint, token)
        return response

    def _current_token(self) -> str | None:
        token = self._token() if callable(self._token) else self._token
        return token.strip() if token is not None else None  # token files end with a newline

    def _to_owner(self, host: int, request: _Request, token: str | None) -> httpx.Response:
        base, method, endpoint = self._bases[host], request.method, request.endpoint
        headers = {"Accept": "application/json, */*;q=0.5"}
        if request.content is not None:
            headers["Content-Type"] = "application/json"
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        options: dict[str, Any] = {} if request.timeout_s is None else {"timeout": request.timeout_s}
        url = httpx.URL(base + request.path, params=request.query) if request.query else httpx.URL(base + request.path)
        redirects = 0
        while True:
            try:
                response = self._connections.request(method, url, headers=headers, content=request.content, **options)
            except httpx.TransportError as error:
                if str(error).startswith(_NO_HEADER):
                    raise AdminError(httpx.codes.OK, endpoint, _UNREADABLE) from error
                sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
                if redirects:
                    raise _owner_unreachable(endpoint, base, url, error, sent=sent) from error
                raise self._unreachable(endpoint, url, error, sent=sent) from error
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
        self, endpoint: str, url: httpx.URL, error: httpx.TransportError, *, sent: bool
    ) -> AdminUnreachable:
        """Describe the error with a remedy; before the first answer, a mistake in the URL explains it."""
        mistake = ""
        if self._probes and not (self._has_answered or isinstance(error, httpx.TimeoutException)):
            mistake = mistake_in(url.scheme, url.host, url.port or _PORTS[url.scheme])
        failed = _failure(url, sent=sent)
        if mistake:
            hint = f"; {self._source_hint}" if self._source_hint else ""
            return AdminUnreachable(endpoint, f"{failed}: {mistake}{hint}", sent=sent, wrong_url=True)
        remedy = "" if self._has_answered else f"; {self._url_hint}"
        return AdminUnreachable(endpoint, f"{failed}: {_words_of(error)}{remedy}", sent=sent)


@dataclass(frozen=True, slots=True)
class _Request:
    """A call, as every host gets it."""

    method: str
    path: str
    query: dict[str, str]
    content: bytes | None
    repeat: Repeat
    timeout_s: float | None

    @property
    def endpoint(self) -> str:
        return f"{self.method} {self.path}"


def _base_of(admin_url: str) -> str:
    """Return the URL of a host, without the path of the admin API."""
    base = httpx.URL(admin_url)
    if base.scheme not in {"http", "https"} or not base.host:
        raise ValueError(f"not an admin URL: {admin_url!r}; write it like http://broker:8080")
    if base.userinfo or base.query or base.fragment:
        raise ValueError("an admin URL has no user, query or fragment; hand credentials in as token=")
    return str(base).partition(API)[0].rstrip("/").removesuffix("/admin")


def _owner_unreachable(
    endpoint: str, base: str, url: httpx.URL, error: httpx.TransportError, *, sent: bool
) -> OwnerUnreachable:
    remedy = f"{base} redirected there: {OWNER_DIED}; else: does this host reach the web address that it advertises?"
    return OwnerUnreachable(endpoint, f"{_failure(url, sent=sent)}: {_words_of(error)}; {remedy}", sent=sent)


def _failure(url: httpx.URL, *, sent: bool) -> str:
    return f"{origin_of(url)} gave no answer" if sent else f"no connection to {origin_of(url)}"


def _words_of(error: httpx.TransportError) -> str:
    return str(error) if isinstance(error, httpx.ConnectError) else f"{type(error).__name__} {error}"
