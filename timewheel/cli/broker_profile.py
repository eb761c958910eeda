"""The broker that a plan is for: the options of the planner's commands that select it, and its profile."""

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
        help="Instead of --profile: web service of a live broker, whose settings are read; else PULSAR_ADMIN_URL.",
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
    """Return a broker profile, and its source in words.

    The first that is given counts: the profile of the options; that of the sample; that of the broker that the
    connection's variables or file name; the default.

    Args:
        name: A Pulsar version, or a profile file: TOML with the fields of `BrokerProfile`.
        broker_url: URL of a live broker's web service.
        token: Bearer token for this web service.
        token_file: File with such a token.
        tls_ca: PEM file with the certificate authorities to trust.
        connection: The connection's file.
        sampled: Profile of the broker from which the history was sampled.

    Raises:
        typer.BadParameter: Both a name and a URL are given, or the name is neither a version nor a TOML file.
        AdminError: The broker does not answer.
        ProfileError: A number is out of its range.
    """
    if name is not None:
        if broker_url is not None:
            raise typer.BadParameter("give --profile or --broker, not both", param_hint="--broker")
        return _stored(name), f"of --profile {name}"
    if broker_url is None and sampled is not None:
        return sampled, "of the broker that the sample is from"
    given = given_connection(file=connection)
    if broker_url is None and given.admin_url is None:
        return _stored(DEFAULT_PROFILE), f"the default of Pulsar {DEFAULT_PROFILE} (--profile or --broker names yours)"
    from timewheel.inspect.profile import profile_of as live

    with admin_client(broker_url, token, token_file, tls_ca, connection, option="--broker") as admin:
        source = "--broker" if broker_url is not None else given.sources["admin_url"]
        return live(admin), f"read from {broker_url or given.admin_url} ({source})"


def shown_profile(console: Console, *options: Any) -> BrokerProfile:
    """Return the profile of `profile_of` for these options, and print its gap limit and its source."""
    found, source = profile_of(*options)
    say(console, f"LIMIT  {found.gap_limit_ranges:,} gaps in a partition: {source}")
    return found


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
