"""The Java side of a local Pulsar: the command line of a JVM and its logging."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
