"""A real Pulsar cluster on this machine, without Docker: ZooKeeper, bookies and brokers, each a process of its own."""

from __future__ import annotations

import shutil
import signal
import socket
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

import httpx

from timewheel.testing import admin_calls
from timewheel.testing.cluster_config import (
    DEFAULT_REPLICAS,
    HEAP_AND_DIRECT_MB,
    ZOOKEEPER,
    ClusterConfig,
    Kind,
    LoadManager,
    Node,
    available_mb,
    find_node,
    metadata_setup,
    program,
)
from timewheel.testing.errors import BrokerFailed
from timewheel.testing.eventually import eventually
from timewheel.testing.local_pulsar import Jvm, properties, quick_options, write_logging
from timewheel.testing.maven import Progress, broker_jars, find_java, silent
from timewheel.testing.ports import LOOPBACK, is_free
from timewheel.testing.process import OwnedProcess, exit_words
from timewheel.testing.settings import version_asked_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

START_TIMEOUT_S = 120.0
"""Time-out of a node's start. Three brokers start in about 8 s on two idle cores, in 17 s on busy ones."""
STOP_TIMEOUT_S = 90.0  # Time-out of a graceful stop: a broker unloads its topics first, which takes up to a minute
MOVE_TIMEOUT_S = 60.0  # Time-out until a moved or split bundle is served again
POLL_S = 0.1
PROBE_TIMEOUT_S = 1.0
_MEMINFO = Path("/proc/meminfo")


class LocalCluster:
    """A private cluster: `with LocalCluster() as cluster: pulsar.Client(cluster.service_url)`.

    Its nodes are `zookeeper`, `bookie-1` and so on, `broker-1` and so on. Each can be killed, frozen, stopped and
    started by name, with the same ports and the same data. `close` removes the data. As with `LocalPulsar`, no node
    outlives the process that created the cluster. Three brokers and three bookies use about 2.1 GB of memory.
    """

    def __init__(
        self,
        version: str | None = None,
        *,
        brokers: int = 3,
        bookies: int = 3,
        ensemble: int | None = None,
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
        session_timeout_s: float = 30.0,
        load_manager: LoadManager = "modular",
        config: Mapping[str, str] | None = None,
        log_level: str = "warn",
        progress: Progress | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        """Choose version and ports; nothing is fetched or started yet.

        Args:
            version: Version of Pulsar; default `$TIMEWHEEL_PULSAR_VERSION`, else 4.0.7.
            brokers: Number of brokers.
            bookies: Number of bookies. With as many as `ensemble`, a bookie that is away stops all writes.
            ensemble: Bookies that each ledger is spread over; default 2, or 1 with one bookie.
            write_quorum: Copies of each entry; default `ensemble`, at most 2.
            ack_quorum: Copies that must be confirmed; default `write_quorum`.
            session_timeout_s: Seconds after which a silent node counts as dead, and its topics go to other brokers. The
                default is Pulsar's; 6 makes a test of outages quicker.
            load_manager: `"modular"` (`ModularLoadManagerImpl`) or `"extensible"` (`ExtensibleLoadManagerImpl`).
            config: Settings of all brokers by the names of `broker.conf`.
            log_level: Level of the nodes' logs, as log4j names it.
            progress: Called with a line at a time during a download.
            start_timeout_s: Seconds until a started node must be ready.

        Raises:
            ValueError: A parameter is out of its limits.
        """
        self.version = version or version_asked_for()
        ensemble = min(DEFAULT_REPLICAS, bookies) if ensemble is None else ensemble
        write_quorum = min(DEFAULT_REPLICAS, ensemble) if write_quorum is None else write_quorum
        self._config = ClusterConfig(
            bookies=bookies,
            brokers=brokers,
            ensemble=ensemble,
            write_quorum=write_quorum,
            ack_quorum=min(DEFAULT_REPLICAS, write_quorum) if ack_quorum is None else ack_quorum,
            session_timeout_s=session_timeout_s,
            load_manager=load_manager,
            config=dict(config or {}),
        )
        self._nodes = {node.name: node for node in self._config.nodes()}
        self._log_level = log_level
        self._say = progress or silent
        self._start_timeout_s = start_timeout_s
        self._folder: Path | None = None
        self._versions: dict[str, str] = {}
        self._jvms: dict[str, Jvm] = {}
        self._processes: dict[str, OwnedProcess] = {}
        self._frozen: set[str] = set()

    @property
    def service_url(self) -> str:
        """Service URL with all brokers; fixed from construction on."""
        return "pulsar://" + ",".join(f"{LOOPBACK}:{node.port}" for node in self._of(Kind.BROKER))

    @property
    def admin_url(self) -> str:
        """Admin URL with all brokers, for `AdminClient` and `--admin-url`; fixed from construction on."""
        return "http://" + ",".join(node.admin_url.partition("://")[2] for node in self._of(Kind.BROKER))

    @property
    def admin_urls(self) -> Mapping[str, str]:
        """Admin URL of each broker alone, by its name; fixed from construction on."""
        return MappingProxyType({node.name: node.admin_url for node in self._of(Kind.BROKER)})

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of all nodes, in the order of their start."""
        return tuple(self._nodes)

    @property
    def folder(self) -> Path:
        """Folder of configuration, data and logs, from `open` to `close`."""
        if self._folder is None:
            raise RuntimeError("the cluster was not opened, or has been closed")
        return self._folder

    def pid(self, node: str) -> int | None:
        """Return a node's process id; None while it is down."""
        process = self._processes.get(find_node(self._nodes, node).name)
        return process.pid if process else None

    def log_path(self, node: str) -> Path:
        """Return the path of a node's log, through all its restarts."""
        return self.folder / f"{find_node(self._nodes, node).name}.log"

    def open(self) -> Self:
        """Start all nodes of a new cluster and wait until each broker is healthy.

        Raises `BrokerUnavailable` if Java, Maven, the jars or the memory cannot be had, and `BrokerFailed` if a port is
        in use, or with the end of its log if a node ends or does not become ready.
        """
        if self._folder is not None:
            raise RuntimeError("the cluster is open already; start brings back single nodes")
        self._config.check_memory(available_mb(_MEMINFO.read_text()) if _MEMINFO.exists() else None)
        self._versions.clear()
        self._jvms.clear()
        self._folder = Path(tempfile.mkdtemp(prefix="timewheel-cluster-"))
        try:
            write_logging(self._folder, self._log_level)
            self._start((self._nodes[ZOOKEEPER],))
            self._set_up()
            self._start(self._of(Kind.BOOKIE))
            self._start(self._of(Kind.BROKER))
            self._await(self._of(Kind.BROKER), lambda node: admin_calls.is_ready(node.admin_url, healthy=True))
        except BaseException as error:
            try:
                self.close()
            except Exception as failure:  # noqa: BLE001 - the first error is the cause
                error.add_note(f"not all nodes could be ended: {failure}")
            raise
        return self

    def close(self) -> None:
        """End all nodes and remove their data; no error if the cluster is closed. In a forked child nothing is done."""
        processes, self._processes = self._processes, {}
        folder, self._folder = self._folder, None
        if folder is not None and not processes:
            shutil.rmtree(folder, ignore_errors=True)
        with ExitStack() as stack:
            for process in processes.values():
                # Its supervisor removes the folder that all share, so every node must have ended before.
                stack.callback(process.close)
                process.send_signal(signal.SIGKILL)
            for process in processes.values():
                process.kill()

    def start(self, node: str, *, version: str | None = None) -> None:
        """Start a node that is down, with its data, and wait until it is ready; no effect while it runs.

        With `version`, the node runs that version of Pulsar from then on, as after a step of a rolling upgrade.
        """
        down = find_node(self._nodes, node)
        if version is not None and self.pid(node) is None:
            self._versions[node] = version
        self._start((down,))

    def stop(self, node: str) -> None:
        """End a node in order (SIGTERM): a broker unloads its topics first. After 90 s it is killed."""
        self._running(node).terminate(STOP_TIMEOUT_S)

    def kill(self, node: str) -> None:
        """Kill a node with -9 and return when it is gone; `start` brings it back with its data."""
        self._running(node).kill()

    def restart(self, node: str, *, version: str | None = None) -> None:
        """Stop a node in order and start it again: same ports, same data; see `start` for `version`."""
        self.stop(node)
        self.start(node, version=version)

    def freeze(self, node: str) -> None:
        """Freeze a node (SIGSTOP) and return when it has stopped: connections stay open without any answer."""
        process = self._running(node)
        self._frozen.add(node)
        process.pause()

    def thaw(self, node: str) -> None:
        """Continue a frozen node (SIGCONT)."""
        self._running(node).send_signal(signal.SIGCONT)
        self._frozen.discard(node)

    def owner(self, topic: str) -> str | None:
        """Return the name of the broker that serves a topic or a partition; None if none does for now.

        A topic without an owner is given one, as by a client that connects to it. Until a dead broker's session has
        timed out, it still is the owner.
        """
        url = admin_calls.lookup(self._answering(), topic)
        if url is None:
            return None
        port = int(url.rstrip("/").rpartition(":")[2])
        return next(node.name for node in self._of(Kind.BROKER) if node.port == port)

    def bundle(self, topic: str) -> str:
        """Return the bundle that a topic belongs to, as a range of hashes."""
        return admin_calls.bundle_of(self._answering(), topic)

    def unload(self, topic: str) -> None:
        """Unload a topic (all partitions of a partitioned topic), as load balancing would; it is loaded again on use.

        `topic` is a full name (`persistent://tenant/namespace/topic`) or a short name in `public/default`.
        """
        admin_calls.unload_topic(self._answering(), topic)

    def move(self, topic: str, *, to: str) -> None:
        """Move a topic's bundle to a broker, and return when that broker serves it."""
        broker = find_node(self._nodes, to, Kind.BROKER)
        if self.pid(to) is None or to in self._frozen:
            raise RuntimeError(f"{to} is {self._state(to)}, so no topic can be moved to it")

        def is_moved() -> bool:
            owner = self.owner(topic)
            if owner not in {to, None}:
                # Refused while a broker that was away is registered anew. The destination holds for the first lookup
                # only, so with clients at work another broker may get the bundle (apache/pulsar#24884).
                admin_calls.unload_bundle(self._answering(), topic, to=f"{LOOPBACK}:{broker.web_port}")
                owner = self.owner(topic)
            return owner == to

        self._await_change(is_moved, f"{topic} did not move to {to}")

    def split(self, topic: str) -> str:
        """Split a topic's bundle in two, and return the topic's new bundle when a broker serves it."""
        before = self.bundle(topic)

        def is_split() -> bool:
            if self.bundle(topic) != before:
                return self.owner(topic) is not None
            admin_calls.split_bundle(self._answering(), topic)
            return False

        self._await_change(is_split, f"the bundle {before} of {topic} was not split")
        return self.bundle(topic)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _of(self, kind: Kind) -> tuple[Node, ...]:
        return tuple(node for node in self._nodes.values() if node.kind is kind)

    def _state(self, name: str) -> str:
        return "down" if self.pid(name) is None else "frozen" if name in self._frozen else "running"

    def _running(self, name: str) -> OwnedProcess:
        process = self._processes.get(find_node(self._nodes, name).name)
        if process is None or process.pid is None:
            raise RuntimeError(f"{name} is not running; start brings it back")
        return process

    def _answering(self) -> str:
        """Return the admin URL of a broker that answers."""
        for node in self._of(Kind.BROKER):
            if self._state(node.name) == "running" and admin_calls.is_ready(node.admin_url):
                return node.admin_url
        states = ", ".join(f"{name} is {self._state(name)}" for name in self.admin_urls)
        raise BrokerFailed(f"no broker of the cluster answers: {states}; start or thaw one")

    def _await_change(self, is_made: Callable[[], bool], failure: str) -> None:
        refusals = []

        def is_made_now() -> bool:
            try:
                return is_made()
            except httpx.HTTPError as error:  # while a bundle is under way
                refusals.append(f" (last refusal: {error})")
                return False

        try:
            eventually(is_made_now, MOVE_TIMEOUT_S, poll=POLL_S)
        except AssertionError as error:
            reason = "".join(refusals[-1:])
            raise BrokerFailed(f"{failure} within {MOVE_TIMEOUT_S:g} s{reason}; logs: {self.folder}") from error

    def _process(self, name: str) -> OwnedProcess:
        if name not in self._processes:
            process = self._processes[name] = OwnedProcess(log=self.folder / f"{name}.log")
            process.remove_at_end(self.folder)
        return self._processes[name]

    def _run(self, name: str, kind: Kind, main: str, *arguments: str) -> OwnedProcess:
        """Start a class of Java in the process of this name."""
        jvm = self._jvm(self._versions.get(name, self.version))
        heap_mb, direct_mb = HEAP_AND_DIRECT_MB[kind]
        process = self._process(name)
        self._frozen.discard(name)
        process.start(jvm.command(main, *arguments, heap_mb=heap_mb, direct_mb=direct_mb), cwd=self.folder)
        return process

    def _jvm(self, version: str) -> Jvm:
        """Return the Java that runs this version; the first call fetches missing jars."""
        if version not in self._jvms:
            lib, java = broker_jars(version, progress=self._say), find_java()
            options = quick_options(version, lib, java, progress=self._say)
            self._jvms[version] = Jvm(java=java.path, lib=lib, folder=self.folder, options=options)
        return self._jvms[version]

    def _set_up(self) -> None:
        """Write the metadata of a new cluster, its tenant `public` and its namespace `public/default`."""
        setup = metadata_setup(self._nodes[ZOOKEEPER], self._of(Kind.BROKER)[0], self.service_url)
        process = self._run("setup", Kind.ZOOKEEPER, *setup)
        try:
            code = process.wait(self._start_timeout_s)
        except TimeoutError as error:
            raise self._failure("setup", str(error)) from error
        if code:
            raise self._failure("setup", exit_words(code))

    def _start(self, nodes: Sequence[Node]) -> None:
        """Start those of the nodes that are down, side by side, and wait until all are ready."""
        started = [node for node in nodes if self._process(node.name).pid is None]
        for node in started:
            for port in node.ports:
                if not is_free(port):
                    raise BrokerFailed(f"port {port} of {node.name} is in use: end the process that listens there")
            data, conf = self.folder / node.name, self.folder / f"{node.name}.conf"
            data.mkdir(exist_ok=True)
            settings = self._config.settings(node, self._nodes[ZOOKEEPER].port, data)
            conf.write_text(properties(settings), encoding="utf-8")
            self._run(node.name, node.kind, *program(node, conf))
        self._await(started, is_ready)

    def _await(self, nodes: Sequence[Node], condition: Callable[[Node], bool]) -> None:
        """Wait until starting nodes meet a condition; a node that does not meet it is killed."""

        def is_met(node: Node) -> bool:
            for other in nodes:  # a node that has ended may be the reason why another is not ready
                process = self._process(other.name)
                if process.pid is None:
                    raise self._failure(other.name, f"{exit_words(process.exit_code)} before it was ready")
            return condition(node)

        for node in nodes:
            try:
                eventually(partial(is_met, node), self._start_timeout_s, poll=POLL_S)
            except AssertionError as error:
                self._process(node.name).kill()
                raise self._failure(node.name, f"was not ready within {self._start_timeout_s:g} s") from error

    def _failure(self, name: str, fact: str) -> BrokerFailed:
        version = self._versions.get(name, self.version)
        return BrokerFailed(f"{name} of Pulsar {version} {fact}; its log ends:\n{self._process(name).log_tail()}")


def is_ready(node: Node) -> bool:
    """Return whether a node serves: a bookie listens once it is registered."""
    if node.kind is Kind.BROKER:
        return admin_calls.is_ready(node.admin_url)
    try:
        with socket.create_connection((LOOPBACK, node.port), PROBE_TIMEOUT_S) as link:
            if node.kind is Kind.BOOKIE:
                return True
            link.sendall(b"ruok")
            return link.recv(len(b"imok")) == b"imok"
    except OSError:
        return False
