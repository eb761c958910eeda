"""Options of all commands that connect to a cluster, and the connection whose top layer these options are.

An option overrides an environment variable; a variable overrides the file of ``--connection``; the file overrides the
defaults.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timewheel.cli.terminal import print_error

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from timewheel.broker.admin.client import AdminClient
    from timewheel.cli.access import Access
    from timewheel.core.connection import Connection
    from timewheel.hooks import Event, Hook

__all__ = [
    "AdminUrl",
    "ConnectionFile",
    "PlanFile",
    "ServiceUrl",
    "Token",
    "TokenFile",
    "TrustFile",
    "access_of",
    "access_to",
    "admin_client",
    "connection_of",
    "given_connection",
    "is_typed",
    "keep_plan_file",
    "typed_again",
    "typed_words",
    "warn",
]

FILE_VARIABLE = "TIMEWHEEL_CONNECTION"
_FOLLOWED = {
    "service_url": "--service-url",
    "admin_url": "--admin-url",
    "broker": "--admin-url",
    "token_file": "--token-file",
    "tls_ca": "--tls-ca",
    "connection": "--connection",
}
"""The option that passes a parameter on to the next command, by parameter."""


def keep_plan_file(context: typer.Context, plan_file: Path) -> Path:
    """Keep the name of the plan's file for the commands that an error prints: the SDK raises most of them, and does not
    know the file.
    """
    if context.obj is not None:
        context.obj.plan_file = str(plan_file)
    return plan_file


PlanFile = Annotated[
    Path, typer.Argument(metavar="PLAN", help="The plan file.", show_default=False, callback=keep_plan_file)
]
ServiceUrl = Annotated[
    str | None,
    typer.Option(
        "--service-url",
        help="Service URL of the brokers; else PULSAR_SERVICE_URL.",
        show_default="pulsar://localhost:6650",
    ),
]
AdminUrl = Annotated[
    str | None,
    typer.Option(
        "--admin-url",
        help="Web service of any broker; else PULSAR_ADMIN_URL.",
        show_default="http://localhost:8080",
    ),
]
Token = Annotated[
    str | None,
    typer.Option("--token", help="Bearer token; else PULSAR_TOKEN, which other users of this machine do not see."),
]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="File with the bearer token, read at every connect.")
]
TrustFile = Annotated[Path | None, typer.Option("--tls-ca", help="PEM file with the authorities to trust.")]
ConnectionFile = Annotated[
    Path | None,
    typer.Option(
        "--connection",
        metavar="FILE",
        envvar=FILE_VARIABLE,
        show_envvar=True,
        help="TOML with a table [connection]: URLs, token, OAuth2, certificates; other options take precedence.",
    ),
]


def connection_of(
    service_url: str | None = None,
    admin_url: str | None = None,
    token: str | None = None,
    token_file: Path | None = None,
    tls_ca: Path | None = None,
    file: Path | None = None,
    *,
    admin_option: str = "--admin-url",
) -> Connection:
    """Return all layers merged; for the arguments see `given_connection`.

    Raises:
        BadConnection: A layer is invalid.
    """
    from timewheel.core.connection import DEFAULTS
    from timewheel.core.connection_file import secrets_open_to_all
    from timewheel.events import SecretFileOpen

    given = given_connection(service_url, admin_url, token, token_file, tls_ca, file, admin_option=admin_option)
    connection = given.over(DEFAULTS)
    for path in secrets_open_to_all(connection):
        warn(SecretFileOpen(path=str(path)))
    return connection


def given_connection(
    service_url: str | None = None,
    admin_url: str | None = None,
    token: str | None = None,
    token_file: Path | None = None,
    tls_ca: Path | None = None,
    file: Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    admin_option: str = "--admin-url",
) -> Connection:
    """Return all layers but the defaults.

    Args:
        service_url: From the options.
        admin_url: From the options.
        token: From the options; an empty token, as from an unset variable, is refused.
        token_file: From the options.
        tls_ca: From the options.
        file: The connection's file.
        environment: None: the environment of this process.
        admin_option: The command's option for the admin URL.

    Raises:
        BadConnection: A layer is invalid.
    """
    import os

    from timewheel.core.connection import Connection, connection_of_environment, named_by
    from timewheel.core.errors import BadConnection
    from timewheel.core.secret import Secret

    if token is not None and not token.strip():
        raise BadConnection("--token", "is empty")

    def option(name: str) -> str:
        others = {"admin_url": admin_option, "tls_trust_certs_file_path": "--tls-ca"}
        return others.get(name, f"--{name.replace('_', '-')}")

    with named_by(option):
        options = Connection(
            service_url=service_url,
            admin_url=admin_url,
            token=None if token is None else Secret(token),
            token_file=token_file,
            tls_trust_certs_file_path=tls_ca,
        ).given_by(option)
    variables = connection_of_environment(os.environ if environment is None else environment)
    return options.over(variables).over(_of_file(file))


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


def access_of(
    connection: Connection, hooks: tuple[Hook, ...] | None = None, *, admin_option: str = "--admin-url"
) -> Access:
    """Return the factory of clients for a connection.

    Args:
        connection: All layers.
        hooks: None: `warn`.
        admin_option: The command's option for the admin URL.
    """
    from timewheel.cli.access import Access

    return Access(connection, (warn,) if hooks is None else hooks, admin_option=admin_option)


def access_to(
    service_url: str | None = None,
    admin_url: str | None = None,
    token: str | None = None,
    token_file: Path | None = None,
    tls_ca: Path | None = None,
    file: Path | None = None,
    *,
    hooks: tuple[Hook, ...] | None = None,
) -> Access:
    """What makes clients, from the options of a command: `access_of` what `connection_of` makes of them."""
    return access_of(connection_of(service_url, admin_url, token, token_file, tls_ca, file), hooks)


def admin_client(
    admin_url: str | None,
    token: str | None,
    token_file: Path | None,
    tls_ca: Path | None,
    file: Path | None,
    *,
    option: str = "--admin-url",
    hooks: tuple[Hook, ...] | None = None,
) -> AbstractContextManager[AdminClient]:
    """Return an admin client for these options.

    Args:
        admin_url: URL of any broker's web service.
        token: Bearer token, instead of `token_file`.
        token_file: File with a bearer token, read before every call.
        tls_ca: PEM file with the certificate authorities to trust.
        file: The connection's file.
        option: The command's option for the URL, which errors name.
        hooks: None: `warn`.

    Raises:
        BadConnection: The options or another layer are invalid.
        TokenNotGiven: The authorization server issues no token.
    """
    connection = connection_of(None, admin_url, token, token_file, tls_ca, file, admin_option=option)
    return access_of(connection, hooks, admin_option=option).admin()


def typed_words(context: typer.Context) -> tuple[str, ...]:
    """Return the connection's options as they were typed, for the follow-up commands that a command prints.

    Environment variables also hold for the next command. A token is not repeated: it must not appear in a terminal or
    its log.
    """
    options = ((name, option) for name, option in _FOLLOWED.items() if is_typed(context, name))
    return tuple(word for name, option in options for word in (option, str(context.params[name])))


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
