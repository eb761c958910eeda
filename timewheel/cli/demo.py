"""`timewheel demo` and `timewheel broker`: a real Pulsar on this machine, with a trace or alone, or a cluster."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from timewheel.cli.long_running import Stopped, stop_at_end
from timewheel.cli.options import FAILED, AsJson
from timewheel.cli.terminal import print_line, show_line
from timewheel.core.durations import parse_duration
from timewheel.core.extras import ExtraMissing, need_extras

if TYPE_CHECKING:
    from rich.console import Console

    from timewheel.demo.foresight import Foresight
    from timewheel.demo.results import Result
    from timewheel.testing import LocalCluster, LocalPulsar

SPARK_MEMORY = "1g"  # enough for a ledger, which has some hundred thousand rows
FORESIGHT_S = 20.0  # expected duration of the planner's part
STOPPED = "stopped: no prediction"


def demo(
    *,
    messages: Annotated[int, Option(help="Timers in the trace.")] = 16_000,
    day: Annotated[str, Option(help='Length of a "day": 5s, 2500ms.')] = "4s",
    seed: Annotated[int, Option(help="Seed of the trace.")] = 7,
    schemes: Annotated[str | None, Option(help="Schemes to play, separated by commas; default: all.")] = None,
    pulsar_version: Annotated[
        str | None, Option(envvar="TIMEWHEEL_PULSAR_VERSION", show_default="4.0.7", help="The release of Pulsar.")
    ] = None,
    out: Annotated[Path, Option(help="Folder for report, ledger and JSON.")] = Path("demo-out"),
    planner: Annotated[
        bool, Option("--planner/--no-planner", help="Predict the run from its own ledger, before the verdict.")
    ] = True,
    as_json: Annotated[bool, Option("--json", help="Print the results as JSON; progress goes to stderr.")] = False,
) -> None:
    """Start a real Pulsar, play one trace of delayed messages through every scheme, and unload every topic half way.

    Exit status 1 if a promise is broken, or if native delays cause no redelivery. The output also compares the figures
    with the gap law, and with the prediction that the planner, if installed, makes from the run's ledger. Neither
    comparison is a promise.
    """
    from rich.console import Console

    from timewheel.demo.settings import ALL_SCHEMES, DAYS, Settings, parse_schemes

    began_s = time.monotonic()

    stop_at_end()  # leave the with blocks, which end every process that was started
    settings = Settings(
        messages=messages,
        day_ms=parse_duration(day),
        seed=seed,
        schemes=parse_schemes(schemes) if schemes else ALL_SCHEMES,
        version=pulsar_version,
        out=out,
    )
    console = Console(stderr=as_json)
    days = f'{DAYS} "days" of {settings.day_ms / 1000:g} s · one partition each'
    show_line(console, f"timewheel demo  seed {settings.seed} · {settings.messages:,} timers · {days}")
    from timewheel.demo.run import run_demo, screen_for

    try:
        with screen_for(console) as screen:
            result = run_demo(settings, screen, began_s=began_s, then_s=FORESIGHT_S if planner else 0)
    except KeyboardInterrupt:
        show_line(console, "stopped: no verdict")
        raise typer.Exit(130) from None
    _print_figures(console, result)
    if planner:
        result = _with_foresight(console, result)
    _print_verdict(console, result, seconds=time.monotonic() - began_s)
    if as_json:
        print(json.dumps(result.as_json(), indent=1))
    if not result.verdict.kept:
        raise typer.Exit(FAILED)


def _print_figures(console: Console, result: Result) -> None:
    from timewheel.demo.results import Files
    from timewheel.demo.table import HEADER, plain_lines, row_texts, where_we_lose
    from timewheel.testing.evidence.ledger import recount_command

    show_line(console, "")
    header, *rows = plain_lines(HEADER, [row_texts(row) for row in result.rows])
    show_line(console, header, style="bold")
    for line in rows:
        show_line(console, line)
    for name, found in result.checker_trial.items():
        show_line(console, f"the checker, tried on a relay that {name}: lost {found.lost} of {found.acknowledged}")
    show_line(console, "Where timewheel loses:")
    for line in where_we_lose(result.rows):
        show_line(console, f"  {line}")
    files = Files.under(result.settings.out)
    show_line(console, f"Recount it yourself: {recount_command(files.ledger)}")
    show_line(console, "   ".join(str(path) for path in (files.ledger, files.results)))


def _with_foresight(console: Console, result: Result) -> Result:
    """Return the result with the planner's prediction, or unchanged: this step must never affect the verdict."""
    from timewheel.cli.planning import session
    from timewheel.demo.results import Files, save
    from timewheel.demo.run import State, screen_for
    from timewheel.spark_planner.session import Progress

    began_s, files = time.monotonic(), Files.under(result.settings.out)
    show_line(console, "")
    try:
        with screen_for(console) as screen:

            def on_progress(stage: str) -> None:
                left_s = max(1.0, FORESIGHT_S + began_s - time.monotonic())
                screen.show(State(phase=f"the planner predicts the same: {stage}", left_s=left_s))

            def progressed(progress: Progress) -> None:
                on_progress(progress.stage)

            on_progress("starting Spark")
            with session(None, SPARK_MEMORY, when_stopped=STOPPED) as spark:
                from timewheel.demo.planner import foresee

                found = foresee(spark, result, files.ledger, began_s=began_s, on_progress=progressed)
        result = replace(result, foresight=found)
        save(result, files)
    except ExtraMissing as missing:
        show_line(console, f"No prediction from the ledger: {missing}")
    except typer.Exit:
        pass  # stopped by a signal while Spark ran: the session has printed this
    except KeyboardInterrupt:
        show_line(console, STOPPED)
    except Exception as error:  # noqa: BLE001 - a failed prediction must not fail the demo
        show_line(console, f"No prediction from the ledger: {type(error).__name__}: {error}", style="bold red")
    else:
        _print_foresight(console, found)
    return result


def _print_verdict(console: Console, result: Result, *, seconds: float) -> None:
    """Print the last lines: figures outside their band, the verdict, its meaning, and the report's path."""
    from timewheel.demo.results import Files
    from timewheel.demo.table import meaning

    files = Files.under(result.settings.out)
    show_line(console, "")
    for sentence in result.outside:
        show_line(console, f"measured, no promise: {sentence}")
    broken = result.verdict.broken
    for sentence in broken:
        show_line(console, f"BROKEN  {sentence}", style="bold red")
    for row in result.rows if broken else ():
        for name, told in row.events.items():
            show_line(console, f"{row.scheme} logged for its operator: {name}, {told.times} times, last: {told.last}")
    kept, style = ("PROMISES KEPT", "bold green") if not broken else (f"{len(broken)} PROMISES BROKEN", "bold red")
    show_line(console, f"{kept}   {seconds:.0f} s", style=style)
    show_line(console, meaning(result.rows, result.settings.limit, kept=not broken))
    try:
        need_extras("a report", "report")
    except ExtraMissing as missing:
        show_line(console, f"No {files.report.name}: {missing}")
    else:
        show_line(console, f"{files.report}")


def _print_foresight(console: Console, found: Foresight) -> None:
    from timewheel.demo.foresight import HEADER, NOTE, row_texts
    from timewheel.demo.table import plain_lines

    header, *rows = plain_lines(HEADER, [row_texts(row) for row in found.rows])
    show_line(console, f"The planner, from this run's own ledger ({found.seconds:.0f} s, Spark's start included):")
    show_line(console, header, style="bold")
    for line in rows:
        show_line(console, line)
    show_line(console, NOTE)
    show_line(console, f"For this trace the planner would choose: {found.verdict}")


SESSION_TIMEOUT = "30s"  # Pulsar's default
LOOK_INTERVAL_S = 1.0  # Python handles a signal when a wait returns; this interval bounds the wait


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
    cluster: Annotated[
        bool, Option("--cluster", help="Run a cluster: ZooKeeper, three bookies and three brokers, with --set for all.")
    ] = False,
    session_timeout: Annotated[
        str | None,
        Option(show_default=SESSION_TIMEOUT, help="With --cluster: a node silent for so long counts as dead."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a real Pulsar broker on this machine until Ctrl-C, then remove its data."""
    from timewheel.testing import BrokerFailed, LocalCluster, LocalPulsar
    from timewheel.testing.process import exit_words

    config = _parsed(settings or [])
    if session_timeout is not None and not cluster:
        raise typer.BadParameter("a broker alone has no session; add --cluster", param_hint="--session-timeout")
    session_s = parse_duration(session_timeout or SESSION_TIMEOUT) / 1_000
    # SIGINT and SIGTERM both leave the with block, which removes the broker and its data.
    stop_at_end()

    def on_progress(line: str) -> None:
        print_line(line, to_stderr=True)

    try:
        if cluster:
            try:
                nodes = LocalCluster(version, config=config, progress=on_progress, session_timeout_s=session_s)
            except ValueError as error:
                raise typer.BadParameter(str(error), param_hint="--cluster") from error
            with nodes:
                _announce_cluster(nodes, as_json=as_json)
                ended: set[str] = set()
                while len(ended) < len(nodes.nodes):  # the others go on without a node that somebody has killed
                    time.sleep(LOOK_INTERVAL_S)
                    for name in nodes.nodes:
                        if name not in ended and nodes.pid(name) is None:
                            ended.add(name)
                            print_line(f"{name} has ended; its log: {nodes.log_path(name)}", to_stderr=True)
                raise BrokerFailed("all nodes of the cluster have ended")
        with LocalPulsar(version, config=config, progress=on_progress) as pulsar:
            _announce_broker(pulsar, as_json=as_json)
            code = None
            while code is None:
                with suppress(TimeoutError):
                    code = pulsar.wait(LOOK_INTERVAL_S)
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


def _announce_broker(pulsar: LocalPulsar, *, as_json: bool) -> None:
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


def _announce_cluster(cluster: LocalCluster, *, as_json: bool) -> None:
    pids = {name: cluster.pid(name) for name in cluster.nodes}
    if as_json:
        urls = {"service_url": cluster.service_url, "admin_urls": dict(cluster.admin_urls)}
        print(json.dumps({"version": cluster.version, **urls, "pids": pids, "logs": str(cluster.folder)}), flush=True)
        return
    print_line(f"Pulsar {cluster.version}, a cluster of {len(pids)} nodes")
    print_line(f"  service    {cluster.service_url}")
    for name, pid in pids.items():
        print_line(f"  {name:<9}  pid {pid}  {cluster.admin_urls.get(name, '')}".rstrip())
    print_line(f"  logs       {cluster.folder}")
    print_line("Ctrl-C stops it and removes its data.")
