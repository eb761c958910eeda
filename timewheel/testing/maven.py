"""The jars of a real Pulsar broker, fetched once from Maven and stored in the user's cache folder.

The broker needs about 320 jars (243 MB). They are stored in `<cache>/timewheel/pulsar-VERSION/lib`, where `<cache>` is
`$XDG_CACHE_HOME` or `~/.cache`. A version is complete or absent: it is fetched into a folder beside it and renamed,
under a file lock, so that any number of processes fetch it once.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from timewheel.core.escapes import shell_line
from timewheel.core.user_cache import cache_folder
from timewheel.testing.errors import BrokerUnavailable
from timewheel.testing.settings import DEFAULT_VERSION, SUPPORTED_VERSIONS

POLL_S = 0.2
TIMEOUT_S = 1_800  # the work under the lock has this limit itself; a longer wait means that a process hangs


@contextmanager
def locked(path: Path, *, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold an exclusive lock, which the kernel drops when this process ends, however it ends.

    Args:
        path: The lock file; it is created, and never removed, because removing it would open a race.
        on_wait: Called once if another process holds the lock.

    Raises:
        BrokerUnavailable: Another process held it for half an hour.
    """
    with path.open("a") as handle:
        deadline = time.monotonic() + TIMEOUT_S
        told = False
        while not _taken(handle.fileno()):
            if time.monotonic() > deadline:
                raise BrokerUnavailable(f"another process has held {path} for {TIMEOUT_S} s")
            if not told:
                on_wait()
                told = True
            time.sleep(POLL_S)
        yield


def _taken(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


MIN_JAVA = 17
JAVA_TIMEOUT_S = 60
FETCH_TIMEOUT_S = 1_800  # a slow network needs minutes for 243 MB; a fetch of more than half an hour hangs
ERROR_TAIL_LINES = 12

Progress = Callable[[str], None]
"""Called with a short line for a human, at most a few times a second."""

_VERSION_SHAPE = re.compile(r"[0-9]+(\.[0-9A-Za-z-]+)+")
_DOWNLOADED = re.compile(r"Downloaded from \S+: \S+\.jar \((?P<size>[0-9.]+) (?P<unit>B|kB|MB)\b")
_UNIT_BYTES = {"B": 1, "kB": 1_000, "MB": 1_000_000}

# The import of Pulsar's own bill of materials matters: without it jackson and log4j versions mix.
_POM = """<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>timewheel</groupId>
  <artifactId>local-pulsar</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencyManagement>
    <dependencies>
      <dependency>
        <groupId>org.apache.pulsar</groupId>
        <artifactId>pulsar</artifactId>
        <version>{version}</version>
        <type>pom</type>
        <scope>import</scope>
      </dependency>
    </dependencies>
  </dependencyManagement>
  <dependencies>
    <dependency>
      <groupId>org.apache.pulsar</groupId>
      <artifactId>pulsar-broker</artifactId>
      <version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java that can run the broker."""

    path: str
    major: int
    version: str


def find_java() -> Java:
    """Find `$JAVA_HOME/bin/java`, else `java` on the path.

    Raises `BrokerUnavailable`, with the package to install, if there is no Java or if it is older than Java 17.
    """
    java_home = os.environ.get("JAVA_HOME")
    path = shutil.which(str(Path(java_home) / "bin" / "java")) if java_home else None
    path = path or shutil.which("java")
    if path is None:
        raise BrokerUnavailable(
            f"Pulsar needs Java {MIN_JAVA} or newer, and no java was found. Debian, with Maven, which fetches Pulsar: "
            "apt install openjdk-17-jre-headless maven"
        )
    shown = subprocess.run(
        [path, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=False
    ).stderr
    found = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', shown)
    major = int(found[2]) if found else 0
    if found is None or major < MIN_JAVA:
        said = shown.splitlines()[0] if shown else "no version line"
        raise BrokerUnavailable(
            f"Pulsar needs Java {MIN_JAVA} or newer; {path} says: {said}. Debian: apt install openjdk-17-jre-headless"
        )
    return Java(path=path, major=major, version=found[1])


def broker_jars(version: str = DEFAULT_VERSION, *, progress: Progress | None = None) -> Path:
    """Return the folder with the broker's jars, fetching missing jars first.

    `progress` is called with a line from time to time during a download, never without a download.
    Raises `BrokerUnavailable` if `mvn` is missing or if the download fails.
    """
    if not _VERSION_SHAPE.fullmatch(version):
        raise ValueError(f"not a Pulsar version: {version!r} (tried ones: {', '.join(SUPPORTED_VERSIONS)})")
    home = cache_folder() / f"pulsar-{version}"
    lib = home / "lib"
    if lib.is_dir():
        _refuse_if_others_write(home.parent, home, lib)
        return lib
    home.parent.mkdir(parents=True, exist_ok=True)
    _refuse_if_others_write(home.parent)
    say = progress or silent
    with locked(
        home.parent / f"pulsar-{version}.lock",
        on_wait=lambda: say("another process is fetching Pulsar; waiting for it"),
    ):
        if not lib.is_dir():
            for stale in home.parent.glob(f"pulsar-{version}.partial-*"):  # no other process fills it: the lock is held
                shutil.rmtree(stale, ignore_errors=True)
            _fetch(version, home, say)
    return lib


def _refuse_if_others_write(*folders: Path) -> None:
    """Refuse folders that other users can write to: the jars run with all rights of this user."""
    for folder in folders:
        found = folder.stat()
        if found.st_uid not in {os.getuid(), 0} or found.st_mode & stat.S_IWOTH:
            raise BrokerUnavailable(
                f"{folder} is another user's, or everybody may write there: its jars would run as you. Set "
                f"XDG_CACHE_HOME to a folder of your own, or: {shell_line('chmod', 'o-w', str(folder))}"
            )


def silent(line: str) -> None:
    del line


def _fetch(version: str, home: Path, say: Progress) -> None:
    mvn = shutil.which("mvn")
    if mvn is None:
        raise BrokerUnavailable(
            f"Pulsar {version} is fetched with Maven, and no mvn was found. Debian: apt install maven "
            f"openjdk-17-jre-headless (about 243 MB, once, into {home})"
        )
    find_java()  # a clear error now, not after 243 MB
    partial = Path(tempfile.mkdtemp(prefix=f"{home.name}.partial-", dir=home.parent))
    try:
        (partial / "pom.xml").write_text(_POM.format(version=version), encoding="utf-8")
        say(f"fetching Pulsar {version} from Maven (about 243 MB, once, into {home})")
        # Not -q: its "Downloaded" lines are the progress. -B keeps them to one line per file.
        command = [
            mvn, "-B", "--strict-checksums", "-f", str(partial / "pom.xml"), "dependency:copy-dependencies",
            "-DincludeScope=runtime", f"-DoutputDirectory={partial / 'lib'}",
        ]  # fmt: skip
        _run_maven(command, version, say)
        if not any((partial / "lib").glob("pulsar-broker-*.jar")):
            raise BrokerUnavailable(f"Maven fetched no pulsar-broker jar for Pulsar {version}")
        partial.rename(home)
        say(f"Pulsar {version} is in {home}")
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _run_maven(command: list[str], version: str, say: Progress) -> None:
    lines: list[str] = []
    jars, size_bytes, reported_at = 0, 0.0, time.monotonic()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as maven:
        try:
            for line in (read.rstrip("\n") for read in maven.stdout or ()):
                lines = [*lines[-200:], line]
                if found := _DOWNLOADED.search(line):
                    jars += 1
                    size_bytes += float(found["size"]) * _UNIT_BYTES[found["unit"]]
                    if time.monotonic() - reported_at >= 1.0:
                        reported_at = time.monotonic()
                        say(f"fetching Pulsar {version}: {jars} jars, {size_bytes / 1e6:.0f} MB")
            code = maven.wait(timeout=FETCH_TIMEOUT_S)
        except BaseException:
            maven.kill()
            raise
    if code != 0:
        raise BrokerUnavailable(
            f"Maven could not fetch Pulsar {version} (exit {code}). Is the network there, and this version released "
            f"(tried ones: {', '.join(SUPPORTED_VERSIONS)})? Its log:\n{_what_maven_blames(lines)}"
        )


def _what_maven_blames(lines: list[str]) -> str:
    """Return the first block of Maven's errors; after its blank line comes advice about Maven."""
    errors = [line.removeprefix("[ERROR]").strip() for line in lines if line.startswith("[ERROR]")] or lines
    blame = list(takewhile(bool, errors)) or errors
    return "\n".join(blame[:ERROR_TAIL_LINES])


_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")


def ensure_class_archive(lib: Path, java: Java, *, train: Callable[[Path], None], progress: Progress | None) -> Path:
    """Return the path of the archive of loaded classes for these jars and this Java; `train` writes a missing archive.

    With it the JVM starts the broker in two thirds of the time: measured with Java 17 on four busy cores, from 15.5 to
    10.5 CPU seconds, from 6.4 to 4.1 s of wall time. The JVM writes the archive when a broker that was started with
    `-XX:ArchiveClassesAtExit` ends in order, and ignores an archive that does not fit.

    `train` gets the file to write. If it writes none, an empty file takes its place, so that it is tried only once.
    Nothing is written if the folder is not writable, as with jars that an administrator has installed.
    """
    archive = lib.parent / f"classes-java-{re.sub(r'[^0-9A-Za-z.+-]', '-', java.version)}.jsa"
    if not archive.exists() and os.access(archive.parent, os.W_OK):
        say = progress or silent
        with locked(
            archive.with_suffix(".lock"), on_wait=lambda: say("another process is preparing the broker; waiting for it")
        ):
            if not archive.exists():
                say("preparing the broker for quick starts (about 20 s, once)")
                partial = archive.with_suffix(".partial")
                partial.unlink(missing_ok=True)
                train(partial)
                partial.touch()
                partial.rename(archive)
    return archive


def using_archive(archive: Path) -> tuple[str, ...]:
    """Return the options for a JVM that reads the archive; none if the archive is missing or empty."""
    if not archive.exists() or not archive.stat().st_size:
        return ()
    return ("-Xshare:auto", f"-XX:SharedArchiveFile={archive}", *_QUIET)


def writing_archive(archive: Path) -> tuple[str, ...]:
    """Return the options for a JVM that writes the archive when it ends in order."""
    return (f"-XX:ArchiveClassesAtExit={archive}", *_QUIET)
