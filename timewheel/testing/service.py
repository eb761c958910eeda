"""A broker for tests, of the kind that is available here."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import httpx

from timewheel.testing.admin_calls import broker_version, unload_topic
from timewheel.testing.container import PulsarContainer, engine_trouble
from timewheel.testing.errors import BrokerUnavailable
from timewheel.testing.local_pulsar import LocalPulsar
from timewheel.testing.settings import BROKER_VARIABLE, ELSEWHERE, BrokerChoice, BrokerKind, broker_choice

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from timewheel.testing.maven import Progress


class Broker(Protocol):
    """The interface of every broker for tests; only a `LocalPulsar` can also be killed, frozen and restarted."""

    @property
    def service_url(self) -> str:
        """Service URL for clients."""
        ...

    @property
    def admin_url(self) -> str: ...

    @property
    def version(self) -> str: ...

    def unload(self, topic: str) -> None:
        """Unload a topic; it is loaded again on use."""
        ...


class GivenBroker:
    """A broker that runs already; it is used, and never started or stopped."""

    def __init__(self, *, service_url: str, admin_url: str) -> None:
        self.service_url = service_url
        self.admin_url = admin_url
        self.version = broker_version(admin_url)

    def unload(self, topic: str) -> None:
        """Unload a topic; needs the rights to do so."""
        unload_topic(self.admin_url, topic)


@contextmanager
def pulsar_service(
    version: str | None = None,
    *,
    config: Mapping[str, str] | None = None,
    quick_start: bool = True,
    progress: Progress | None = None,
) -> Iterator[Broker]:
    """Provide a broker for the length of a `with` block: a given broker, a container, or a local broker.

    `$TIMEWHEEL_TEST_BROKER` chooses: `container`, `local`, or the service URL of a given broker, whose admin URL is in
    `$TIMEWHEEL_TEST_BROKER_ADMIN`. If it is not set, it is the broker of `$PULSAR_SERVICE_URL` and `$PULSAR_ADMIN_URL`,
    which the commands use too; without them a container if a Docker engine answers, else a `LocalPulsar`.

    Args:
        version: Version of Pulsar; default `$TIMEWHEEL_PULSAR_VERSION`, else 4.0.7. Ignored for a given broker.
        config: Broker settings; refused for a given broker, which is configured elsewhere.
        quick_start: Argument of `LocalPulsar`; False suits a broker under load for a long time.
        progress: Called with a line at a time during a download, and if the commands' broker is used.

    Raises:
        BrokerUnavailable: No broker can be had, or not the chosen kind; the message names the missing part.
        ValueError: `$TIMEWHEEL_TEST_BROKER` is none of the above.
    """
    choice = broker_choice(os.environ)
    if choice.kind is BrokerKind.GIVEN:
        yield _given(choice, config, progress)
    elif choice.kind is BrokerKind.CONTAINER or (choice.kind is BrokerKind.ANY and engine_trouble() is None):
        with PulsarContainer(version, config=config, progress=progress) as container:
            yield container
    else:
        with LocalPulsar(version, config=config, quick_start=quick_start, progress=progress) as local:
            yield local


def _given(choice: BrokerChoice, config: Mapping[str, str] | None, progress: Progress | None) -> GivenBroker:
    if config:
        raise BrokerUnavailable(
            f"the broker of {choice.variable} is not ours to configure ({', '.join(config)}); "
            f"{BROKER_VARIABLE}=local starts one that is"
        )
    if choice.variable != BROKER_VARIABLE and progress is not None:
        # The variable may be set for the commands only, and name a broker that is not meant for tests.
        progress(f"testing on {choice.service_url}, because {choice.variable} is set; {BROKER_VARIABLE} would choose")
    try:
        return GivenBroker(service_url=choice.service_url, admin_url=choice.admin_url)
    except httpx.HTTPError as error:
        raise BrokerUnavailable(
            f"the broker of {choice.variable} does not answer at its admin URL {choice.admin_url} ({error}); start it, "
            f"{ELSEWHERE}"
        ) from error
