"""A fake Docker engine: it answers the requests that a broker in a container needs, or refuses them.

Instead of a container it runs a program of the test, so that the answers are realistic where this matters: a server
listens on the ports that the engine reports as open.
"""

from __future__ import annotations

import io
import json
import re
import struct
import tarfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
from testcontainers.core.config import ConnectionMode, testcontainers_config

from tests.support.http_servers import END_TIMEOUT_S, QuietHandler, serving
from timewheel.testing import LocalPulsar
from timewheel.testing.container import INNER_PORT, START_TIMEOUT_S
from timewheel.testing.ports import LOOPBACK, free_ports


@dataclass
class Container:
    """The engine's state of a container."""

    name: str
    spec: dict[str, Any]
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    status: str = "created"
    exit_code: int = 0
    log: str = ""
    ports: dict[int, int] = field(default_factory=dict)  # port inside to port outside
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        return dict(entry.split("=", 1) for entry in self.spec["Env"])

    def end(self, exit_code: int, log: str) -> None:
        self.status, self.exit_code, self.log = "exited", exit_code, log

    def inspected(self) -> dict[str, Any]:
        opened = {f"{inside}/tcp": [{"HostIp": "0.0.0.0", "HostPort": str(at)}] for inside, at in self.ports.items()}
        return {
            "Id": self.id,
            "Name": f"/{self.name}",
            "Config": {"Tty": False, "Image": self.spec["Image"]},
            "State": {"Status": self.status, "ExitCode": self.exit_code},
            "NetworkSettings": {"Ports": opened},
        }


Program = Callable[[Container], AbstractContextManager[object]]


@dataclass
class Engine:
    """The state of the fake; a test sets its images and its refusals."""

    address: str = ""
    images: set[str] = field(default_factory=set)  # images on the machine
    registry: set[str] = field(default_factory=set)  # images that can be pulled
    pull_error: str = ""
    """An error in the middle of a pull, as with a real engine: the request itself has succeeded by then."""
    refusals: dict[str, str] = field(default_factory=dict)
    """Error messages by the kind of request: the engine refuses these requests."""
    silent: bool = False  # accept connections but never answer
    ends_at_once: tuple[int, str] | None = None
    """The exit code and the log of containers that end as soon as they start."""
    program: Program | None = None  # runs as a container, once the container has its address
    containers: dict[str, Container] = field(default_factory=dict)
    ever: list[Container] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    _running: dict[str, tuple[threading.Thread, threading.Event]] = field(default_factory=dict)

    def find(self, name: str) -> Container | None:
        return next((each for each in self.containers.values() if name in {each.id, each.name}), None)

    def start(self, container: Container) -> None:
        inside = [int(port.split("/")[0]) for port in container.spec["ExposedPorts"]]
        container.ports = dict(zip(inside, free_ports(len(inside)), strict=True))
        container.status = "running"
        if self.ends_at_once is not None:
            container.end(*self.ends_at_once)

    def give_files(self, container: Container, archive: bytes) -> None:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for member in tar.getmembers():
                content = tar.extractfile(member)
                assert content is not None
                container.files["/" + member.name.lstrip("/")] = content.read()
        if self.program is not None:
            reported_to_end = threading.Event()
            thread = threading.Thread(target=_run, args=(self.program, container, reported_to_end), daemon=True)
            self._running[container.id] = thread, reported_to_end
            thread.start()

    def remove(self, container: Container) -> None:
        if container.id in self._running:
            thread, reported_to_end = self._running.pop(container.id)
            reported_to_end.set()
            thread.join(END_TIMEOUT_S)
        del self.containers[container.id]

    @contextmanager
    def on_socket(self, path: Path) -> Iterator[Engine]:
        """Serve on a Unix socket, like a local engine."""
        self.address = f"unix://{path}"
        with self._served_by(_UnixServer(str(path), type("OwnHandler", (_Handler,), {"engine": self}))):
            yield self

    @contextmanager
    def on_host(self, host: str) -> Iterator[Engine]:
        """Serve on a host, like an engine of another machine."""
        server = _TcpServer((host, 0), type("OwnHandler", (_Handler,), {"engine": self}))
        self.address = f"tcp://{host}:{server.server_port}"
        with self._served_by(server):
            yield self

    @contextmanager
    def _served_by(self, server: _TcpServer | _UnixServer) -> Iterator[None]:
        with serving(server):
            try:
                yield
            finally:
                for container in list(self.containers.values()):  # a test that failed half way
                    self.remove(container)
                self.over.set()


def point_at(address: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Configure testcontainers to use this engine, and no settings of the machine or its user."""
    monkeypatch.setenv("DOCKER_HOST", address)
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))  # no log-in at a registry
    for name in ("DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "DOCKER_CONTEXT", "DOCKER_AUTH_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(testcontainers_config, "tc_properties", {})
    monkeypatch.setattr(testcontainers_config, "tc_host_override", None)
    # Else a test that runs in a container itself looks for a network that both containers share.
    monkeypatch.setattr(testcontainers_config, "connection_mode_override", ConnectionMode.docker_host)
    # The reaper is another container, which would have to listen on a port and speak its protocol.
    monkeypatch.setattr(testcontainers_config, "ryuk_disabled", True)


@contextmanager
def answers_ready(container: Container) -> Iterator[None]:
    """Answer every request of the admin interface with 200: always healthy."""

    class Ready(QuietHandler):
        def respond(self) -> None:
            self.answer(200, b"ok")

    with serving(_TcpServer((LOOPBACK, container.ports[8080]), Ready)):
        yield


def local_broker(container: Container) -> AbstractContextManager[object]:
    """Start a real broker with the settings of the container, on the container's open ports."""
    # A port inside a real container is the port outside here: there is no network between the two.
    (inner,) = free_ports(1)
    outside = {**container.ports, INNER_PORT: inner}

    def moved(value: str) -> str:
        return re.sub(r"(?<=:)\d+\b", lambda port: str(outside.get(int(port[0]), port[0])), value)

    prefix = "PULSAR_PREFIX_"
    settings = {
        name.removeprefix(prefix): value for name, value in container.environment.items() if name.startswith(prefix)
    }
    for name in ("brokerServicePort", "webServicePort"):
        settings[name] = str(outside[int(settings[name])])
    (listeners,) = container.files.values()
    settings["advertisedListeners"] = moved(listeners.decode())
    settings["bindAddresses"] = moved(settings["bindAddresses"])
    # The image's own settings, where a LocalPulsar would have others.
    own = {"bindAddress": "0.0.0.0", "advertisedAddress": ""}
    return LocalPulsar(config={**own, **settings}, start_timeout_s=START_TIMEOUT_S)


def _run(program: Program, container: Container, reported_to_end: threading.Event) -> None:
    try:
        with program(container):
            reported_to_end.wait()
    except Exception as error:  # noqa: BLE001 - a container's failure is in its log
        container.end(1, str(error))


class _Handler(QuietHandler):
    engine: ClassVar[Engine]

    def respond(self) -> None:
        engine = self.engine
        if engine.silent:
            engine.over.wait()
            self.close_connection = True
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        path = re.sub(r"^/v\d+\.\d+", "", url.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        kind = self._kind(path)
        engine.calls.append(kind)
        if kind in engine.refusals:
            self._say(500, engine.refusals[kind])
            return
        match kind:
            case "ping":
                self.answer(200, b"OK")
            case "version":
                self._json(200, {"ApiVersion": "1.43", "Version": "24.0.0"})
            case "images/json":
                self._image(path.removeprefix("/images/").removesuffix("/json"))
            case "images/create":
                self._pull(f"{query['fromImage']}:{query['tag']}")
            case "containers/create":
                container = Container(query["name"], json.loads(body))
                engine.containers[container.id] = container
                engine.ever.append(container)
                self._json(201, {"Id": container.id, "Warnings": []})
            case _:
                self._container_call(kind, path.split("/")[2], body)

    def _kind(self, path: str) -> str:
        parts = path.strip("/").split("/")
        if parts[0] in {"_ping", "version"}:
            return parts[0].strip("_")
        if parts[-1] in {"json", "create", "start", "archive", "logs"}:
            return f"{parts[0]}/{parts[-1]}"
        return f"{parts[0]}/{self.command.lower()}"

    def _image(self, name: str) -> None:
        if name in self.engine.images:
            self._json(200, {"Id": "sha256:0", "RepoTags": [name]})
        else:
            self._say(404, f"No such image: {name}")

    def _pull(self, name: str) -> None:
        engine = self.engine
        if not engine.pull_error and name not in engine.registry:
            self._say(404, f"manifest for {name} not found: manifest unknown: manifest unknown")
            return
        lines: list[dict[str, Any]] = [{"status": f"Pulling from {name}"}]
        if engine.pull_error:
            lines.append({"errorDetail": {"message": engine.pull_error}, "error": engine.pull_error})
        else:
            engine.images.add(name)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in [*(json.dumps(line).encode() + b"\r\n" for line in lines), b""]:
            self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")

    def _container_call(self, kind: str, name: str, body: bytes) -> None:
        engine = self.engine
        container = engine.find(name)
        if container is None:
            self._say(404, f"No such container: {name}")
            return
        match kind:
            case "containers/json":
                self._json(200, container.inspected())
            case "containers/start":
                engine.start(container)
                self.answer(204, b"")
            case "containers/archive":
                engine.give_files(container, body)
                self.answer(200, b"")
            case "containers/logs":
                text = container.log.encode()
                self.answer(200, struct.pack(">BxxxL", 1, len(text)) + text, "application/vnd.docker.raw-stream")
            case "containers/delete":
                engine.remove(container)
                self.answer(204, b"")
            case _:
                self._say(501, f"this engine is not one for {kind}")

    def _say(self, status: int, message: str) -> None:
        self._json(status, {"message": message})

    def _json(self, status: int, value: object) -> None:
        self.answer(status, json.dumps(value).encode(), "application/json")


class _TcpServer(ThreadingHTTPServer):
    daemon_threads = True


class _UnixServer(ThreadingUnixStreamServer):
    daemon_threads = True
