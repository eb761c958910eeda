"""How a command that runs for long writes its log: the options, and what they configure. Always to standard error."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timewheel.core.escapes import visible, visible_lines

if TYPE_CHECKING:
    import structlog.typing

__all__ = ["Format", "Level", "LogFormat", "LogLevel", "log_to_stderr"]


class Format(StrEnum):
    """What the log looks like."""

    AUTO = "auto"
    CONSOLE = "console"
    JSON = "json"


class Level(StrEnum):
    """The least level of timewheel's events that is written; of libraries it is never less than a warning."""

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
    typer.Option("--log-level", envvar="TIMEWHEEL_LOG_LEVEL", case_sensitive=False, help="The least level to write."),
]


def log_to_stderr(log_format: Format, log_level: Level) -> None:
    """Configure logging for this process, which is the command's own.

    Args:
        log_format: `Format.AUTO`: by whether standard error is a terminal.
        log_level: Of the logger ``timewheel``.
    """
    import logging
    import sys

    import structlog

    from timewheel.hooks import LOGGER

    terminal = sys.stderr.isatty()
    as_json = log_format is Format.JSON or (log_format is Format.AUTO and not terminal)
    # A plain traceback: the pretty one shows local variables, and secrets are among them.
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
    """Escape texts, the client's and other libraries' too; values of other types are shown by their repr."""
    shown = {name: visible(value) if isinstance(value, str) else value for name, value in record.items()}
    return {**shown, "exception": visible_lines(record["exception"])} if "exception" in record else shown
