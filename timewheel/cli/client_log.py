"""The log of the client's C++ part, as records of the standard logger ``pulsar``.

By itself it goes to standard output, where a command's results belong. A Python logger that is handed to the client is
called on C++ threads, for every debug line and whatever its level, so that the client waits for Python several
times per message. So the client writes into a pipe, and a thread of ours reads it.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["client_log", "read_line"]

LINE = re.compile(r"\S+ \S+ (?P<level>[A-Z]+) +\[\d+\] (?P<place>\S+) \| (?P<text>.*)")
"""``2026-11-21 09:00:00.000 ERROR [139701] ClientConnection:485 | Connection refused``"""
EXPECTED = re.compile(r"Failed to create producer: Producer(Busy|Fenced)\b")
"""Another process has the producer of a name. Only leases have names here, so one that stands by meets it at each
attempt; whoever asked for the producer is given the error, and tells it if it is one.
"""
END = b"\0\n"
"""A line that the client does not write."""
JOIN_TIMEOUT_S = 1.0
_NOWHERE = logging.NullHandler()


@contextmanager
def client_log() -> Iterator[Any]:
    """A `logger` for ``pulsar.Client``, of errors only; close the client before it ends."""
    import pulsar

    # A command without a log shows its answer, and the error that it ends by: not how the client came to it.
    logging.getLogger("pulsar").addHandler(_NOWHERE)
    reading, writing = os.pipe()
    thread = threading.Thread(target=_forward, args=(reading,), name="timewheel-client-log", daemon=True)
    thread.start()
    try:
        yield pulsar.FileLogger(pulsar.LoggerLevel.Error, f"/proc/self/fd/{writing}")
    finally:
        # Not by closing it: the client has opened the pipe once more, and keeps it open to the end of the process.
        os.write(writing, END)
        thread.join(JOIN_TIMEOUT_S)
        os.close(writing)


def _forward(reading: int) -> None:
    logger = logging.getLogger("pulsar")
    with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line == END.decode():
                return
            level, text, place = read_line(line)
            logger.log(level, "%s", text, extra={"place": place} if place else {})


def read_line(line: str) -> tuple[int, str, str]:
    """A line of the client's log as a level of `logging`, its text, and where in the client it was written; empty: the
    line does not say.
    """
    found = LINE.match(line)
    if found is None:
        return logging.ERROR, line.rstrip(), ""
    level = logging.CRITICAL if found["level"] == "FATAL" else logging.ERROR
    return logging.DEBUG if EXPECTED.search(found["text"]) else level, found["text"], found["place"]
