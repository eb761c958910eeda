"""Shared parts of the planner's commands: options, the broker's profile, a Spark session, progress, output."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from typer import Argument, Option

from timewheel.cli.connecting import AdminOptions
from timewheel.cli.long_running import stop_at_end
from timewheel.cli.options import writing
from timewheel.cli.terminal import print_line, say
from timewheel.core.broker_profile import DEFAULT_PROFILE, PROFILE_NAMES, BrokerProfile
from timewheel.core.durations import parse_duration
from timewheel.core.escapes import visible
from timewheel.core.extras import need_extras
from timewheel.core.plan import a_subscription
from timewheel.core.plurals import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from rich.console import Console

    from timewheel.spark_planner import ColumnMapping, History, Progress, ProgressCallback, Statistic, Survey
    from timewheel.spark_planner.extrapolation import Continued
    from timewheel.spark_planner.history.sampled import SampleNote

HistorySource = Annotated[
    str, Argument(metavar="HISTORY", help="Parquet, CSV, JSON lines, or a Spark table.", show_default=False)
]
MaybeHistory = Annotated[
    str | None,
    Argument(
        metavar="HISTORY", help="Parquet, CSV, JSON lines, or a Spark table; none with --from.", show_default=False
    ),
]
Topic = Annotated[str | None, Option("--topic", help="Topic of the history, if it has several.")]
Shadow = Annotated[
    bool,
    Option("--shadow", help="Plan a shadow: plain clients send and read as today, and timers far from due are moved."),
]
GapFraction = Annotated[
    float,
    Option("--gap-fraction", min=0.01, max=1.0, help="Largest share of the broker's gap limit, in any partition."),
]
MaxSilence = Annotated[
    str, Option("--max-silence", help="Longest silence of a partition after an unload: 10s; none: no limit.")
]
Cores = Annotated[int | None, Option("--cores", min=1, help="Cores for Spark; all if not given.")]
LEAST_HEAP_MB, MAX_HEAP_MB = 512, 1024 * 1024
"""With a smaller heap Spark runs out of memory before it reads anything. Java accepts no number of petabytes."""


def heap_size(text: str) -> str:
    """Check a Java heap size; Java itself would end with a stack trace that does not name the option."""
    match = re.fullmatch(r"([0-9]{1,9})([mg])", text, re.ASCII | re.IGNORECASE)
    size_mb = 0 if match is None else int(match[1]) * (1024 if match[2] in "gG" else 1)
    if not LEAST_HEAP_MB <= size_mb <= MAX_HEAP_MB:
        raise typer.BadParameter(
            f"{text!r} is no heap from {LEAST_HEAP_MB}m to {MAX_HEAP_MB // 1024}g: write a whole number and m or g, "
            "like 2g",
            param_hint="--memory",
        )
    return text


Memory = Annotated[
    str, Option("--memory", callback=heap_size, help="Heap of Spark's Java process, like 2g; from 512m.")
]
PlannerJson = Annotated[bool, Option("--json", help="Print the result as JSON; progress goes to stderr.")]

FILE_WIDTH = 120  # columns of text if the width is unknown: in a file, or at the end of a pipe


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryOptions:
    """Options of a command that reads a history by Spark: a group for `timewheel.cli.options.with_options`."""

    topic: Topic = None
    publish: Annotated[str | None, Option(help="Column of the publish time (publish_ms).")] = None
    due: Annotated[str | None, Option(help="Column of the due time (due_ms).")] = None
    delay: Annotated[str | None, Option(help="Column of the delay, instead of the due time (delay_ms).")] = None
    size: Annotated[str | None, Option(help="Column of payload bytes (size_bytes).")] = None
    key: Annotated[str | None, Option(help="Column of the partition key (key).")] = None
    topic_column: Annotated[str | None, Option(help="Column of the due topic (topic).")] = None
    timer_id: Annotated[
        str | None, Option(help="Column that all copies of a timer share (timer_id): only the first one counts.")
    ] = None
    time_unit: Annotated[str, Option(help="Unit of numbers in the time columns: auto, ms, s, us, ns, timestamp.")] = (
        "auto"
    )
    delay_unit: Annotated[str, Option(help="Unit of numbers in the delay column: auto, ms, s, us, ns, m, h, d.")] = (
        "auto"
    )
    file_format: Annotated[
        str, Option("--format", help="parquet, csv, json, orc, table; auto: by the file's ending or first bytes.")
    ] = "auto"
    separator: Annotated[
        str | None, Option(help="Between the columns of CSV.", show_default="by its header: , ; tab |")
    ] = None
    encoding: Annotated[
        str | None, Option(help="Encoding of CSV, such as latin-1.", show_default="by its first bytes")
    ] = None
    cores: Cores = None
    memory: Memory = "2g"

    def session(self) -> AbstractContextManager[SparkSession]:
        """Start Spark; see `session`."""
        return session(self.cores, self.memory)

    def read(self, spark: SparkSession, source: str) -> tuple[DataFrame, ColumnMapping]:
        """Return the rows of a history, and the meaning of its columns."""
        from timewheel.spark_planner import ColumnMapping, read_history

        names = ("publish", "due", "delay", "size", "key", "timer_id", "time_unit", "delay_unit")
        mapping = ColumnMapping(topic=self.topic_column, **{name: getattr(self, name) for name in names})
        written = {name: getattr(self, name) for name in ("file_format", "separator", "encoding")}
        return read_history(spark, source, **written), mapping

    def survey(
        self, spark: SparkSession, source: str, on_progress: ProgressCallback, *, all_topics: bool = False
    ) -> History:
        """Read a history, by all its topics or by the topic of the options."""
        from timewheel.spark_planner import survey
        from timewheel.spark_planner.fleet import FLEET_TOPICS

        limits: dict[str, Any] = {"topic_limit": FLEET_TOPICS} if all_topics else {}
        return survey(*self.read(spark, source), topic=self.topic, source=source, on_progress=on_progress, **limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerOptions(HistoryOptions):
    """Options of a command that evaluates plans on a history or on a survey."""

    stored: Annotated[
        Path | None,
        Option(
            "--from",
            help="A folder of `timewheel survey`, instead of a history: estimated in seconds.",
            file_okay=False,
        ),
    ] = None
    growth: Annotated[
        float | None,
        Option(
            min=0.001,
            max=1e6,
            show_default="1; of a sample its scale",
            help="Plan for this multiple of the history's volume. A file of `timewheel sample` stores its own scale.",
        ),
    ] = None
    as_is: Annotated[
        bool, Option("--as-is", help="Do not continue a history that is shorter than its delays: no sends follow it.")
    ] = False


@contextmanager
def session(
    cores: int | None, memory: str, *, when_stopped: str = "stopped: nothing was written"
) -> Iterator[SparkSession]:
    """Start a local Spark for the command, or reuse the Spark of this process.

    Mistakes in the options that only the planner finds become usage errors. On Ctrl-C and SIGTERM, ``when_stopped`` is
    printed on stderr, and the command ends with status 130.
    """
    need_extras("the planner", "planner", java=True)

    from pyspark.sql import SparkSession

    from timewheel.spark_planner.session import local_session

    ours = SparkSession.getActiveSession() is None
    spark = local_session(cores=cores, memory=memory)
    stopped = _stopped_by_signals() if ours else threading.Event()
    try:
        with refused_requests():
            yield spark
    except typer.BadParameter:
        raise
    except (Exception, KeyboardInterrupt):
        # Spark's exception for the cancelled job may have replaced the interrupt.
        if not stopped.is_set():
            raise
        # Java ends with this process. A call to stop Java could hang: this thread's connection may be in use.
        ours = False
        print_line(when_stopped, to_stderr=True)
        raise typer.Exit(130) from None
    finally:
        if ours:
            spark.stop()


@contextmanager
def refused_requests() -> Iterator[None]:
    """Turn mistakes in the options that only the planner finds into usage errors."""
    from timewheel.spark_planner import errors

    try:
        yield
    except (
        errors.BadColumnMapping,
        errors.MaxDelayTooShort,
        errors.MissingColumn,
        errors.NoSuchTopic,
        errors.SeveralTopics,
        errors.UnitUnknown,
        errors.WrongTimeUnit,
    ) as error:
        raise typer.BadParameter(str(error)) from error


def _stopped_by_signals() -> threading.Event:
    """Treat SIGTERM like Ctrl-C, and replace Spark's handlers: these call Java in the middle of another call."""
    import logging

    stopped = threading.Event()

    def told() -> None:
        stopped.set()
        logging.disable(logging.CRITICAL)  # py4j logs the call that this ends as an error, with its stack

    stop_at_end(told)
    return stopped


def limit_s(text: str, option: str = "--max-silence") -> float | None:
    """Return a limit such as ``10s`` in seconds; ``none``: no limit."""
    if text != "none" and not parse_duration(text):
        raise typer.BadParameter("0s is no limit that a plan can keep: give 1ms or more, or none", param_hint=option)
    return None if text == "none" else parse_duration(text) / 1_000


def need_new_folder(folder: Path, what: str) -> None:
    """Refuse a path that neither is a folder nor can become a folder; ``what`` is the reason in the error."""
    if folder.exists() and not folder.is_dir():
        raise typer.BadParameter(f"{folder} is a file: {what}", param_hint="--out")
    if not folder.exists() and not folder.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {folder.parent} to make {folder.name} in", param_hint="--out")


def note_of(source: str | None) -> SampleNote | None:
    """Return the note of a sample about its topic; None: the history is no sample."""
    if source is None:
        return None
    need_extras("the planner", "planner", java=True)
    from timewheel.spark_planner.history.sampled import sample_note

    return sample_note(source)


def as_sampled(
    note: SampleNote | None, due_topic: str | None, subscriptions: list[str] | None, *, unpartitioned: bool
) -> tuple[list[str] | None, bool, int]:
    """Return subscriptions, whether the due topic is unpartitioned, and its fewest possible partitions.

    Given values count before those of the sampled topic. A new due topic may have any number of partitions.
    """
    if note is None:
        return subscriptions, unpartitioned, 1
    for name in subscriptions or note.subscriptions:
        a_subscription(name)  # now: the plan is made only after Spark has read the history
    partitions = note.partitions if due_topic in (None, note.topic) else 1
    return subscriptions or list(note.subscriptions), unpartitioned or not partitions, max(partitions, 1)


def growth_of(growth: float | None, note: SampleNote | None, console: Console) -> float:
    """Return the multiple of the history's volume to plan for: the given value, or the scale of a sample.

    For a sample, print the meaning of this number for the sampled topic in one line.
    """
    if note is not None:
        said = f"SAMPLE  {note.rows:,} of {counted(note.population, 'entry', 'entries')} of {note.topic}: "
        if growth is None and note.scale == 1:
            said = f"SAMPLE  all {counted(note.rows, 'entry', 'entries')} of {note.topic}"
        elif growth is None:
            said += f"scaled to all of them (--growth {note.scale:.6g})"
        else:
            times = growth / note.scale
            said += (
                f"--growth {growth:g} is {times:.3g} times the topic's volume (--growth {note.scale:.6g} is its volume)"
            )
        say(console, said)
        return note.scale if growth is None else growth
    return 1.0 if growth is None else growth


def console_for(*, as_json: bool) -> Console:
    """Return the console for text: the terminal, or stderr if stdout is JSON."""
    from rich.console import Console

    console = Console(stderr=as_json, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = FILE_WIDTH
    return console


@contextmanager
def progress_on(console: Console) -> Iterator[ProgressCallback]:
    """Show a progress bar on a terminal; elsewhere print a line when a stage begins."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    bars = Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[left]}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    tasks: dict[str, Any] = {}

    def on_progress(progress: Progress) -> None:
        if progress.stage not in tasks:
            tasks[progress.stage] = bars.add_task(visible(progress.stage), total=None, left="")
            if not console.is_terminal:
                say(console, progress.stage)
        left = "" if progress.seconds_left is None else f"{progress.seconds_left:.0f} s left"
        if progress.fraction is not None:
            bars.update(tasks[progress.stage], total=1.0, completed=progress.fraction, left=left)

    with bars:
        yield on_progress


def show_reading(console: Console, statistic: Statistic, topic: str, continued: Continued) -> None:
    """Print how the history was read.

    First, if a history is too short, a warning and how it was continued; then a line that reveals a wrong unit; then
    the rows that were not used.
    """
    from timewheel.spark_planner.results.facts import describe_traffic, reading

    for number, said in enumerate(describe_traffic(continued)):
        say(console, said if number else f"SHORT  {said}", style="bold red")
    say(console, reading(statistic.cells[topic]))
    show_lost(console, statistic)


def show_lost(console: Console, statistic: Statistic) -> None:
    """Print the number of rows that were not used, or not completely."""
    if statistic.quarantined:
        text = f"QUARANTINE  {_part(statistic.quarantined, statistic.rows)} not used: "
        say(console, text + _counts(statistic.quarantined), style="bold red")
    if statistic.remarked:
        text = f"NOTED  {_part(statistic.remarked, statistic.rows)} counted without a size: "
        say(console, text + _counts(statistic.remarked))


def _part(rows_by: Mapping[str, int], rows: int) -> str:
    part = sum(rows_by.values())
    return f"{part:,} of {counted(rows, 'row')} {'was' if part == 1 else 'were'}"


def _counts(rows_by: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in rows_by.items())


def need_one_source(history: str | None, asked: PlannerOptions, of_history: Mapping[str, object]) -> None:
    """Require either a history or a survey, and refuse options (by name) of a history together with a survey."""
    if (history is None) == (asked.stored is None):
        raise typer.BadParameter("give a history or a survey (--from), not both", param_hint="HISTORY")
    if asked.stored is not None:
        columns = {"--timer-id": asked.timer_id, "--due": asked.due, "--delay": asked.delay}
        for option, given in (*of_history.items(), *columns.items()):
            if given:
                raise typer.BadParameter("it applies to a history, not to --from", param_hint=option)


def loaded_survey(asked: PlannerOptions) -> Survey:
    assert asked.stored is not None  # need_one_source
    need_extras("the planner", "planner")
    from timewheel.spark_planner import load_survey

    return load_survey(asked.stored)


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
