"""`timewheel profile`: reads a live broker's limits into a profile file, for `timewheel plan --profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from timewheel.cli.connecting import AdminOptions
from timewheel.cli.options import with_options
from timewheel.cli.terminal import print_line

__all__ = ["profile"]


@with_options
def profile(
    *,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write the profile here, as TOML; else print it.", dir_okay=False)
    ] = None,
    cluster: AdminOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of TOML.")] = False,
) -> None:
    """Read a broker's profile, its limits and tick, from its settings; without a superuser's token, from its version's
    defaults.
    """
    import json
    from dataclasses import asdict

    import tomli_w

    from timewheel.inspect.profile import profile_of

    with cluster.admin() as admin:
        facts = asdict(profile_of(admin))
    text = tomli_w.dumps(facts)
    if out is not None:
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise typer.BadParameter(f"{out}: {error}", param_hint="--out") from error
    if as_json:
        print(json.dumps(facts))
    elif out is None:
        for line in text.splitlines():
            print_line(line)
    else:
        print_line(f"profile {out}")
