"""What commands share that call the admin API: their options, and a client made of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from timewheel.admin.client import AdminClient
    from timewheel.hooks import Event, Hook
    from timewheel.wire.token_reader import TokenReader

__all__ = [
    "DEFAULT_ADMIN_URL",
    "AdminUrl",
    "Token",
    "TokenFile",
    "TrustFile",
    "admin_client",
    "admin_client_with",
    "client_security",
    "token_reader",
    "warn",
]

AdminUrl = Annotated[
    str,
    typer.Option("--admin-url", envvar="PULSAR_ADMIN_URL", help="Web service of any broker."),
]
Token = Annotated[
    str | None,
    typer.Option("--token", envvar="PULSAR_TOKEN", show_envvar=True, help="Bearer token of a tenant admin."),
]
TokenFile = Annotated[Path | None, typer.Option("--token-file", help="A file with it, read before every call.")]
TrustFile = Annotated[Path | None, typer.Option("--tls-ca", help="PEM file with the authorities to trust.")]

DEFAULT_ADMIN_URL = "http://localhost:8080"
RETRY_FOR_S = 5.0
"""Somebody waits for the answer, and a wrong URL does not get better; a topic that moves takes less."""


def admin_client(
    admin_url: str,
    token: str | None,
    token_file: Path | None,
    tls_ca: Path | None,
    *,
    option: str = "--admin-url",
    hooks: tuple[Hook, ...] | None = None,
) -> AbstractContextManager[AdminClient]:
    """An admin client from these options; what cannot be one is a usage error.

    Args:
        admin_url: Of any broker's web service.
        token: Or `token_file`.
        token_file: Read before every call.
        tls_ca: Whom to trust.
        option: That gave the URL.
        hooks: None: `warn`.
    """
    hooks = (warn,) if hooks is None else hooks
    return admin_client_with(admin_url, token_reader(token, token_file, hooks), tls_ca, option=option, hooks=hooks)


def admin_client_with(
    admin_url: str,
    token: TokenReader | None,
    tls_ca: Path | None,
    *,
    option: str = "--admin-url",
    hooks: tuple[Hook, ...],
) -> AbstractContextManager[AdminClient]:
    """The same with a reader that others use as well.

    Args:
        admin_url: Of any broker's web service.
        token: See `token_reader`.
        tls_ca: Whom to trust.
        option: That gave the URL.
        hooks: Whom to tell.
    """
    from timewheel.admin.client import AdminClient
    from timewheel.admin.http import tls_context

    try:
        return AdminClient(
            admin_url,
            token=token,
            tls=None if tls_ca is None else tls_context(ca_path=str(tls_ca)),
            retry_for_s=RETRY_FOR_S,
            hooks=hooks,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
    except OSError as error:
        raise typer.BadParameter(f"{tls_ca}: {error}", param_hint="--tls-ca") from error


def token_reader(token: str | None, token_file: Path | None, hooks: tuple[Hook, ...]) -> TokenReader | None:
    """What reads the token; None if neither is given. What cannot be read is a usage error.

    Args:
        token: Itself.
        token_file: Or its file.
        hooks: Told of a token that has expired, and of a file that cannot be read later.
    """
    from timewheel.wire.token_reader import TokenReader

    if token is not None and token_file is not None:
        raise typer.BadParameter("give the token itself or its file, not both", param_hint="--token")
    try:
        if token_file is not None:
            return TokenReader(token_file, hooks=hooks)
        return None if token is None else TokenReader(lambda: token, name="--token", hooks=hooks)
    except (OSError, ValueError) as error:
        reason, option = str(error), "--token" if token_file is None else "--token-file"
        raise typer.BadParameter(reason, param_hint=option) from error


def client_security(token: TokenReader | None, tls_ca: Path | None) -> dict[str, Any]:
    """Keyword arguments of a `pulsar.Client` that speaks as the admin client does.

    Args:
        token: See `token_reader`.
        tls_ca: Whom to trust.
    """
    import pulsar

    options: dict[str, Any] = {}
    if token is not None:
        options["authentication"] = pulsar.AuthenticationToken(token)
    if tls_ca is not None:
        options["tls_trust_certs_file_path"] = str(tls_ca)
    return options


def warn(event: Event) -> None:
    """What is not part of the answer goes to stderr, so that --json stays JSON."""
    import sys

    if event.level != "info":
        facts = ", ".join(f"{name}: {value}" for name, value in event.fields.items())
        print(f"timewheel: {event.level}: {event.name}: {facts}", file=sys.stderr, flush=True)
