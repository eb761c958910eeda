"""`flush_async` of pulsar-client and a close of the same producer hang for good (broker-facts: callbacks-in-c)."""

from __future__ import annotations

import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Evidence
    from timewheel.testing import Broker

CLOSES = """
import sys, threading, time
import pulsar

client = pulsar.Client(sys.argv[1], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
for number in range(int(sys.argv[3])):
    producer = client.create_producer(f"{sys.argv[2]}-{number}", batching_enabled=True, max_pending_messages=0)
    is_closed = threading.Event()

    def send():
        try:
            while not is_closed.is_set():
                for _ in range(200):
                    producer.send_async(b"x", lambda *_: None)
                producer._producer.flush_async(lambda *_: None)
        except Exception:
            pass  # it is closed

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    time.sleep(0.1)  # while it sends
    producer.close()
    is_closed.set()
    sender.join()
    print(number + 1, flush=True)
"""
AT_A_TIME, PROCESSES = 40, 25
HANGS_S = 60.0  # a process of so many closes takes 10 s


@pytest.mark.proof
@pytest.mark.timeout(2_400)
def test_a_close_beside_a_flush_hangs_for_good(pulsar_broker: Broker, evidence: Evidence) -> None:
    """Fails when a client is out that releases the interpreter's lock: then runs may be flushed."""
    topic, closes = f"persistent://public/default/flush-{uuid.uuid4().hex[:8]}", 0
    for process in range(PROCESSES):
        command = [sys.executable, "-c", CLOSES, pulsar_broker.service_url, f"{topic}-{process}", str(AT_A_TIME)]
        try:
            subprocess.run(command, check=True, timeout=HANGS_S, stdout=subprocess.PIPE)
        except subprocess.TimeoutExpired as hung:
            closes += len((hung.stdout or b"").split()) + 1
            evidence("flush_async beside a close", {"closes": closes})
            return
        closes += AT_A_TIME
    pytest.fail(f"{closes} closes, and none hung")
