"""The log of long-running commands, always on standard error: its options and its configuration."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timewheel.core.escapes import visible, visible_lines

if TYPE_CHECKING:
    import structlog.typing

__all__ = ["Format", "Level", "LogFormat", "LogLevel", "log_to_stderr"]


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
    typer.Option(
        "--log-format", envvar="TIMEWHEEL_LOG_FORMAT", help="auto: console on a terminal, else one JSON object a line."
    ),
]
LogLevel = Annotated[
    Level,
    typer.Option("--log-level", envvar="TIMEWHEEL_LOG_LEVEL", case_sensitive=False, help="Lowest level to log."),
]


def log_to_stderr(log_format: Format, log_level: Level) -> None:
    """Configure logging for this process, which belongs to the command.

    Args:
        log_format: `Format.AUTO`: console if standard error is a terminal, else JSON.
        log_level: Level of the logger ``timewheel``.
    """
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
    """Escape strings, also those of the client and of other libraries; values of other types are rendered by their
    repr.
    """
    shown = {name: visible(value) if isinstance(value, str) else value for name, value in record.items()}
    return {**shown, "exception": visible_lines(record["exception"])} if "exception" in record else shown
