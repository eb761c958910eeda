"""Long-running commands: their log, always on standard error, their HTTP endpoint, and their signals."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer import Option

from timewheel.cli.options import FAILED
from timewheel.cli.terminal import print_error
from timewheel.core.escapes import visible, visible_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import structlog.typing

HttpAddress = Annotated[
    str | None,
    Option(
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
    from timewheel.serving import CannotListen

    try:
        yield
    except CannotListen as error:
        print_error(f"--http: {error}")
        raise typer.Exit(FAILED) from error


ASKED_TO_END = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A request to end the command.

    It is a separate class because Python marks the process as interrupted when a plain KeyboardInterrupt passes through
    code that was compiled from a string (as when a dataclass is made), and then ends with -SIGINT although the
    exception was caught.
    """


def call_at_end(told: Callable[[], None]) -> None:
    """Call a function at SIGINT and SIGTERM, in the main thread, between any two bytecode instructions."""
    for number in ASKED_TO_END:
        signal.signal(number, lambda *_: told())


def call_at_hangup(told: Callable[[], None] = lambda: None) -> None:
    """Call a function at SIGHUP, in the main thread; by default SIGHUP ends a process."""
    signal.signal(signal.SIGHUP, lambda *_: told())


def stop_at_end(told: Callable[[], None] = lambda: None) -> None:
    """Call a function and raise `Stopped` at SIGINT and SIGTERM, which leaves the `with` blocks of the command."""

    def stop() -> NoReturn:
        told()
        raise Stopped

    call_at_end(stop)


class Format(StrEnum):
    """Format of the log."""

    AUTO = "auto"
    CONSOLE = "console"
    JSON = "json"


class Level(StrEnum):
    """Lowest level of timewheel's events that are logged; for other libraries it is at least ``warning``."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


LogFormat = Annotated[
    Format,
    Option(
        "--log-format", envvar="TIMEWHEEL_LOG_FORMAT", help="auto: console on a terminal, else one JSON object a line."
    ),
]
LogLevel = Annotated[
    Level, Option("--log-level", envvar="TIMEWHEEL_LOG_LEVEL", case_sensitive=False, help="Lowest level to log.")
]


def log_to_stderr(log_format: Format, log_level: Level) -> None:
    """Configure logging for this process, which belongs to the command."""
    import logging
    import sys

    import structlog

    from timewheel.hooks import LOGGER

    terminal = sys.stderr.isatty()
    as_json = log_format is Format.JSON or (log_format is Format.AUTO and not terminal)
    # A plain traceback: a pretty traceback shows local variables, which can hold secrets.
    console = structlog.dev.ConsoleRenderer(colors=terminal, exception_formatter=structlog.dev.plain_traceback)
    rendering: list[structlog.typing.Processor] = (
        [structlog.processors.JSONRenderer(default=str)] if as_json else [_visible, console]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.stdlib.ExtraAdder(),
            ],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                *rendering,
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.captureWarnings(capture=True)
    logging.getLogger(LOGGER).setLevel(log_level.upper())


def _visible(_logger: Any, _method: str, record: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape strings, also those of other libraries; values of other types are rendered by their repr."""
    shown = {name: visible(value) if isinstance(value, str) else value for name, value in record.items()}
    return {**shown, "exception": visible_lines(record["exception"])} if "exception" in record else shown
