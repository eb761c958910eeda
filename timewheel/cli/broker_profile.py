"""The broker that a plan is for: the options of the planner's commands that select it, and its profile."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer
from typer import Option

from timewheel.cli.connecting import AdminOptions
from timewheel.cli.options import with_options, writing
from timewheel.cli.terminal import print_line, say
from timewheel.core.broker_profile import DEFAULT_PROFILE, PROFILE_NAMES, BrokerProfile

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions(AdminOptions):
    """Options of a command that selects a broker: a group for `timewheel.cli.options.with_options`."""

    admin_option: ClassVar[str] = "--broker"

    profile: Annotated[
        str | None,
        Option(
            show_default=f"a sample's own; else PULSAR_ADMIN_URL's; else {DEFAULT_PROFILE}",
            help="The broker: 4.0, 4.2, 5.0 for a version's defaults, or a TOML file.",
        ),
    ] = None
    admin_url: Annotated[
        str | None,
        Option(
            "--broker",
            metavar="URL",
            help="Instead of --profile: web service of a live broker, whose settings are read; else PULSAR_ADMIN_URL.",
        ),
    ] = None

    def broker_profile(self, sampled: BrokerProfile | None = None) -> tuple[BrokerProfile, str]:
        """Return a broker profile, and its source in words.

        The first that is given counts: the profile of the options; that of the sample; that of the broker that the
        connection's variables or file name; the default.
        """
        if self.profile is not None:
            if self.admin_url is not None:
                raise typer.BadParameter("give --profile or --broker, not both", param_hint="--broker")
            return stored_profile(self.profile), f"of --profile {self.profile}"
        if self.admin_url is None and sampled is not None:
            return sampled, "of the broker that the sample is from"
        given = ProfileOptions(admin_url=self.admin_url, connection=self.connection).given()
        if given.admin_url is None:
            default = f"the default of Pulsar {DEFAULT_PROFILE} (--profile or --broker names yours)"
            return stored_profile(DEFAULT_PROFILE), default
        from timewheel.inspect.profile import profile_of as live

        with self.admin() as admin:
            return live(admin), f"read from {given.admin_url} ({given.sources['admin_url']})"

    def shown(self, console: Console, sampled: BrokerProfile | None = None) -> BrokerProfile:
        """Return the broker profile, and print its gap limit and its source."""
        found, source = self.broker_profile(sampled)
        say(console, f"LIMIT  {found.gap_limit_ranges:,} gaps in a partition: {source}")
        return found


def stored_profile(name: str) -> BrokerProfile:
    """Return the profile of a Pulsar version, or of a file: TOML with the fields of `BrokerProfile`."""
    import tomllib

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


@with_options
def profile(
    *,
    out: Annotated[
        Path | None, Option("-o", "--out", help="Write the profile here, as TOML; else print it.", dir_okay=False)
    ] = None,
    cluster: AdminOptions,
    as_json: Annotated[bool, Option("--json", help="Print one line of JSON instead of TOML.")] = False,
) -> None:
    """Read a broker's profile, its limits and tick, from its settings; without a superuser's token, from its version's
    defaults.
    """
    import tomli_w

    from timewheel.inspect.profile import profile_of

    with cluster.admin() as admin:
        facts = asdict(profile_of(admin))
    text = tomli_w.dumps(facts)
    if out is not None:
        with writing(out, "--out"):
            out.write_text(text, encoding="utf-8")
    if as_json:
        print(json.dumps(facts))
    elif out is None:
        for line in text.splitlines():
            print_line(line)
    else:
        print_line(f"profile {out}")
