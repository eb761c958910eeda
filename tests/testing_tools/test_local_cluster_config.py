"""A cluster's configuration, and its errors: a fact, a limit, a remedy. Nothing is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import timewheel.testing
from tests.support.command_line import timewheel as command
from timewheel.cli import demo
from timewheel.cli.long_running import Stopped
from timewheel.core.connection import urls_of
from timewheel.testing import BrokerFailed, BrokerUnavailable, LocalCluster
from timewheel.testing.cluster_config import ClusterConfig, Kind, Node, available_mb


def config(**options: Any) -> ClusterConfig:
    given = {"bookies": 3, "brokers": 3, "ensemble": 2, "write_quorum": 2, "ack_quorum": 2, "session_timeout_s": 30.0}
    return ClusterConfig(**{**given, "load_manager": "modular", "config": {}, **options})


def settings(node: Node, **options: Any) -> dict[str, str]:
    return config(**options).settings(node, 2181, Path("/data"))


BROKER = Node(name="broker-1", kind=Kind.BROKER, port=6650, web_port=8080)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"brokers": 0}, "brokers=0: a cluster has 1 to 20"),
        ({"bookies": 21}, "bookies=21: a cluster has 1 to 20"),
        ({"ensemble": 4}, "ensemble=4, bookies=3: .*start more bookies or keep fewer copies"),
        ({"ack_quorum": 3}, "ack_quorum=3, write_quorum=2"),
        ({"session_timeout_s": 1.0}, "session_timeout_s=1: choose 2 to 60 s"),
        ({"load_manager": "simple"}, "'simple': choose modular or extensible"),
        ({"config": {"webServicePort": "8080"}}, "webServicePort: the cluster decides this itself"),
        ({"config": {"managedLedgerDefaultAckQuorum": "1"}}, "a parameter of LocalCluster may choose"),
    ],
)
def test_a_parameter_out_of_its_limits_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LocalCluster(**options)


@pytest.mark.parametrize("bookies", [1, 2, 3])
def test_as_many_copies_as_bookies_allow_and_at_most_two(bookies: int) -> None:
    cluster = LocalCluster(bookies=bookies)
    assert cluster._config.ensemble == cluster._config.ack_quorum == min(2, bookies)


def test_nodes_have_names_and_ports_of_their_own() -> None:
    cluster = LocalCluster(brokers=2, bookies=1)
    assert cluster.nodes == ("zookeeper", "bookie-1", "broker-1", "broker-2")
    assert list(cluster.admin_urls) == ["broker-1", "broker-2"]
    assert urls_of(cluster.admin_url) == tuple(cluster.admin_urls.values())
    ports = [port for node in config().nodes() for port in node.ports]
    assert len(set(ports)) == 1 + 3 + 2 * 3
    assert cluster.service_url.count(",") == 1


def test_parameters_and_settings_reach_the_brokers() -> None:
    found = settings(BROKER, ack_quorum=1, session_timeout_s=6.5, config={"topicLevelPoliciesEnabled": "false"})
    assert found["managedLedgerDefaultEnsembleSize"] == "2"
    assert found["managedLedgerDefaultAckQuorum"] == "1"
    assert found["metadataStoreSessionTimeoutMillis"] == "6500"
    assert found["topicLevelPoliciesEnabled"] == "false"
    assert found["loadManagerClassName"].endswith(".ModularLoadManagerImpl")
    assert settings(BROKER, load_manager="extensible")["loadManagerClassName"].endswith(".ExtensibleLoadManagerImpl")


def test_too_little_memory_is_refused_before_anything_starts() -> None:
    config().check_memory(None)
    config().check_memory(2_250)
    with pytest.raises(BrokerUnavailable, match=r"about 2250 MB of memory, and 2249 MB are available: free memory, or"):
        config().check_memory(2_249)
    assert available_mb("MemTotal: 9 kB\nMemAvailable:   2048000 kB\n") == 2_000
    assert available_mb("") is None


def test_a_missing_java_is_reported_as_for_a_single_broker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "timewheel/pulsar-4.0.7/lib").mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(BrokerUnavailable, match="no java was found"):
        LocalCluster("4.0.7", brokers=1, bookies=1).open()


DYING_JAVA = """#!/bin/sh
[ "$1" = -version ] && echo 'openjdk version "17.0.1"' >&2 && exit
echo no; exit 3
"""


def test_a_node_that_dies_at_its_start_is_named_with_the_end_of_its_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(
        '#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "17.0.1"\' >&2 && exit\necho no; exit 3\n'
    )
    java.chmod(0o755)
    home = tmp_path / "timewheel/pulsar-4.0.7"
    (home / "lib").mkdir(parents=True)
    (home / "classes-java-17.0.1.jsa").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    cluster = LocalCluster("4.0.7", brokers=1, bookies=1)
    with pytest.raises(BrokerFailed, match=r"zookeeper of Pulsar 4\.0\.7 ended with exit code 3 .* log ends:\nno$"):
        cluster.open()
    with pytest.raises(RuntimeError, match="was not opened, or has been closed"):
        cluster.start("zookeeper")
    cluster.close()


def test_an_unknown_node_is_refused_with_the_names() -> None:
    cluster = LocalCluster(brokers=2, bookies=1)
    with pytest.raises(ValueError, match="no node 'broker-3'; it has: zookeeper, bookie-1, broker-1, broker-2"):
        cluster.kill("broker-3")
    with pytest.raises(ValueError, match="no broker 'bookie-1'; it has: broker-1, broker-2"):
        cluster.move("topic", to="bookie-1")


def test_a_node_that_is_down_cannot_be_killed_nor_asked() -> None:
    cluster = LocalCluster(brokers=2, bookies=1)
    with pytest.raises(RuntimeError, match="broker-1 is not running; start brings it back"):
        cluster.kill("broker-1")
    with pytest.raises(BrokerFailed, match="broker-1 is down, broker-2 is down; start or thaw one"):
        cluster.owner("topic")


class Played(LocalCluster):
    """A cluster whose nodes never start."""

    def open(self) -> Played:
        self._folder = Path("/logs")
        return self

    def close(self) -> None:
        self._folder = None

    def pid(self, node: str) -> int | None:
        return 1_000 + len(node)


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_prints_urls_and_node_names_and_ends_on_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    def stopped(_: float) -> None:
        raise Stopped

    monkeypatch.setattr(timewheel.testing, "LocalCluster", Played)
    monkeypatch.setattr("timewheel.cli.demo.time.sleep", stopped)
    monkeypatch.setattr(demo, "stop_at_end", lambda: None)
    demo.broker(cluster=True, as_json=as_json)
    out, err = capsys.readouterr()
    assert err == "stopped\n"
    if as_json:
        facts = json.loads(out)
        assert len(facts["pids"]) == 7
        assert facts["service_url"].startswith("pulsar://127.0.0.1:")
    else:
        assert out.count("http://127.0.0.1:") == 3
        assert "bookie-3" in out


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--cluster", "--set", "brokerServicePort=6650"), "the cluster decides this itself"),
        (("--cluster", "--session-timeout", "61s"), "choose 2 to 60 s"),
        (("--session-timeout", "10s"), "add --cluster"),
    ],
)
def test_the_command_refuses_what_it_cannot_do(options: tuple[str, ...], reason: str) -> None:
    refused = command("broker", *options)
    assert refused.returncode == 2
    assert reason in " ".join(refused.stderr.replace("│", " ").split())
