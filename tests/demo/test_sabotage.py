"""The trial of the checker, of a play that ends before it."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pulsar
import pytest

from timewheel.demo.player import connect
from timewheel.demo.sabotage import try_checker

TIMEOUT_S = 60


def test_a_trial_that_waits_for_its_broker_ends_with_its_client(tmp_path: Path) -> None:
    """Else Ctrl-C would wait for the client's operation time-out, minutes here."""
    with ThreadPoolExecutor(1) as workers, socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(TIMEOUT_S)
        url = f"pulsar://127.0.0.1:{silent.getsockname()[1]}"
        client, is_over = connect(url, tmp_path), threading.Event()
        trial = workers.submit(try_checker, client, url, tmp_path, is_over)
        asked, _ = silent.accept()
        with asked:
            asked.settimeout(TIMEOUT_S)
            assert asked.recv(1), "the trial has asked"

            is_over.set()
            client.close()

            with pytest.raises(pulsar.PulsarException):
                trial.result(TIMEOUT_S)
