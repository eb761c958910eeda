"""`timewheel shadow`: plain clients keep their topic, and what is far from due waits elsewhere."""

from __future__ import annotations

import typer

from timewheel.cli.shadow_start import start
from timewheel.cli.shadow_status import status
from timewheel.cli.shadow_verify import verify

__all__ = ["shadow"]

shadow = typer.Typer(
    name="shadow",
    no_args_is_help=True,
    help="Long delays on a topic of plain clients: what is far from due is moved out, and comes back in time.",
)
# Each in a file of its own.
shadow.command()(start)
shadow.command()(status)
shadow.command()(verify)
