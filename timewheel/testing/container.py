"""A Pulsar in a container, where a Docker engine answers.

Not tried by this project's own runs: the machines that it was written and is tested on have no Docker engine.
"""

from __future__ import annotations

import os
import socket
from importlib.util import find_spec
from typing import TYPE_CHECKING, Self

import httpx

from timewheel.testing.admin_calls import await_ready, unload_topic
from timewheel.testing.ports import LOOPBACK, free_ports
from timewheel.testing.settings import COMMON_SETTINGS, version_asked_for

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

__all__ = ["PulsarContainer", "docker_answers"]

IMAGE = "apachepulsar/pulsar"
USUAL_ENGINE = "unix:///var/run/docker.sock"
ENGINE_TIMEOUT_S = 5.0
START_TIMEOUT_S = 180.0
"""Pulling the image comes before this."""


def docker_answers() -> bool:
    """Say whether testcontainers is installed and a Docker engine answers at `$DOCKER_HOST` or the usual socket."""
    if find_spec("testcontainers") is None:
        return False
    scheme, _, address = os.environ.get("DOCKER_HOST", USUAL_ENGINE).partition("://")
    if scheme == "unix":
        # Tried first: both docker and httpx leak a socket where nobody listens.
        return _listens(address) and _ping(httpx.HTTPTransport(uds=address), "docker")
    return _ping(httpx.HTTPTransport(), address)


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def _ping(transport: httpx.HTTPTransport, host: str) -> bool:
    with httpx.Client(transport=transport, timeout=ENGINE_TIMEOUT_S, trust_env=False) as engine:
        try:
            return engine.get(f"http://{host}/_ping").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False


class PulsarContainer:
    """One standalone broker in a container; testcontainers removes it when its owner is gone.

    Not tried where this was written: there is no Docker engine (see the module).
    """

    def __init__(self, version: str | None = None, *, config: Mapping[str, str] | None = None) -> None:
        """Choose image and ports; `config` holds broker settings by the names of `broker.conf`."""
        from testcontainers.core.container import DockerContainer  # noqa: PLC0415 - an extra

        self.version = version or version_asked_for()
        # The broker tells clients its own address, so its ports must be the same inside and outside.
        broker_port, web_port = free_ports(2)
        self.service_url = f"pulsar://{LOOPBACK}:{broker_port}"
        self.admin_url = f"http://{LOOPBACK}:{web_port}"
        settings = {
            **COMMON_SETTINGS,
            "advertisedAddress": LOOPBACK,
            "brokerServicePort": str(broker_port),
            "webServicePort": str(web_port),
            **(config or {}),
        }
        self._container = (
            DockerContainer(f"{IMAGE}:{self.version}")
            .with_bind_ports(broker_port, broker_port)
            .with_bind_ports(web_port, web_port)
            .with_envs(**{f"PULSAR_PREFIX_{name}": value for name, value in settings.items()})
            .with_command(
                "bash -c 'bin/apply-config-from-env.py conf/standalone.conf && exec bin/pulsar standalone -nfw -nss'"
            )
        )

    def start(self) -> Self:
        """Start the container and wait until the broker is healthy."""
        self._container.start()
        await_ready(self.admin_url, START_TIMEOUT_S, check=lambda: None)
        return self

    def stop(self) -> None:
        """Remove the container."""
        self._container.stop()

    def unload(self, topic: str) -> None:
        """Unload a topic, as `LocalPulsar.unload` does."""
        unload_topic(self.admin_url, topic)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
