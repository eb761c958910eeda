"""The HTTP endpoint of long-running commands: its option, and its errors as messages."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from timewheel.cli.exit_status import FAILED

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["HttpAddress", "address_of", "or_say_why_not"]

HttpAddress = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="HOST:PORT",
        help="Serve HTTP here, see the how-to guides; :PORT is this machine only, 0.0.0.0:PORT every interface.",
    ),
]


def address_of(http: str | None) -> tuple[str, int] | None:
    """Return host and port of ``--http``; an invalid address is a usage error."""
    from timewheel.serving import parse_address

    if http is None:
        return None
    try:
        return parse_address(http)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--http") from error


@contextmanager
def or_say_why_not() -> Iterator[None]:
    """End the command with status 1 and a message if the server cannot listen."""
    from timewheel.cli.terminal import print_error
    from timewheel.serving import CannotListen

    try:
        yield
    except CannotListen as error:
        print_error(f"--http: {error}")
        raise typer.Exit(FAILED) from error
