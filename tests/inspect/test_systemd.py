"""What a service of systemd's says to it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from timewheel.cli.relay_processes import reporter


@pytest.mark.parametrize("form", ["path", "abstract"])
def test_all_is_well_is_said_to_the_socket_that_is_named(tmp_path: Path, form: str) -> None:
    name = str(tmp_path / "notify") if form == "path" else f"@timewheel-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(name.replace("@", "\0", 1) if form == "abstract" else name)
        systemd.settimeout(10)
        on_progress = reporter({"NOTIFY_SOCKET": name})
        for _ in range(2):
            on_progress()
            assert systemd.recv(100) == b"READY=1\nWATCHDOG=1"
    on_progress()  # nobody listens any more: no reason to end


def test_without_systemd_nothing_is_said() -> None:
    reporter({})()
