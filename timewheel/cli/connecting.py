"""Options of all commands that connect to a cluster, and the connection whose top layer these options are.

An option overrides an environment variable; a variable overrides the file of ``--connection``; the file overrides the
defaults.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from typer import Option

from timewheel.cli.terminal import print_error
from timewheel.core.errors import BadConnection

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from timewheel.broker.admin.client import AdminClient
    from timewheel.cli.access import Access
    from timewheel.core.connection import Connection
    from timewheel.hooks import Event, Hook

FILE_VARIABLE = "TIMEWHEEL_CONNECTION"
_FOLLOWED = {
    "service_url": "--service-url",
    "admin_url": "--admin-url",
    "token_file": "--token-file",
    "tls_ca": "--tls-ca",
    "connection": "--connection",
}
"""The option that passes a parameter on to the next command, by parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """The options of a command that connects to a cluster: a group for `timewheel.cli.options.with_options`."""

    admin_option: ClassVar[str] = "--admin-url"
    """The option for the admin URL, which errors name."""

    context: typer.Context | None = None
    service_url: Annotated[
        str | None,
        Option(help="Service URL of the brokers; else PULSAR_SERVICE_URL.", show_default="pulsar://localhost:6650"),
    ] = None
    admin_url: Annotated[
        str | None,
        Option(help="Web service of any broker; else PULSAR_ADMIN_URL.", show_default="http://localhost:8080"),
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
        options = ((name, option) for name, option in _FOLLOWED.items() if is_typed(context, name))
        return tuple(word for name, option in options for word in (option, str(context.params[name])))

    def given(self) -> Connection:
        """Return all layers but the defaults."""
        from timewheel.core.connection import Connection, connection_of_environment, named_by
        from timewheel.core.secret import Secret

        if self.token is not None and not self.token.strip():
            raise BadConnection("--token", "is empty")

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
        from timewheel.cli.access import Access

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
    """Return a command's words as they were typed, with other values for some parameters; the token, a secret, is
    omitted.
    """
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
