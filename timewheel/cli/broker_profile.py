"""Which broker a plan is for: the options of the planner's commands that say it, and the profile made of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from timewheel.cli.connecting import admin_client, given_connection
from timewheel.core.broker_profile import DEFAULT_PROFILE

if TYPE_CHECKING:
    from timewheel.core.broker_profile import BrokerProfile

__all__ = ["BrokerUrl", "ProfileName", "profile_of"]

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
) -> BrokerProfile:
    """The profile that the options ask for; else that of the sample; else that of the broker that the connection's
    variables or file name; else the default.

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
        return _stored(name)
    if broker_url is None and sampled is not None:
        return sampled
    if broker_url is None and given_connection(file=connection).admin_url is None:
        return _stored(DEFAULT_PROFILE)
    from timewheel.ops.profile import profile_of as live

    option = None if broker_url is None else "--broker"
    with admin_client(broker_url, token, token_file, tls_ca, connection, option=option) as admin:
        return live(admin)


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
