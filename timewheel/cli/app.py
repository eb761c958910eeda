"""The command `timewheel`: its options, its commands and its exit status.

Exit status: 0 success; 1 failure; 2 the command line or the plan is wrong; `plan check`, `gaps`, `doctor`, `shadow`,
`status` and `whereis` also have 3 and 4.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import typer
from typer import Option

from timewheel.cli.dead_letters import dead_letters, parked
from timewheel.cli.demo import broker, demo
from timewheel.cli.doctor import doctor
from timewheel.cli.exporter import exporter
from timewheel.cli.gaps import explain, gaps
from timewheel.cli.options import FAILED, USAGE, USAGE_ERROR, CommandGroup, Commands
from timewheel.cli.plan import compare, plan, predict
from timewheel.cli.plan_check import check
from timewheel.cli.planning import profile
from timewheel.cli.relay import relay
from timewheel.cli.shadow import shadow
from timewheel.cli.sources import sample, survey
from timewheel.cli.status import status
from timewheel.cli.terminal import print_error, print_line
from timewheel.cli.timer import cancellations, timer, whereis
from timewheel.cli.topics import topics
from timewheel.core.errors import (
    BadConnection,
    CancelRefused,
    DurationError,
    PlanError,
    ProfileError,
    SendRefused,
    TimewheelError,
)
from timewheel.core.escapes import visible_lines, with_plan_file

_CALLERS_FAULT = (BadConnection, CancelRefused, DurationError, PlanError, ProfileError, SendRefused)


@dataclass(slots=True)
class Settings:
    """Options in front of the command; each command receives them as the context's object."""

    traceback: bool = False
    plan_file: str = ""  # the plan's file of the command, as the user typed it


app = Commands(
    name="timewheel",
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # text in brackets is no markup: rich must not remove it from help texts
    pretty_exceptions_enable=False,  # our errors are printed as a line; for a bug, show the plain traceback
)

# Each command imports its dependencies inside its function, so that `timewheel --help` loads neither the Pulsar client
# nor httpx. A group of commands is a Typer.
COMMANDS: dict[str, dict[str, Callable[..., None] | typer.Typer]] = {
    "Set up": {"demo": demo, "broker": broker, "topics": topics, "relay": relay},
    "Look": {"gaps": gaps, "gaps explain": explain, "doctor": doctor, "status": status, "exporter": exporter},
    "Cure": {"shadow": shadow},
    "Plan": {
        "sample": sample,
        "survey": survey,
        "profile": profile,
        "plan": plan,
        "plan check": check,
        "predict": predict,
        "compare": compare,
    },
    "Look after timers": {
        "whereis": whereis,
        "timer": timer,
        "cancellations": cancellations,
        "dead-letters": dead_letters,
        "parked": parked,
    },
}
"""Commands by their panels and names."""
for panel, commands in COMMANDS.items():
    for name, command in commands.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, rich_help_panel=panel)
        else:
            app.command(name, rich_help_panel=panel)(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        from timewheel import __version__

        print(f"timewheel {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    *,
    traceback: Annotated[
        bool, Option("--traceback", envvar="TIMEWHEEL_TRACEBACK", help="Print the traceback of an error.")
    ] = False,
    version: Annotated[  # noqa: ARG001 - its callback acts before the function runs
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Long delays on Apache Pulsar that survive reloads of a topic."""
    context.ensure_object(Settings).traceback = traceback


def main() -> None:
    """Run the command line and end the process.

    A `TimewheelError` is printed as one line on stderr. Any other exception is a bug and keeps its traceback.
    """
    settings = Settings()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Like stderr: a character that cannot be encoded must not end a command.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        sys.exit(app(obj=settings, standalone_mode=False))
    except USAGE_ERROR as error:
        shown = io.StringIO()
        error.show(shown)
        usage, mark, message = shown.getvalue().rstrip().partition("Error: ")
        print(f"{usage}{mark}{visible_lines(message)}", file=sys.stderr)
        sys.exit(error.exit_code)
    except typer.Abort:
        print_line("Aborted!", to_stderr=True)
        sys.exit(FAILED)
    except BrokenPipeError:
        # The reader of our output has closed, as in `timewheel ... | head`. Python would report this again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except Exception as error:  # noqa: BLE001 - the process ends by it, with its traceback if it is a bug
        if settings.traceback or not isinstance(error, TimewheelError):
            print(visible_lines(traceback.format_exc()), file=sys.stderr)
            sys.exit(FAILED)
        print_error(with_plan_file(str(error), settings.plan_file))
        sys.exit(USAGE if isinstance(error, _CALLERS_FAULT) else FAILED)
