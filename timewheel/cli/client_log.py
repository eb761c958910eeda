"""Forwards the log of the client's C++ part to the standard logger ``pulsar``.

By default this log goes to standard output, where a command's results belong. A Python logger that is passed to the
client is called on C++ threads, for every debug line and whatever its level, so the client waits for Python several
times per message. Therefore the client writes into a pipe, and a thread of this process reads the pipe.
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
"""Another process has the producer of a name. Only leases have names here, so a standby meets this error at each
attempt. The caller that asked for the producer gets the error, and reports it if it matters.
"""
END = b"\0\n"
"""A line that the client never writes."""
JOIN_TIMEOUT_S = 1.0
_NOWHERE = logging.NullHandler()


@contextmanager
def client_log() -> Iterator[Any]:
    """Make a `logger` for ``pulsar.Client`` that logs errors only; close the client before the block ends."""
    import pulsar

    # A command without a log prints its result, or the error that ends it, but no log lines of the client.
    logging.getLogger("pulsar").addHandler(_NOWHERE)
    reading, writing = os.pipe()
    thread = threading.Thread(target=_forward, args=(reading,), name="timewheel-client-log", daemon=True)
    thread.start()
    try:
        yield pulsar.FileLogger(pulsar.LoggerLevel.Error, f"/proc/self/fd/{writing}")
    finally:
        # Closing this end does not end the thread: the client has opened the pipe a second time, and never closes it.
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
    """Return the `logging` level of a line of the client's log, its text, and the source location in the client; an
    empty location: the line has none.
    """
    found = LINE.match(line)
    if found is None:
        return logging.ERROR, line.rstrip(), ""
    level = logging.CRITICAL if found["level"] == "FATAL" else logging.ERROR
    return logging.DEBUG if EXPECTED.search(found["text"]) else level, found["text"], found["place"]
