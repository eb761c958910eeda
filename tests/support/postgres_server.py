"""A real PostgreSQL (Debian: apt-get install postgresql), in its own folder."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.support.processes import ran
from timewheel.testing import eventually
from timewheel.testing.process import OwnedProcess

START_TIMEOUT_S = 120.0
USER = "timewheel"
INITDB = ("--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C")
# Made for processes that are killed, not for power failures: the kernel keeps written data.
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "shared_buffers": "16MB",
    "max_connections": "20",
    "autovacuum": "off",
    # No shared memory that outlives a killed server, as segments of System V would.
    "shared_memory_type": "mmap",
    "dynamic_shared_memory_type": "mmap",
}


@contextmanager
def postgres_server(**others: str) -> Iterator[str]:
    """Run a server for this block; yield its address as psycopg expects it."""
    programs = _programs()
    # Not pytest's folder: the path of a socket has 107 characters at most, and another user must get there.
    folder = Path(tempfile.mkdtemp(prefix="tw-postgres-"))
    data, log = folder / "data", folder / "postgres.log"
    with OwnedProcess(log=log) as process:
        process.remove_at_end(folder)
        prefix = _as_other_user(folder)
        made = ran(
            [*prefix, programs / "initdb", "-D", data, f"--username={USER}", *INITDB],
            cwd=folder,
            timeout=START_TIMEOUT_S,
        )
        assert made.returncode == 0, made.stdout + made.stderr
        settings = {**SETTINGS, "unix_socket_directories": folder, **others}
        options = [f"--{name}={value}" for name, value in settings.items()]
        process.start([*prefix, str(programs / "postgres"), "-D", str(data), *options], cwd=folder)
        address = f"host={folder} user={USER} dbname=postgres connect_timeout=20"
        eventually(lambda: _answers(address), START_TIMEOUT_S, poll=0.02, message=process.log_tail())
        try:
            yield address
        finally:
            # An immediate shutdown: its data is not needed, and else its children are killed one by one.
            process.send_signal(signal.SIGQUIT)


def _programs() -> Path:
    """Find the folder of its programs; Debian has a folder for each version, and none of them is on the path."""
    on_path = shutil.which("initdb")
    found = [Path(on_path)] if on_path else sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("PostgreSQL is not here (Debian: apt-get install postgresql)")
    return found[-1].parent


def _as_other_user(folder: Path) -> list[str]:
    """Return the prefix of a command that runs it as another user: PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return []
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]


def _answers(address: str) -> bool:
    try:
        psycopg.connect(address).close()
    except psycopg.OperationalError:
        return False
    return True
