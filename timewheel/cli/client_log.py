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

__all__ = ["client_log"]

LINE = re.compile(r"\S+ \S+ (?P<level>[A-Z]+) +\[\d+\] (?P<place>\S+) \| (?P<text>.*)")
"""``2026-11-21 09:00:00.000 ERROR [139701] ClientConnection:485 | Connection refused``"""
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
            found = LINE.match(line)
            level = logging.CRITICAL if found and found["level"] == "FATAL" else logging.ERROR
            if found:
                logger.log(level, "%s", found["text"], extra={"place": found["place"]})
            else:
                logger.log(level, "%s", line.rstrip())
