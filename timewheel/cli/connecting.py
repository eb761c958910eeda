"""Options of all commands that connect to a cluster, the connection whose top layer they are, and its clients.

An option overrides an environment variable; a variable overrides the file of ``--connection``; the file overrides the
defaults.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from typer import Option

from timewheel.cli.terminal import print_error
from timewheel.core.clock import SystemClock
from timewheel.core.errors import OWNER_DIED, BadConnection, TimewheelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from timewheel.broker.admin.client import AdminClient
    from timewheel.broker.admin.entries import EntrySource
    from timewheel.broker.protocol.dialing import Dialer
    from timewheel.client.credentials import TlsReader, TokenReader
    from timewheel.client.hooks import Repeats
    from timewheel.core.clock import Clock
    from timewheel.core.connection import Connection
    from timewheel.hooks import Event, Hook

FILE_VARIABLE = "TIMEWHEEL_CONNECTION"
_FOLLOWED = ("service_url", "admin_url", "token_file", "tls_ca", "connection")
"""Parameters that are passed on to the next command, each as the option of its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """The options of a command that connects to a cluster: a group for `timewheel.cli.options.with_options`."""

    admin_option: ClassVar[str] = "--admin-url"  # the option for the admin URL, which errors name

    context: typer.Context | None = None
    service_url: Annotated[
        str | None,
        Option(help="Service URL of the brokers; else PULSAR_SERVICE_URL.", show_default="pulsar://localhost:6650"),
    ] = None
    admin_url: Annotated[
        str | None,
        Option(
            help="Web services of brokers, as http://one:8080,two:8080; else PULSAR_ADMIN_URL.",
            show_default="http://localhost:8080",
        ),
    ] = None
    token: Annotated[
        str | None, Option(help="Bearer token; else PULSAR_TOKEN, which other users of this machine do not see.")
    ] = None
    token_file: Annotated[Path | None, Option(help="File with the bearer token, read at every connect.")] = None
    tls_ca: Annotated[Path | None, Option(help="PEM file with the authorities to trust.")] = None
    connection: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            envvar=FILE_VARIABLE,
            show_envvar=True,
            help="TOML with a table [connection]: URLs, token, OAuth2, certificates; other options take precedence.",
        ),
    ] = None

    @property
    def words(self) -> tuple[str, ...]:
        """The options as they were typed, for the follow-up commands that a command prints.

        Environment variables also hold for the next command. A token is not repeated: it must not appear in a terminal
        or its log.
        """
        context = self.context
        if context is None:
            return ()
        typed = {f"--{name.replace('_', '-')}": context.params[name] for name in _FOLLOWED if is_typed(context, name)}
        return tuple(str(word) for option in typed.items() for word in option)

    def given(self) -> Connection:
        """Return all layers but the defaults."""
        from timewheel.core.connection import Connection, Secret, connection_of_environment, named_by

        if self.token is not None and not self.token.strip():
            raise BadConnection("--token", "is empty")  # as from an unset variable

        def option(name: str) -> str:
            others = {"admin_url": self.admin_option, "tls_trust_certs_file_path": "--tls-ca"}
            return others.get(name, f"--{name.replace('_', '-')}")

        with named_by(option):
            options = Connection(
                service_url=self.service_url,
                admin_url=self.admin_url,
                token=None if self.token is None else Secret(self.token),
                token_file=self.token_file,
                tls_trust_certs_file_path=self.tls_ca,
            ).given_by(option)
        return options.over(connection_of_environment(os.environ)).over(_of_file(self.connection))

    def merged(self) -> Connection:
        """Return all layers, including the defaults."""
        from timewheel.core.connection import DEFAULTS
        from timewheel.core.connection_file import secrets_open_to_all
        from timewheel.events import SecretFileOpen

        connection = self.given().over(DEFAULTS)
        for path in secrets_open_to_all(connection):
            warn(SecretFileOpen(path=str(path)))
        return connection

    def access(self, hooks: tuple[Hook, ...] | None = None) -> Access:
        """Return the factory of clients."""
        return Access(self.merged(), (warn,) if hooks is None else hooks, admin_option=self.admin_option)

    def admin(self, hooks: tuple[Hook, ...] | None = None) -> AbstractContextManager[AdminClient]:
        """Return an admin client; for the argument and the errors see `access`."""
        return self.access(hooks).admin()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminOptions(ConnectionOptions):
    """The options of a command that uses only the admin API."""

    service_url: str | None = field(init=False, default=None)


def _of_file(file: Path | None) -> Connection:
    from timewheel.core.connection import Connection

    if file is None:
        return Connection()
    from timewheel.core.connection_file import is_open_to_others, load_connection

    connection = load_connection(file)
    if is_open_to_others(file, connection):
        from timewheel.events import SecretFileOpen

        warn(SecretFileOpen(path=str(file)))
    return connection


def is_typed(context: typer.Context, parameter: str) -> bool:
    """Return whether a parameter was given on the command line."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def typed_again(context: typer.Context, **changed: Any) -> list[str]:
    """Return a command's words as they were typed, but for changed values and the token, which is a secret."""
    words = (context.info_name or "").split()
    for parameter in context.command.params:
        name = parameter.name or ""
        value = changed.get(name, context.params.get(name))
        if name == "token" or not (name in changed or is_typed(context, name)):
            continue
        for each in value if isinstance(value, list | tuple) else [value]:
            words += [max(parameter.opts, key=len)] if parameter.param_type_name == "option" else []
            words += [] if each is True else [str(each)]
    return words


def warn(event: Event) -> None:
    """Print a warning or an error event to stderr, so that the output of --json stays JSON."""
    if event.level != "info":
        facts = ", ".join(f"{name}: {value}" for name, value in event.fields.items())
        print_error(f"{event.level}: {event.name}: {facts}")


LINE = re.compile(r"\S+ \S+ (?P<level>[A-Z]+) +\[\d+\] (?P<place>\S+) \| (?P<text>.*)")
"""``2026-11-21 09:00:00.000 ERROR [139701] ClientConnection:485 | Connection refused``"""
EXPECTED = re.compile(r"Failed to create producer: Producer(Busy|Fenced)\b")
"""Another process has the producer of a name. Only leases have names here, so a standby meets this error at each
attempt. The caller that asked for the producer gets the error, and reports it if it matters.
"""
END = b"\0\n"  # a line that the client never writes
JOIN_TIMEOUT_S = 1.0
_NOWHERE = logging.NullHandler()


@contextmanager
def client_log() -> Iterator[Any]:
    """Make a `logger` for ``pulsar.Client`` that logs errors only; close the client before the block ends.

    By default this log goes to standard output, where a command's results belong. A Python logger that is passed to the
    client is called on C++ threads, for every debug line and whatever its level, so the client waits for Python several
    times per message. Therefore the client writes into a pipe, and a thread of this process reads the pipe.
    """
    import pulsar

    # A command without a log prints its result, or the error that ends it, but no log lines of the client.
    logging.getLogger("pulsar").addHandler(_NOWHERE)
    reading, writing = os.pipe()
    thread = threading.Thread(target=_forward, args=(reading,), name="timewheel-client-log", daemon=True)
    thread.start()
    try:
        yield pulsar.FileLogger(pulsar.LoggerLevel.Error, f"/proc/self/fd/{writing}")
    finally:
        # Closing this end does not end the thread: the client has opened the pipe a second time, and never closes it.
        os.write(writing, END)
        thread.join(JOIN_TIMEOUT_S)
        os.close(writing)


SHAPE = re.compile(r"\[[^]]*\]|\d+")  # topics, addresses and numbers in a line, in which the lines of an outage differ


def log_once_a_minute(clock: Clock) -> Repeats[str]:
    """Return a log of the client's lines: an outage of 45 s has 2,700 that are alike."""
    from timewheel.client.hooks import Repeats

    def log(line: str, count: int) -> None:
        level, text, place = read_line(line)
        more = f" ({count - 1} more like it before)" if count > 1 else ""
        logging.getLogger("pulsar").log(level, "%s", text + more, extra={"place": place} if place else {})

    return Repeats(clock, log, lambda line: SHAPE.sub("#", read_line(line)[1]))


def _forward(reading: int) -> None:
    repeats = log_once_a_minute(SystemClock())
    with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line == END.decode():
                return
            repeats.raised(line)


def read_line(line: str) -> tuple[int, str, str]:
    """Return the `logging` level of a line of the client's log, its text, and its place in the client if known."""
    found = LINE.match(line)
    if found is None:
        return logging.ERROR, line.rstrip(), ""
    level = logging.CRITICAL if found["level"] == "FATAL" else logging.ERROR
    return logging.DEBUG if EXPECTED.search(found["text"]) else level, found["text"], found["place"]


RETRY_FOR_S = 5.0
"""A user waits for the answer, and a wrong URL stays wrong; a topic that moves to another broker needs less time."""
OPERATION_TIMEOUT_S = 10
"""Within an opening the client doubles its pauses: after an outage of any length a new opening comes within 4 s. The
default of `pulsar.Client`, 30 s, makes that 13 s.
"""
LOOK_CONNECT_MS = 3_000
"""Connect timeout for reading entries: a command that reaches only the admin API, as by a tunnel, waits for it once."""


class Access:
    """Makes clients that present the current token, or the current certificate, whenever they connect."""

    def __init__(self, connection: Connection, hooks: tuple[Hook, ...], *, admin_option: str = "--admin-url") -> None:
        self.connection = connection
        self._admin_option = admin_option
        self._hooks = hooks
        self._tls = _tls_of(connection)
        self._token = _token_reader(connection, self._tls, hooks)

    def admin(self, hooks: tuple[Hook, ...] | None = None) -> AbstractContextManager[AdminClient]:
        from timewheel.broker.admin.client import AdminClient

        assert self.connection.admin_url is not None, "one of the defaults"
        admin = AdminClient(
            self.connection.admin_url,
            token=self._token,
            tls=self._tls,
            retry_for_s=RETRY_FOR_S,
            hooks=self._hooks if hooks is None else hooks,
            entries=self._entries(lambda: admin),
            url_hint=self._hint("admin_url", f"{self._admin_option} http://HOST:8080"),
        )
        return admin

    def _entries(self, admin: Callable[[], AdminClient]) -> EntrySource:
        """What reads single entries by the brokers' own protocol."""
        from timewheel.shadow.stored_entries import StoredEntries

        dialer = cache(partial(self.dialer, connect_ms=LOOK_CONNECT_MS))  # each remembers the host that answered
        return StoredEntries(lambda topic: dialer(self.service_url_of(topic, admin())))

    def service_url_of(self, topic: str, admin: AdminClient | None = None) -> str:
        """Return the connection's service URL; if only an admin URL was given, the address of the topic's broker."""
        from timewheel.broker.protocol.errors import LookupFailed

        url = self.connection.service_url
        assert url is not None, "one of the defaults"
        if self.connection.is_given("service_url") or not self.connection.is_given("admin_url"):
            return url
        if admin is None:
            with self.admin() as own:
                return self.service_url_of(topic, own)
        found = admin.topics.service_url(topic)
        if found is None:
            raise LookupFailed(topic, "its broker advertises no address of the binary protocol")
        return found

    @contextmanager
    def client_and_admin(self, topic: str) -> Iterator[tuple[Any, AdminClient, str]]:
        """Open a client and an admin client, and give them with the service URL, which is looked up once."""
        with self.admin() as admin:
            url = self.service_url_of(topic, admin)
            with self.client(topic, url=url) as client:
                yield client, admin, url

    @contextmanager
    def client(
        self, topic: str, *, url: str | None = None, operation_timeout_seconds: int = OPERATION_TIMEOUT_S
    ) -> Iterator[Any]:
        """Open a `pulsar.Client`, and close it at the end; its log goes to the standard logger ``pulsar``.

        Without a URL of the caller, for a command that ends soon, it leaves out hosts that hang.
        """
        import pulsar

        from timewheel.client.reaching import BrokerUnreachable, ReachingClient

        named = url or self.service_url_of(topic)
        asked = url or self._responding(named)
        hint = self._service_hint(named)

        def explain(call: str, topic: str, error: Exception) -> BrokerUnreachable:
            tried = f" within {operation_timeout_seconds} s" if isinstance(error, pulsar.Timeout) else ""
            cause = f"{named} gave no answer{tried} ({error}): {', '.join(_states_of(named))}"
            return BrokerUnreachable(call, topic, cause, f"is the service URL that of a broker? {hint}")

        with client_log() as log:
            options = {**self.client_options(), "operation_timeout_seconds": operation_timeout_seconds}
            try:
                client = pulsar.Client(asked, logger=log, **options)
            except ValueError as error:
                raise BadConnection(self._named("service_url"), f"pulsar-client rejects it: {error}") from error
            try:
                yield ReachingClient(client, explain)
            except pulsar.PulsarException as error:
                if isinstance(error, TimewheelError):
                    raise
                raise TimewheelError(f"{named}: {error}") from error
            finally:
                client.close()

    def _responding(self, url: str) -> str:
        """Return a service URL without hosts that hang, unless all do (broker-facts: pauses-that-double)."""
        from timewheel.core.connection import urls_of
        from timewheel.inspect.reader import each

        hosts = urls_of(url)
        if len(hosts) == 1:
            return url
        found = [host for host, responds in each(lambda host: self.dialer(host).responds(), hosts) if responds]
        return ",".join([*found[:1], *(host.partition("://")[2] for host in found[1:])]) or url

    def dialer(self, service_url: str | None = None, **options: Any) -> Dialer:
        """What connects by the brokers' own protocol."""
        from timewheel.broker.protocol.dialing import Dialer
        from timewheel.broker.protocol.session import Authentication
        from timewheel.client.port_probe import mistake_in
        from timewheel.core.connection import named_by

        service_url = service_url or self.connection.service_url
        assert service_url is not None, "one of the defaults"
        authentication = Authentication()
        if self._token is not None:
            authentication = Authentication.by_token(self._token)
        elif self.connection.tls_certificate_file_path is not None:
            authentication = Authentication("tls")
        hint = self._service_hint(service_url)
        with named_by(self._named):
            return Dialer(
                service_url,
                authentication=authentication,
                tls=self._tls,
                url_hint=hint,
                mistake_in=mistake_in,
                **options,
            )

    def client_options(self) -> dict[str, Any]:
        """Return the arguments of a `pulsar.Client` except its URL and its logger."""
        import pulsar

        connection = self.connection
        options: dict[str, Any] = {
            "tls_validate_hostname": bool(connection.tls_validate_hostname),
            "tls_allow_insecure_connection": bool(connection.tls_allow_insecure_connection),
        }
        if connection.tls_trust_certs_file_path is not None:
            options["tls_trust_certs_file_path"] = str(connection.tls_trust_certs_file_path)
        certificate, key = _identity_of(connection)
        if self._token is not None:
            options["authentication"] = pulsar.AuthenticationToken(self._token)
            if certificate is not None:
                options |= {"tls_certificate_file_path": certificate, "tls_private_key_file_path": key}
        elif certificate is not None:
            options["authentication"] = pulsar.AuthenticationTLS(certificate, key)
        return options

    def _named(self, field: str) -> str:
        return self.connection.sources.get(field, field)

    def _service_hint(self, url: str) -> str:
        is_named = url != self.connection.service_url
        found_by = f"a lookup at {self.connection.admin_url}: {OWNER_DIED}" if is_named else None
        return self._hint("service_url", "--service-url pulsar://HOST:6650", found_by)

    def _hint(self, url: str, option: str, found_by: str | None = None) -> str:
        """Return where a URL came from, and how to give another."""
        source = found_by or self.connection.sources.get(url)
        came = "It is the default" if source is None else f"It comes from {source}"
        # An option comes before a variable.
        other = "" if source is not None and option.startswith(source) else f", or set PULSAR_{url.upper()}"
        return f"{came}; give a broker's with {option}{other}"


def _states_of(url: str) -> Iterator[str]:
    """Yield, for each address of a service URL, the program that listens there now, or that there is none."""
    import socket

    from timewheel.broker.protocol.session import ServiceUrl
    from timewheel.client.port_probe import mistake_in

    scheme = url.partition("://")[0]
    for address in ServiceUrl.parse(url).addresses:
        try:
            socket.create_connection(address, LOOK_CONNECT_MS / 1_000).close()
        except OSError as error:
            yield f"nothing can be reached at {address} ({error.strerror or error})"
        else:
            yield mistake_in(scheme, *address) or f"something listens at {address}, and does not answer as a broker"


def _identity_of(connection: Connection) -> tuple[str | None, str | None]:
    certificate = connection.tls_certificate_file_path
    if certificate is None:
        return None, None
    return str(certificate), str(connection.tls_private_key_file_path or certificate)


def _tls_of(connection: Connection) -> TlsReader:
    from timewheel.broker.admin.http import tls_context
    from timewheel.client.credentials import TlsReader

    paths: list[Path] = []
    for name in ("tls_trust_certs_file_path", "tls_certificate_file_path", "tls_private_key_file_path"):
        path = getattr(connection, name)
        if path is not None:
            _read(name, path)
            paths.append(path)
    certificate, key = _identity_of(connection)
    trusted = connection.tls_trust_certs_file_path
    read = partial(
        tls_context,
        ca_path=None if trusted is None else str(trusted),
        certificate_path=certificate,
        key_path=key,
        validate_hostname=bool(connection.tls_validate_hostname),
        allow_insecure=bool(connection.tls_allow_insecure_connection),
    )
    try:
        return TlsReader(read, paths)
    except OSError as error:  # also ssl.SSLError: the file can be read, but its content is wrong
        name = "tls_trust_certs_file_path" if certificate is None else "tls_certificate_file_path or its key"
        raise BadConnection(name, f"has no matching PEM: {error}") from error


def _read(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadConnection(name, f"{path} cannot be read: {error.strerror}") from error


def _token_reader(connection: Connection, tls: TlsReader, hooks: tuple[Hook, ...]) -> TokenReader | None:
    from timewheel.client.credentials import TokenReader

    token = connection.token
    if token is not None:
        return TokenReader(token.reveal, name="token", hooks=hooks)
    if connection.token_file is not None:
        _read("token_file", connection.token_file)
        try:
            return TokenReader(connection.token_file, hooks=hooks)
        except ValueError as error:
            raise BadConnection("token_file", f"{connection.token_file}: {error}") from error
    if connection.oauth2 is not None:
        from timewheel.broker.admin.client_credentials import ClientCredentials

        source = ClientCredentials(connection.oauth2, tls=tls)
        return TokenReader(source, name=f"oauth2 {connection.oauth2.issuer_url}", hooks=hooks)
    return None
