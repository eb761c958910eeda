"""A Pulsar in a container, if a Docker engine answers, on this machine or on another.

A broker advertises its address to clients, and in a container it does not know that address: the port that is open for
it outside is known only when the container runs. So the container waits for that address and then starts its broker.
The broker itself keeps using its own address inside, because the outer address may not be reachable from there.

pulsar-client keeps the address that it connected to if the broker is a standalone broker, whatever a lookup returns.
The lookup's address is correct nevertheless, for clients without that rule.
"""

from __future__ import annotations

import os
import socket
import uuid
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Self

from timewheel.testing.admin_calls import await_ready, unload_topic
from timewheel.testing.errors import BrokerUnavailable
from timewheel.testing.maven import silent
from timewheel.testing.ports import LOOPBACK
from timewheel.testing.settings import COMMON_SETTINGS, ELSEWHERE, VERSION_VARIABLE, version_asked_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from testcontainers.core.container import DockerContainer

    from timewheel.testing.maven import Progress


USUAL_ENGINE = "unix:///var/run/docker.sock"
ENGINE_TIMEOUT_S = 5


def engine_address() -> str:
    """Return testcontainers' address: `$DOCKER_HOST`, else the current Docker context, else the usual socket."""
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
            # Directly first: docker leaks a socket if no server listens.
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(ENGINE_TIMEOUT_S)
                probe.connect(address.removeprefix("unix://"))
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


IMAGE = "apachepulsar/pulsar"
START_TIMEOUT_S = 180.0  # time until the broker is healthy, after the image was fetched
LOG_LINES = 30

INNER_PORT = 6650  # port for the broker's own connections; not open outside
CLIENT_PORT = 16650  # port for clients: a lookup through it returns the outer address
WEB_PORT = 8080
MEMORY = "-Xmx1024m -XX:MaxDirectMemorySize=1024m"
"""Same as for `LocalPulsar`; the image's own limits are 2 GB and 4 GB, more than the virtual machine of a desktop
engine may have."""

ADDRESS_FILE = "/tmp/timewheel-listeners"  # noqa: S108 - in the container, which no other program uses
ADDRESS_TIMEOUT_S = 60  # a container whose creator has ended waits no longer than this for its address
COMMAND = (
    f"until [ -s {ADDRESS_FILE} ]; do [ $SECONDS -lt {ADDRESS_TIMEOUT_S} ] || exit 1; sleep 0.1; done; "
    f"PULSAR_PREFIX_advertisedListeners=$(cat {ADDRESS_FILE}) bin/apply-config-from-env.py conf/standalone.conf "
    "&& exec bin/pulsar standalone -nfw -nss"
)

_SETTINGS: Mapping[str, str] = {
    **COMMON_SETTINGS,
    "brokerServicePort": str(INNER_PORT),
    "webServicePort": str(WEB_PORT),
    "bindAddresses": f"external:pulsar://0.0.0.0:{CLIENT_PORT}",
    "internalListenerName": "internal",
    # Without advertisedAddress, which cannot be combined with listeners, the bookie uses the address of the host name.
    "allowLoopback": "true",
}
_ENDED = frozenset({"exited", "dead", "removing"})

MEND = "repair that"
WITHOUT_REAPER = " (TESTCONTAINERS_RYUK_DISABLED=true does without testcontainers' reaper, which needs an image too)"


class PulsarContainer:
    """A standalone broker in a container: `with PulsarContainer() as pulsar: pulsar.Client(pulsar.service_url)`.

    It uses the engine that testcontainers finds: `$DOCKER_HOST`, which may be remote, else the current Docker
    context, else the usual socket. The container is removed by `stop`, after a failed start, and by testcontainers'
    reaper when the process that created it is gone.
    """

    def __init__(
        self,
        version: str | None = None,
        *,
        config: Mapping[str, str] | None = None,
        progress: Progress | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        """Choose the image; the engine is not contacted yet.

        Args:
            version: Version of Pulsar; default `$TIMEWHEEL_PULSAR_VERSION`, else 4.0.7.
            config: Broker settings by the names of `broker.conf`.
            progress: Called when an image is fetched.
            start_timeout_s: Seconds until the broker must be healthy, once its container runs.
        """
        self.version = version or version_asked_for()
        self._config = dict(config or {})
        self._say = progress or silent
        self._start_timeout_s = start_timeout_s
        self._container: DockerContainer | None = None
        self._name = ""
        self._urls: tuple[str, str] | None = None

    @property
    def service_url(self) -> str:
        """Service URL for clients; known once the broker runs."""
        return self._known_urls()[0]

    @property
    def admin_url(self) -> str:
        """URL of the admin REST interface; known once the broker runs."""
        return self._known_urls()[1]

    def start(self) -> Self:
        """Fetch the image if it is missing, start the container and wait until the broker is healthy.

        Raises `BrokerUnavailable` with the failed step, the engine's error and a remedy; the container is removed then.
        """
        if self._container is not None:
            raise RuntimeError(f"the container {self._name} is running already")
        if trouble := engine_trouble():
            raise BrokerUnavailable(f"{trouble}; {MEND}, {ELSEWHERE}")
        try:
            with self._trying("reach the engine", MEND):
                container = self._container = self._prepared()
            with self._trying(
                f"fetch the image {container.image}",
                f"fetch it by hand (docker pull {container.image}), ask for another version (${VERSION_VARIABLE})",
            ):
                self._fetch(container)
            with self._trying(f"start a container of {container.image}", f"{MEND}{WITHOUT_REAPER}"):
                container.start()
            with self._trying("tell the broker its address", MEND):
                self._check_running(container)
                self._report_address(container)
            self._await_healthy(container)
        except BaseException as error:
            self._remove_after(error)
            raise
        return self

    def stop(self) -> None:
        """Remove the container; no error if it is gone already."""
        from docker.errors import NotFound  # noqa: PLC0415 - an extra

        container, self._container, self._urls = self._container, None, None
        if container is None:
            return
        engine = container.get_docker_client().client
        try:
            # By name: only the engine knows a container whose creation was interrupted.
            engine.api.remove_container(self._name, force=True, v=True)
        except NotFound:
            pass
        finally:
            engine.close()

    def unload(self, topic: str) -> None:
        """Unload a topic, as `LocalPulsar.unload` does."""
        unload_topic(self.admin_url, topic)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _known_urls(self) -> tuple[str, str]:
        if self._urls is None:
            raise RuntimeError("the container is not running: the engine chooses its ports when it starts")
        return self._urls

    def _prepared(self) -> DockerContainer:
        from testcontainers.core.container import DockerContainer  # noqa: PLC0415 - an extra

        self._name = f"timewheel-pulsar-{uuid.uuid4().hex[:12]}"
        settings = {**_SETTINGS, **self._config}
        return (
            DockerContainer(f"{IMAGE}:{self.version}")
            .with_name(self._name)
            .with_exposed_ports(CLIENT_PORT, WEB_PORT)
            .with_envs(PULSAR_MEM=MEMORY, **{f"PULSAR_PREFIX_{name}": value for name, value in settings.items()})
            .with_command(["bash", "-c", COMMAND])
        )

    def _fetch(self, container: DockerContainer) -> None:
        """Fetch the image without testcontainers, which hides the registry's reason for a refusal."""
        from docker.errors import ImageNotFound  # noqa: PLC0415 - an extra

        engine = container.get_docker_client().client
        try:
            engine.images.get(container.image)
        except ImageNotFound:
            self._say(f"fetching the image {container.image} into the engine at {engine_address()}")
        else:
            return
        # Refusals come as an error answer of the engine or as a line of the stream. No time limit: a fetch takes as
        # long as the network needs.
        for line in engine.api.pull(container.image, stream=True, decode=True):
            if "error" in line:
                raise OSError(line["error"])

    def _report_address(self, container: DockerContainer) -> None:
        host = container.get_container_host_ip()
        # The name may resolve to ::1 first, and an engine need not have opened the port there.
        host = LOOPBACK if host == "localhost" else f"[{host}]" if ":" in host else host
        service_url = f"pulsar://{host}:{container.get_exposed_port(CLIENT_PORT)}"
        admin_url = f"http://{host}:{container.get_exposed_port(WEB_PORT)}"
        listeners = f"internal:pulsar://{LOOPBACK}:{INNER_PORT},external:{service_url}"
        container.copy_into_container(listeners.encode(), ADDRESS_FILE)
        self._urls = service_url, admin_url

    def _await_healthy(self, container: DockerContainer) -> None:
        def check() -> None:
            with self._trying("look at the container", MEND):
                self._check_running(container)

        try:
            await_ready(self.admin_url, self._start_timeout_s, check=check)
        except TimeoutError as error:
            raise self._unavailable(
                f"the broker of {container.image} did not become healthy: {error}",
                "see that the ports which the engine opens can be reached from here (TESTCONTAINERS_HOST_OVERRIDE "
                "names another host for them)",
            ) from error

    def _check_running(self, container: DockerContainer) -> None:
        made = container.get_wrapped_container()
        made.reload()
        if made.status in _ENDED:
            raise self._unavailable(
                f"the container of {container.image} ended before its broker was healthy",
                "repair what its log says (no word and exit code 137: too little memory)",
            )

    @contextmanager
    def _trying(self, what: str, advice: str) -> Iterator[None]:
        """Raise errors again with the failed step, the engine's error and a remedy."""
        from docker.errors import DockerException  # noqa: PLC0415 - an extra

        try:
            yield
        except BrokerUnavailable:
            raise
        except (DockerException, OSError, RuntimeError) as error:  # the last two come from testcontainers and requests
            raise self._unavailable(f"could not {what}: {words_of(error)}", advice) from error

    def _unavailable(self, problem: str, advice: str) -> BrokerUnavailable:
        return BrokerUnavailable(
            f"the Docker engine at {engine_address()} gave no Pulsar: {problem}; {advice}, {ELSEWHERE}"
            f"{self._last_words()}"
        )

    def _last_words(self) -> str:
        """Return the container's state and the end of its log; empty if there is none, or no answer."""
        from docker.errors import DockerException  # noqa: PLC0415 - an extra

        if self._container is None:
            return ""
        engine = self._container.get_docker_client().client
        try:
            state = engine.api.inspect_container(self._name)["State"]
            log = engine.api.logs(self._name, tail=LOG_LINES).decode("utf-8", "replace").strip()
        except (DockerException, OSError):
            return ""
        how = f"ended with exit code {state['ExitCode']}" if state["Status"] in _ENDED else f"is {state['Status']}"
        return f". The container {how}; its log ends:\n{log or '(nothing)'}"

    def _remove_after(self, error: BaseException) -> None:
        """Remove the remains of a failed start; if that fails too, the first failure is the error that is raised."""
        name = self._name
        try:
            self.stop()
        except Exception as remaining:  # noqa: BLE001 - see above
            error.add_note(f"the container {name} may be left: docker rm -f {name} ({words_of(remaining)})")
