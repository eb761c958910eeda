"""Notifies systemd that a service of ``Type=notify`` works: a datagram to systemd's notify socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress

__all__ = ["VARIABLES", "reporter"]

SOCKET = "NOTIFY_SOCKET"
VARIABLES = (SOCKET, "WATCHDOG_PID", "WATCHDOG_USEC")
"""Meant only for the process that systemd started, not for its children."""
WELL = b"READY=1\nWATCHDOG=1"
"""READY is sent every time: systemd uses only the first."""


def reporter(environment: Mapping[str, str] = os.environ) -> Callable[[], None]:
    """Return a function that notifies systemd; without a socket it does nothing.

    Args:
        environment: Names the socket: a path, or ``@`` and an abstract name.
    """
    address = environment.get(SOCKET, "")
    if not address:
        return lambda: None
    name = f"\0{address[1:]}" if address.startswith("@") else address

    def on_progress() -> None:
        # The receiver has gone, or its queue is full: the next datagram counts as well.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
            sender.sendto(WELL, name)

    return on_progress
