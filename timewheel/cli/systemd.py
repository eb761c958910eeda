"""Telling systemd that a service of ``Type=notify`` works: a datagram to the socket that it names."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress

__all__ = ["VARIABLES", "teller"]

SOCKET = "NOTIFY_SOCKET"
VARIABLES = (SOCKET, "WATCHDOG_PID", "WATCHDOG_USEC")
"""Meant for the process that systemd started, and not for its children."""
WELL = b"READY=1\nWATCHDOG=1"
"""Ready is said every time: systemd counts the first."""


def teller(environment: Mapping[str, str] = os.environ) -> Callable[[], None]:
    """What says that all is well; it does nothing where nobody listens.

    Args:
        environment: Names the socket: a path, or ``@`` and an abstract name.
    """
    address = environment.get(SOCKET, "")
    if not address:
        return lambda: None
    name = f"\0{address[1:]}" if address.startswith("@") else address

    def tell() -> None:
        # Whoever listened has gone, or his queue is full: the next one counts as well.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
            sender.sendto(WELL, name)

    return tell
