"""Nodes of a local cluster: their names, ports, settings and memory."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from timewheel.testing.errors import BrokerUnavailable
from timewheel.testing.ports import LOOPBACK, free_ports
from timewheel.testing.settings import BOOKIE_SETTINGS, COMMON_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LoadManager = Literal["modular", "extensible"]
"""The broker's `ModularLoadManagerImpl`, its default, and `ExtensibleLoadManagerImpl`."""

CLUSTER_NAME = "local"
ZOOKEEPER = "zookeeper"
MAX_NODES = 20  # most bookies, and most brokers: a typing error in a number must not start a thousand JVMs
DEFAULT_REPLICAS = 2  # default of ensemble, write quorum and ack quorum, as in Pulsar's own `broker.conf`
MIN_SESSION_TIMEOUT_S = 2.0
MAX_SESSION_TIMEOUT_S = 60.0
_BALANCE = "org.apache.pulsar.broker.loadbalance"

_LOAD_MANAGERS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "modular": {"loadManagerClassName": f"{_BALANCE}.impl.ModularLoadManagerImpl"},
        "extensible": {
            "loadManagerClassName": f"{_BALANCE}.extensions.ExtensibleLoadManagerImpl",
            "loadBalancerLoadSheddingStrategy": f"{_BALANCE}.extensions.scheduler.TransferShedder",
        },
    }
)

_BROKER_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        **COMMON_SETTINGS,
        "bindAddress": LOOPBACK,
        "advertisedAddress": LOOPBACK,
        # Several brokers share a machine: fewer threads and smaller caches than the defaults, which go by its size.
        "numHttpServerThreads": "8",
        "numIOThreads": "4",
        "numOrderedExecutorThreads": "2",
        "bookkeeperNumberOfChannelsPerBookie": "4",
        "managedLedgerCacheSizeMB": "32",
    }
)
_BOOKIE_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        **BOOKIE_SETTINGS,
        "advertisedAddress": LOOPBACK,
        "allowLoopback": "true",
        # Small caches and files, for the same reason.
        "journalPreAllocSizeMB": "4",
        "logSizeLimit": "67108864",
        "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
        "dbStorage_writeCacheMaxSizeMb": "32",
        "dbStorage_readAheadCacheMaxSizeMb": "32",
        "dbStorage_rocksDB_blockCacheSize": "16777216",
        "dbStorage_rocksDB_writeBufferSizeMB": "4",
        "numReadWorkerThreads": "2",
    }
)


class Kind(Enum):
    """Kinds of nodes."""

    ZOOKEEPER = "zookeeper"
    BOOKIE = "bookie"
    BROKER = "broker"


HEAP_AND_DIRECT_MB: Mapping[Kind, tuple[int, int]] = MappingProxyType(
    {Kind.ZOOKEEPER: (128, 64), Kind.BOOKIE: (256, 256), Kind.BROKER: (512, 256)}
)
RESIDENT_MB: Mapping[Kind, int] = MappingProxyType({Kind.ZOOKEEPER: 150, Kind.BOOKIE: 250, Kind.BROKER: 450})
"""Memory of a node with some topics, measured with Java 17 as its share of resident memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A process of the cluster. `port` is that of its protocol; `web_port` is a broker's second port."""

    name: str
    kind: Kind
    port: int
    web_port: int | None = None

    @property
    def ports(self) -> tuple[int, ...]:
        return (self.port,) if self.web_port is None else (self.port, self.web_port)

    @property
    def admin_url(self) -> str:
        """URL of a broker's admin REST interface."""
        return f"http://{LOOPBACK}:{self.web_port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Parameters of a cluster, checked at construction; `LocalCluster` describes them."""

    bookies: int
    brokers: int
    ensemble: int
    write_quorum: int
    ack_quorum: int
    session_timeout_s: float
    load_manager: LoadManager
    config: Mapping[str, str]

    def __post_init__(self) -> None:
        for name, count in (("bookies", self.bookies), ("brokers", self.brokers)):
            if not 1 <= count <= MAX_NODES:
                raise ValueError(f"{name}={count}: a cluster has 1 to {MAX_NODES} of them")
        if not 1 <= self.ack_quorum <= self.write_quorum <= self.ensemble <= self.bookies:
            raise ValueError(
                f"ack_quorum={self.ack_quorum}, write_quorum={self.write_quorum}, ensemble={self.ensemble}, bookies="
                f"{self.bookies}: each is at least 1 and at most the next; start more bookies or keep fewer copies"
            )
        if not MIN_SESSION_TIMEOUT_S <= self.session_timeout_s <= MAX_SESSION_TIMEOUT_S:
            raise ValueError(
                f"session_timeout_s={self.session_timeout_s:g}: choose {MIN_SESSION_TIMEOUT_S:g} to "
                f"{MAX_SESSION_TIMEOUT_S:g} s (Pulsar's default is 30)"
            )
        if self.load_manager not in _LOAD_MANAGERS:
            raise ValueError(f"load_manager={self.load_manager!r}: choose {' or '.join(_LOAD_MANAGERS)}")
        if decided := self.config.keys() & self._decided(Node(name="", kind=Kind.BROKER, port=0), 0).keys():
            raise ValueError(
                f"{', '.join(sorted(decided))}: the cluster decides this itself; a parameter of LocalCluster may choose"
            )

    def nodes(self) -> tuple[Node, ...]:
        """Return all nodes in the order of their start, with ports that are free now."""
        ports = iter(free_ports(1 + self.bookies + 2 * self.brokers))
        bookies = [Node(name=f"bookie-{n}", kind=Kind.BOOKIE, port=next(ports)) for n in range(1, self.bookies + 1)]
        brokers = [
            Node(name=f"broker-{n}", kind=Kind.BROKER, port=next(ports), web_port=next(ports))
            for n in range(1, self.brokers + 1)
        ]
        return (Node(name=ZOOKEEPER, kind=Kind.ZOOKEEPER, port=next(ports)), *bookies, *brokers)

    def settings(self, node: Node, metadata_port: int, data: Path) -> dict[str, str]:
        """Return the content of a node's configuration file; `data` is the folder of its data."""
        match node.kind:
            case Kind.ZOOKEEPER:
                return _zookeeper(node, data)
            case Kind.BOOKIE:
                return {
                    **_BOOKIE_SETTINGS,
                    "nettyMaxFrameSizeBytes": {**COMMON_SETTINGS, **self.config}["nettyMaxFrameSizeBytes"],
                    "bookiePort": str(node.port),
                    "journalDirectory": str(data / "journal"),
                    "ledgerDirectories": str(data / "ledgers"),
                    "metadataServiceUri": f"zk+hierarchical://{LOOPBACK}:{metadata_port}/ledgers",
                    "zkTimeout": str(_ms(self.session_timeout_s)),
                }
            case Kind.BROKER:
                return {**_BROKER_SETTINGS, **self.config, **self._decided(node, metadata_port)}

    def _decided(self, node: Node, metadata_port: int) -> dict[str, str]:
        return {
            **_LOAD_MANAGERS[self.load_manager],
            "clusterName": CLUSTER_NAME,
            "brokerServicePort": str(node.port),
            "webServicePort": str(node.web_port),
            "metadataStoreUrl": metadata_url(metadata_port),
            "configurationMetadataStoreUrl": metadata_url(metadata_port),
            "metadataStoreSessionTimeoutMillis": str(_ms(self.session_timeout_s)),
            "managedLedgerDefaultEnsembleSize": str(self.ensemble),
            "managedLedgerDefaultWriteQuorum": str(self.write_quorum),
            "managedLedgerDefaultAckQuorum": str(self.ack_quorum),
        }

    def check_memory(self, available_mb: int | None) -> None:
        """Raise `BrokerUnavailable` if the cluster does not fit into this memory; None: that is not known."""
        counts = {Kind.ZOOKEEPER: 1, Kind.BOOKIE: self.bookies, Kind.BROKER: self.brokers}
        used_mb = sum(count * RESIDENT_MB[kind] for kind, count in counts.items())
        if available_mb is not None and available_mb < used_mb:
            raise BrokerUnavailable(
                f"a cluster of {self.bookies} bookies and {self.brokers} brokers uses about {used_mb} MB of memory, "
                f"and {available_mb} MB are available: free memory, or start fewer (1 bookie and 1 broker use "
                f"{sum(RESIDENT_MB.values())} MB)"
            )


def program(node: Node, conf: Path) -> tuple[str, ...]:
    """Return the class of Java that runs a node, and its arguments."""
    match node.kind:
        case Kind.ZOOKEEPER:
            return ("org.apache.zookeeper.server.ZooKeeperServerMain", str(conf))
        case Kind.BOOKIE:
            return ("org.apache.bookkeeper.server.Main", "--conf", str(conf))
        case Kind.BROKER:
            return ("org.apache.pulsar.PulsarBrokerStarter", "--broker-conf", str(conf))


def metadata_setup(zookeeper: Node, broker: Node, service_url: str) -> tuple[str, ...]:
    """Return the class of Java that writes a new cluster's metadata, and its arguments."""
    store = metadata_url(zookeeper.port)
    return (
        "org.apache.pulsar.PulsarClusterMetadataSetup", "--cluster", CLUSTER_NAME,
        "--metadata-store", store, "--configuration-metadata-store", store,
        "--web-service-url", broker.admin_url, "--broker-service-url", service_url,
    )  # fmt: skip


def metadata_url(port: int) -> str:
    """Return the URL of the metadata in a ZooKeeper of this machine."""
    return f"zk:{LOOPBACK}:{port}"


def find_node(nodes: Mapping[str, Node], name: str, kind: Kind | None = None) -> Node:
    """Return the node of this name; ValueError, with all names, if there is none or if it is of another kind."""
    names = [node.name for node in nodes.values() if kind in {None, node.kind}]
    if name not in names:
        raise ValueError(f"the cluster has no {kind.value if kind else 'node'} {name!r}; it has: {', '.join(names)}")
    return nodes[name]


def available_mb(meminfo: str) -> int | None:
    """Return the available memory in MiB from the text of `/proc/meminfo`; None if it is not there."""
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) // 1024
    return None


def _ms(seconds: float) -> int:
    return round(seconds * 1_000)


def _zookeeper(node: Node, folder: Path) -> dict[str, str]:
    return {
        "tickTime": "1000",
        "dataDir": str(folder),
        "clientPort": str(node.port),
        "clientPortAddress": LOOPBACK,
        "maxClientCnxns": "0",
        "minSessionTimeout": str(_ms(MIN_SESSION_TIMEOUT_S)),
        "maxSessionTimeout": str(_ms(MAX_SESSION_TIMEOUT_S)),
        "forceSync": "no",
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "ruok",
    }
