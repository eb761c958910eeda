"""Which broker a plan is for: the options of the planner's commands that say it, and the profile made of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timewheel.cli.connecting import admin_client, given_connection
from timewheel.cli.terminal import say
from timewheel.core.broker_profile import DEFAULT_PROFILE

if TYPE_CHECKING:
    from rich.console import Console

    from timewheel.core.broker_profile import BrokerProfile

__all__ = ["BrokerUrl", "ProfileName", "profile_of", "shown_profile"]

ProfileName = Annotated[
    str | None,
    typer.Option(
        "--profile",
        show_default=f"a sample's own; else PULSAR_ADMIN_URL's; else {DEFAULT_PROFILE}",
        help="The broker: 4.0, 4.2, 5.0 for a version's defaults, or a TOML file.",
    ),
]
BrokerUrl = Annotated[
    str | None,
    typer.Option(
        "--broker",
        metavar="URL",
        help="Instead: the web service of a live broker, whose settings are read; else PULSAR_ADMIN_URL.",
    ),
]


def profile_of(
    name: str | None,
    broker_url: str | None,
    token: str | None,
    token_file: Path | None,
    tls_ca: Path | None,
    connection: Path | None,
    sampled: BrokerProfile | None = None,
) -> tuple[BrokerProfile, str]:
    """The profile that the options ask for; else that of the sample; else that of the broker that the connection's
    variables or file name; else the default. And where it is from, in words.

    Args:
        name: A version, or a profile file: TOML with the fields of `BrokerProfile`.
        broker_url: Of a live broker's web service.
        token: For it.
        token_file: For it.
        tls_ca: For it.
        connection: For it.
        sampled: Of the broker whose topic the history is a sample of.

    Raises:
        typer.BadParameter: Both are given, or one that cannot be.
        AdminError: The broker does not answer.
        ProfileError: A number is out of its range.
    """
    if name is not None:
        if broker_url is not None:
            raise typer.BadParameter("give --profile or --broker, not both", param_hint="--broker")
        return _stored(name), f"of --profile {name}"
    if broker_url is None and sampled is not None:
        return sampled, "of the broker that the sample is from"
    given = given_connection(file=connection).admin_url
    if broker_url is None and given is None:
        return _stored(DEFAULT_PROFILE), f"the default of Pulsar {DEFAULT_PROFILE} (--profile or --broker names yours)"
    from timewheel.ops.profile import profile_of as live

    option, source = ("--broker", "--broker") if broker_url is not None else (None, _source(given))
    with admin_client(broker_url, token, token_file, tls_ca, connection, option=option) as admin:
        return live(admin), f"read from {broker_url or given} ({source})"


def shown_profile(console: Console, *options: Any) -> BrokerProfile:
    """The profile of `profile_of` the same options; a line says its gap limit, and whose that is."""
    found, source = profile_of(*options)
    say(console, f"LIMIT  {found.gap_limit_ranges:,} gaps in a partition: {source}")
    return found


def _source(url: str | None) -> str:
    import os

    return "PULSAR_ADMIN_URL" if os.environ.get("PULSAR_ADMIN_URL") == url else "--connection"


def _stored(name: str) -> BrokerProfile:
    import tomllib

    from timewheel.core.broker_profile import PROFILE_NAMES, BrokerProfile

    if name in PROFILE_NAMES:
        return BrokerProfile.named(name)
    path = Path(name)
    try:
        facts = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        known = ", ".join(PROFILE_NAMES)
        raise typer.BadParameter(
            f"{name} is none of {known} and no TOML file ({error})", param_hint="--profile"
        ) from None
    return BrokerProfile.from_mapping({"name": path.stem, **facts})
