"""Some broker for tests, whichever can be had here."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from timewheel.testing.admin_calls import broker_version, unload_topic
from timewheel.testing.container import PulsarContainer, docker_answers
from timewheel.testing.errors import BrokerUnavailable
from timewheel.testing.local_pulsar import LocalPulsar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from timewheel.testing.maven import Progress

__all__ = ["Broker", "GivenBroker", "pulsar_service"]

SERVICE_VARIABLE = "PULSAR_SERVICE_URL"
ADMIN_VARIABLE = "PULSAR_ADMIN_URL"


class Broker(Protocol):
    """What any broker for tests can do; only a `LocalPulsar` can also be killed, frozen and restarted."""

    @property
    def service_url(self) -> str:
        """Where clients connect."""
        ...

    @property
    def admin_url(self) -> str:
        """Where the admin REST interface is."""
        ...

    @property
    def version(self) -> str:
        """The version of Pulsar that answers there."""
        ...

    def unload(self, topic: str) -> None:
        """Unload a topic; it is loaded again on use."""
        ...


class GivenBroker:
    """A broker that somebody else runs; it is used, and never started or stopped."""

    def __init__(self, *, service_url: str, admin_url: str) -> None:
        self.service_url = service_url
        self.admin_url = admin_url
        self.version = broker_version(admin_url)

    def unload(self, topic: str) -> None:
        """Unload a topic; needs the rights to do so."""
        unload_topic(self.admin_url, topic)


@contextmanager
def pulsar_service(
    version: str | None = None, *, config: Mapping[str, str] | None = None, progress: Progress | None = None
) -> Iterator[Broker]:
    """Have a broker for the length of a `with` block: a given one, one in a container, or a local one.

    `$PULSAR_SERVICE_URL` (with `$PULSAR_ADMIN_URL`) names a given one. Else a container is started if a Docker engine
    answers, else a `LocalPulsar`.

    Args:
        version: Of Pulsar; `$TIMEWHEEL_PULSAR_VERSION`, else 4.0.7, if not said. A given broker is taken as it is.
        config: Broker settings; refused for a given broker, whose settings are not ours.
        progress: Told about a download, one line at a time.

    Raises:
        BrokerUnavailable: None can be had; the message says what is missing.
    """
    service_url = os.environ.get(SERVICE_VARIABLE)
    if service_url:
        yield _given(service_url, config)
    elif docker_answers():
        with PulsarContainer(version, config=config) as container:
            yield container
    else:
        with LocalPulsar(version, config=config, progress=progress) as local:
            yield local


def _given(service_url: str, config: Mapping[str, str] | None) -> GivenBroker:
    admin_url = os.environ.get(ADMIN_VARIABLE)
    if not admin_url:
        raise BrokerUnavailable(f"{SERVICE_VARIABLE} is set and {ADMIN_VARIABLE} is not; both are needed")
    if config:
        raise BrokerUnavailable(
            f"the broker of {SERVICE_VARIABLE} is not ours to configure ({', '.join(config)}); unset it, "
            "and a local one is started"
        )
    return GivenBroker(service_url=service_url, admin_url=admin_url)
