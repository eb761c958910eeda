"""`timewheel broker`: a real Pulsar broker in the foreground, for experiments."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from timewheel.cli.long_running import Stopped, stop_at_end
from timewheel.cli.options import AsJson
from timewheel.cli.terminal import print_line

if TYPE_CHECKING:
    from timewheel.testing import LocalPulsar

LOOK_INTERVAL_S = 1.0
"""Python handles a signal when a wait returns; this interval bounds the wait."""


def broker(
    *,
    version: Annotated[
        str | None,
        Option(envvar="TIMEWHEEL_PULSAR_VERSION", show_default="4.0.7", help="The release of Pulsar to run."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        Option("--set", metavar="NAME=VALUE", help="A broker setting, as in broker.conf; may be given again."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a real Pulsar broker on this machine until Ctrl-C, then remove its data."""
    from timewheel.testing import BrokerFailed, LocalPulsar
    from timewheel.testing.process import exit_words

    config = _parsed(settings or [])
    # SIGINT and SIGTERM both leave the with block, which removes the broker and its data.
    stop_at_end()
    try:
        with LocalPulsar(version, config=config, progress=lambda line: print_line(line, to_stderr=True)) as pulsar:
            _announce(pulsar, as_json=as_json)
            code = _wait(pulsar)
            raise BrokerFailed(f"the broker {exit_words(code)}; its log ends:\n{pulsar.log_tail()}")
    except Stopped:
        print_line("stopped", to_stderr=True)


def _parsed(settings: list[str]) -> dict[str, str]:
    config: dict[str, str] = {}
    for setting in settings:
        name, separator, value = setting.partition("=")
        if not separator or not name.strip():
            raise typer.BadParameter(f"not NAME=VALUE: {setting!r}", param_hint="--set")
        config[name.strip()] = value.strip()
    return config


def _wait(pulsar: LocalPulsar) -> int:
    while True:
        try:
            return pulsar.wait(LOOK_INTERVAL_S)
        except TimeoutError:
            continue


def _announce(pulsar: LocalPulsar, *, as_json: bool) -> None:
    facts = {
        "version": pulsar.version,
        "pid": pulsar.pid,
        "service_url": pulsar.service_url,
        "admin_url": pulsar.admin_url,
        "log": str(pulsar.log_path),
    }
    if as_json:
        print(json.dumps(facts), flush=True)
        return
    print_line(f"Pulsar {pulsar.version} pid {pulsar.pid}")
    print_line(f"  service  {pulsar.service_url}")
    print_line(f"  admin    {pulsar.admin_url}")
    print_line(f"  log      {pulsar.log_path}")
    print_line(f"  curl {pulsar.admin_url}/admin/v2/brokers/configuration/runtime")
    print_line("Ctrl-C stops it and removes its data.")
