"""A real Apache Pulsar on this machine, without Docker: standalone, from the Maven artifacts."""

from __future__ import annotations

import json
import re
import shutil
import signal
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from timewheel.testing.admin_calls import await_ready, unload_all_namespaces, unload_topic
from timewheel.testing.errors import BrokerFailed
from timewheel.testing.maven import (
    Java,
    Progress,
    broker_jars,
    ensure_class_archive,
    find_java,
    silent,
    using_archive,
    writing_archive,
)
from timewheel.testing.ports import LOOPBACK, free_ports, is_free
from timewheel.testing.process import OwnedProcess, exit_words
from timewheel.testing.settings import STANDALONE_SETTINGS, version_asked_for

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LITTLE_COMPILING = ("-XX:TieredStopAtLevel=1",)
"""Only the quick compiler. The optimizing compiler spends time that a broker of a few minutes never gets back: measured
with Java 17 on two busy cores, a start takes 6.5 instead of 13.5 CPU seconds, and the first 60,000 messages 10.6
instead of 28.7."""

_ADD_OPENS = (
    "java.base/java.lang",
    "java.base/java.nio",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.base/sun.net",
    "java.management/sun.management",
)

_LOG4J = """<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="ERROR">
  <Appenders>
    <Console name="console" target="SYSTEM_OUT">
      <PatternLayout pattern="%d{{ISO8601}} %-5p [%t] %c{{1}} - %m%n"/>
    </Console>
  </Appenders>
  <Loggers>
    <!-- A warning per call that 127.0.0.1 is on no rack. -->
    <Logger name="org.apache.bookkeeper.client.TopologyAwareEnsemblePlacementPolicy" level="error"/>
    <!-- It tells that the registration of the bookie is in a loop. -->
    <Logger name="org.apache.pulsar.metadata.coordination.impl.ResourceLockImpl" level="info"/>
    <Root level="{level}"><AppenderRef ref="console"/></Root>
  </Loggers>
</Configuration>
"""

# Jersey complains through java.util.logging, at every start, about parts that the broker does not use.
_JUL = """handlers=java.util.logging.ConsoleHandler
.level=SEVERE
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jvm:
    """A Java with Pulsar's jars, and the folder whose logging configuration and temporary files it uses."""

    java: str
    lib: Path
    folder: Path
    options: tuple[str, ...] = ()

    def command(self, main: str, *arguments: str, heap_mb: int, direct_mb: int) -> list[str]:
        """Return the command line that runs the class `main`; direct memory is where entries are cached."""
        return [
            self.java, f"-Xmx{heap_mb}m", f"-XX:MaxDirectMemorySize={direct_mb}m",
            "-XX:+ExitOnOutOfMemoryError", *self.options,
            *(f"--add-opens={package}=ALL-UNNAMED" for package in _ADD_OPENS),
            f"-Dlog4j.configurationFile={self.folder / 'log4j2.xml'}",
            f"-Djava.util.logging.config.file={self.folder / 'logging.properties'}",
            f"-Djava.io.tmpdir={self.folder}", "-cp", f"{self.lib}/*", main, *arguments,
        ]  # fmt: skip


def write_logging(folder: Path, level: str) -> None:
    """Write the logging configuration that a `Jvm` with this folder reads."""
    (folder / "log4j2.xml").write_text(_LOG4J.format(level=level), encoding="utf-8")
    (folder / "logging.properties").write_text(_JUL, encoding="utf-8")


def properties(settings: Mapping[str, str]) -> str:
    """Return the text of a configuration file: a value cannot begin another line."""
    return "".join(f"{name}={json.dumps(value)[1:-1]}\n" for name, value in settings.items())


START_TIMEOUT_S = 120.0  # a broker is healthy in about 5 s on an idle machine; a busy machine gets this long, twice
START_ATTEMPTS = 2
"""Once in some hundred starts after a kill, 4.2.4 could load no topic ("Failed to load topic within timeout") and it
stayed so: an operator would start the broker again."""
LOOP_ATTEMPTS = 6
"""Starts that are given up early because the bookie's registration is in a loop; a further start is not given up.

A killed broker leaves its bookie's registration in the metadata. The next broker deletes that registration and
registers anew. If the notification of the deletion comes after the new registration, as it may on a busy machine, 4.0.7
takes it for the loss of the new registration, deletes that too and registers anew, a hundred times a second and for
ever (seen in a log, and read in the source). A topic that is loaded at a moment without a bookie fails ("Not enough
non-faulty bookies available")."""
LOOP_ROUNDS = 5  # this many lost registrations are a loop; a single loss may happen
_LOST_REGISTRATION = re.compile(rb"Lock on resource /ledgers/available/\S+ was invalidated\. state Valid")

FILES_OF_METADATA_SINCE = (2, 11)  # older versions start a ZooKeeper for their metadata
ARCHIVE_TIMEOUT_S = 90.0  # Time-out of a broker that writes its class archive as it ends; about 11 s on a busy machine


class LocalPulsar:
    """A private standalone broker: `with LocalPulsar() as pulsar: pulsar.Client(pulsar.service_url)`.

    Ports are chosen at construction and the data is in a temporary folder; both stay through `restart` and through
    `kill` and `start`, so clients reconnect and no confirmed message is lost. `stop` removes the folder. The broker
    never outlives the process that created it, even if that is killed with -9. Any number may run at once.
    """

    def __init__(
        self,
        version: str | None = None,
        *,
        config: Mapping[str, str] | None = None,
        heap_mb: int = 1024,
        direct_memory_mb: int = 1024,
        log_level: str = "warn",
        quick_start: bool = True,
        progress: Progress | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        """Choose version and ports; nothing is fetched or started yet.

        Args:
            version: Version of Pulsar; default `$TIMEWHEEL_PULSAR_VERSION`, else 4.0.7.
            config: Broker settings by the names of `broker.conf`, over those of `timewheel.testing.settings`.
            heap_mb: Limit of the Java heap, in MiB.
            direct_memory_mb: Limit of Java's direct memory, in which the broker caches entries, in MiB.
            log_level: Level of the broker's log, as log4j names it.
            quick_start: Use an archive of the broker's classes (see `timewheel.testing.maven`), and compile
                quickly rather than well. The very first start of a version creates the archive, which takes about 20 s.
                False suits a broker under load for a long time.
            progress: Called with a line at a time during a download.
            start_timeout_s: Seconds of an attempt until the broker is healthy; a start makes at most two attempts.
        """
        self.version = version or version_asked_for()
        self._broker_port, self._web_port, self._bookie_port, self._zookeeper_port = free_ports(4)
        self.config: Mapping[str, str] = {
            **STANDALONE_SETTINGS,
            "bindAddress": LOOPBACK,
            "advertisedAddress": LOOPBACK,
            "brokerServicePort": str(self._broker_port),
            "webServicePort": str(self._web_port),
            **(config or {}),
        }
        self._heap_mb = heap_mb
        self._direct_memory_mb = direct_memory_mb
        self._log_level = log_level
        self._quick_start = quick_start
        self._jvm_options: tuple[str, ...] = ()
        self._say = progress or silent
        self._start_timeout_s = start_timeout_s
        self._folder: Path | None = None
        self._process: OwnedProcess | None = None
        self._change = threading.RLock()

    @property
    def service_url(self) -> str:
        """Service URL for clients; fixed from construction on."""
        return f"pulsar://{LOOPBACK}:{self.config['brokerServicePort']}"

    @property
    def admin_url(self) -> str:
        """URL of the admin REST interface; fixed from construction on."""
        return f"http://{LOOPBACK}:{self.config['webServicePort']}"

    @property
    def pid(self) -> int | None:
        """The broker's process id; None while it is down."""
        return self._process.pid if self._process is not None else None

    @property
    def folder(self) -> Path:
        """Folder of configuration, data and log, from the first `start` to `stop`."""
        if self._folder is None:
            raise RuntimeError("the broker was not started, or has been stopped")
        return self._folder

    @property
    def log_path(self) -> Path:
        """The broker's log, through all its restarts."""
        return self.folder / "pulsar.log"

    def start(self) -> Self:
        """Start the broker, with the data that `kill` or `restart` left, and wait until it is healthy.

        Raises `BrokerUnavailable` if Java, Maven or the jars cannot be had, and `BrokerFailed` if a port is in use, or
        with the end of the log if the broker does not become healthy.
        """
        with self._change:
            lib = broker_jars(self.version, progress=self._say)
            java = find_java()
            if self._quick_start:
                self._jvm_options = quick_options(self.version, lib, java, progress=self._say)
            process = self._process or self._prepare()
            if process.pid is None:
                self._check_ports()
            command = self._command(java.path, lib)
            hung = looped = 0
            while True:
                try:
                    self._attempt(process, command, give_up_loop=looped < LOOP_ATTEMPTS)
                    break
                except _RegistrationLoop as error:
                    looped += 1
                    self._say(f"{error}; starting it again")
                except TimeoutError as error:
                    hung += 1
                    if hung == START_ATTEMPTS:
                        raise BrokerFailed(f"{error}; its log ends:\n{process.log_tail()}") from error
                    self._say(f"{error}; starting it again")
        return self

    def stop(self) -> None:
        """End the broker and remove its data; no error if it is stopped already."""
        with self._change:
            process, self._process, self._folder = self._process, None, None
            if process is not None:
                process.close()

    def restart(self) -> None:
        """Take the broker down as in a cluster, topics unloaded first, and start it again: same ports, same data.

        Acknowledgements that had reached the broker are kept, unlike after `kill`.
        """
        with self._change:
            process = self._running()
            # Not by SIGTERM: in standalone the shutdown hooks of broker and bookie run at the same time, and if the
            # bookie was first, cursors could not be written (2 of 6 restarts delivered acknowledged messages again).
            unload_all_namespaces(self.admin_url)
            process.kill()
            self.start()

    def kill(self) -> None:
        """Kill the broker with -9 and return when it is gone; `start` brings it back with its data."""
        self._running().kill()

    def pause(self) -> None:
        """Freeze the broker (SIGSTOP) and return when it has stopped: connections stay open without any answer."""
        self._running().pause()

    def resume(self) -> None:
        """Continue a frozen broker (SIGCONT)."""
        self._running().send_signal(signal.SIGCONT)

    def unload(self, topic: str) -> None:
        """Unload a topic (all partitions of a partitioned topic), as load balancing would; it is loaded again on use.

        `topic` is a full name (`persistent://tenant/namespace/topic`) or a short name in `public/default`.
        """
        unload_topic(self.admin_url, topic)

    def wait(self, timeout_s: float) -> int:
        """Wait until the broker ends by itself, and return its exit code (negative: by that signal).

        Returns at once if the broker has ended already. Raises TimeoutError if it still runs after `timeout_s` seconds.
        """
        if self._process is None:
            raise RuntimeError("the broker was not started, or has been stopped")
        return self._process.wait(timeout_s)

    def log_tail(self, lines: int = 30) -> str:
        """Return the end of the broker's log."""
        return self._process.log_tail(lines) if self._process is not None else ""

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _running(self) -> OwnedProcess:
        if self._process is None or self._process.pid is None:
            raise RuntimeError("the broker is not running")
        return self._process

    def _prepare(self) -> OwnedProcess:
        folder = Path(tempfile.mkdtemp(prefix="timewheel-pulsar-"))
        try:
            process = OwnedProcess(log=folder / "pulsar.log")
        except BaseException:
            shutil.rmtree(folder)
            raise
        process.remove_at_end(folder)
        self._folder, self._process = folder, process
        (folder / "standalone.conf").write_text(properties(self.config), encoding="utf-8")
        write_logging(folder, self._log_level)
        return process

    def _command(self, java: str, lib: Path) -> list[str]:
        folder = self.folder
        jvm = Jvm(java=java, lib=lib, folder=folder, options=self._jvm_options)
        return jvm.command(
            "org.apache.pulsar.PulsarStandaloneStarter", "--config", str(folder / "standalone.conf"),
            *self._metadata(), "--bookkeeper-dir", str(folder / "bookkeeper"),
            "--bookkeeper-port", str(self._bookie_port), "-nfw", "-nss",
            heap_mb=self._heap_mb, direct_mb=self._direct_memory_mb,
        )  # fmt: skip

    def _metadata(self) -> tuple[str, ...]:
        """Options for the metadata: in files of its own, or up to 2.10 in a ZooKeeper that the broker starts."""
        folder = str(self.folder / "metadata")
        line = tuple(int(re.sub(r"\D.*", "", part) or "0") for part in self.version.split(".")[:2])
        if line < FILES_OF_METADATA_SINCE:
            return ("--zookeeper-dir", folder, "--zookeeper-port", str(self._zookeeper_port))
        return ("--metadata-dir", folder)

    def _check_ports(self) -> None:
        """Check that the ports are free: otherwise another server would answer in the broker's place until it ends."""
        for port in (self.config["brokerServicePort"], self.config["webServicePort"]):
            if port.isdecimal() and not is_free(int(port)):
                raise BrokerFailed(f"port {port} is in use: is another broker running there?")

    def _attempt(self, process: OwnedProcess, command: list[str], *, give_up_loop: bool) -> None:
        """Start the broker until it is healthy; else it is killed, and TimeoutError or `_RegistrationLoop` raised."""
        log_begins = self.log_path.stat().st_size if self.log_path.exists() else 0

        def check() -> None:
            if process.pid is None:
                raise BrokerFailed(
                    f"Pulsar {self.version} {exit_words(process.exit_code)} before it was healthy; "
                    f"its log ends:\n{process.log_tail()}"
                )
            if give_up_loop and _rounds(self.log_path, log_begins) >= LOOP_ROUNDS:
                raise _RegistrationLoop(f"Pulsar {self.version} registers its bookie again and again")

        process.start(command, cwd=self.folder)
        try:
            await_ready(self.admin_url, self._start_timeout_s, check=check)
            check()
        except TimeoutError as error:
            process.kill()
            raise TimeoutError(f"Pulsar {self.version} did not become healthy: {error}") from error
        except BaseException:
            process.kill()
            raise


def quick_options(version: str, lib: Path, java: Java, *, progress: Progress | None) -> tuple[str, ...]:
    """Return the options for a JVM that starts quickly; the first call for a version writes the archive of classes."""

    def train(archive: Path) -> None:
        """Run a broker with the same options to write a class archive."""
        trainee = LocalPulsar(version, quick_start=False)
        trainee._jvm_options = (*LITTLE_COMPILING, *writing_archive(archive))  # noqa: SLF001 - of this module
        with trainee:
            trainee._running().terminate(ARCHIVE_TIMEOUT_S)  # noqa: SLF001 - of this module

    archive = ensure_class_archive(lib, java, train=train, progress=progress)
    return (*LITTLE_COMPILING, *using_archive(archive))


class _RegistrationLoop(Exception):
    """The broker is in the loop described at `LOOP_ATTEMPTS`."""


def _rounds(log: Path, begins: int) -> int:
    """Count the losses of the bookie's registration in the log, from that byte on."""
    with log.open("rb") as file:
        file.seek(begins)
        return len(_LOST_REGISTRATION.findall(file.read()))
