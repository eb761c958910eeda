"""Shared parts of the commands that inspect a shadowed topic: clients, progress and the plan."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from timewheel.cli.exit_status import FAILED
from timewheel.cli.terminal import print_error

if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["unseen_is_an_exit"]


@contextmanager
def unseen_is_an_exit() -> Iterator[None]:
    """End the command with `FAILED`, and the broker's reason on stderr, if the topic cannot be seen."""
    from timewheel.broker.protocol.errors import BinaryProtocolError
    from timewheel.core.errors import AdminError

    try:
        yield
    except (AdminError, BinaryProtocolError) as error:
        print_error(error)
        raise typer.Exit(FAILED) from error
