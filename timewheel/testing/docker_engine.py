"""Detects whether a Docker engine can be used here, and if not, why."""

from __future__ import annotations

import os
import socket
from importlib.util import find_spec

USUAL_ENGINE = "unix:///var/run/docker.sock"
ENGINE_TIMEOUT_S = 5


def engine_address() -> str:
    """Return the address that testcontainers uses: `$DOCKER_HOST`, else the current Docker context, else the usual
    socket.
    """
    from testcontainers.core.docker_client import get_docker_host  # noqa: PLC0415 - an extra

    return get_docker_host() or USUAL_ENGINE


def engine_trouble() -> str | None:
    """Return why no Docker engine can be used, without a full stop; None if an engine answers."""
    if find_spec("testcontainers") is None:
        return "testcontainers is not installed (it comes with the extra testing of pulsar-timewheel)"
    import docker  # noqa: PLC0415 - an extra
    from docker.errors import DockerException  # noqa: PLC0415

    address = engine_address()
    try:
        if address.startswith("unix://"):
            _connect(address.removeprefix("unix://"))
        engine = docker.from_env(
            environment={**os.environ, "DOCKER_HOST": address},
            timeout=ENGINE_TIMEOUT_S,
            use_ssh_client=address.startswith("ssh://"),  # as testcontainers does
        )
        try:
            engine.ping()
        finally:
            engine.close()
    except (DockerException, OSError) as error:
        return f"no Docker engine answers at {address} ({words_of(error)})"
    return None


def words_of(error: BaseException) -> str:
    """Return the engine's error text, or the reason for its silence, on one line."""
    words = getattr(error, "explanation", None) or str(error) or type(error).__name__
    return " ".join(str(words).split())


def _connect(path: str) -> None:
    """Try the socket directly first: docker leaks a socket if no server listens."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(ENGINE_TIMEOUT_S)
        probe.connect(path)
