"""Ports for servers that must be able to restart on the same port."""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"
LOWEST_PORT = 15_000  # above the well-known ports and the default ports of common development servers
EPHEMERAL_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
USUAL_EPHEMERAL_START = 32_768
TRIES = 1_000


def free_ports(count: int) -> tuple[int, ...]:
    """Choose distinct free ports below the kernel's ephemeral range.

    A port inside that range could become the source port of an outgoing connection while its server restarts, and the
    server could not come back.
    """
    source = random.SystemRandom()  # not seeded: two processes must not choose alike
    found: list[int] = []
    for _ in range(TRIES):
        port = source.randrange(LOWEST_PORT, _ephemeral_start())
        if port not in found and is_free(port):
            found.append(port)
            if len(found) == count:
                return tuple(found)
    raise OSError(f"no {count} free ports from {LOWEST_PORT} to {_ephemeral_start()}")


def is_free(port: int) -> bool:
    """Return whether a server could listen on this port of the loopback interface now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do, so that old connections do not block it.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _ephemeral_start() -> int:
    try:
        start = int(EPHEMERAL_RANGE_FILE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return USUAL_EPHEMERAL_START
    return start if start > LOWEST_PORT + TRIES else USUAL_EPHEMERAL_START
