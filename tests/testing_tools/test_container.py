"""A broker in a container, by an engine that runs none: what it is asked for, and what is said when it refuses.

The same class with a real broker behind the ports is in tests/broker/test_broker_fixtures.py.
"""

from __future__ import annotations

import signal
import subprocess
from _thread import interrupt_main
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.docker_engine import Container, Engine, answers_ready, point_at
from tests.support.processes import heeding
from timewheel.testing import BrokerUnavailable, PulsarContainer, pulsar_service
from timewheel.testing.container import ADDRESS_FILE, COMMAND, engine_trouble

VERSION = "4.0.7"
IMAGE = f"apachepulsar/pulsar:{VERSION}"
LOG = "java.lang.IllegalArgumentException: no such setting"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Engine]:
    """An engine of this machine that has the image and can run it."""
    with Engine(images={IMAGE}, program=answers_ready).on_socket(tmp_path / "docker.sock") as engine:
        point_at(engine.address, monkeypatch, tmp_path)
        yield engine


def failure(start_timeout_s: float = 30.0) -> str:
    """What is said of a start that fails."""
    with pytest.raises(BrokerUnavailable) as caught, PulsarContainer(VERSION, start_timeout_s=start_timeout_s):
        pass
    assert getattr(caught.value, "__notes__", []) == []
    return str(caught.value)


def test_a_container_runs_for_the_length_of_the_block(engine: Engine) -> None:
    with PulsarContainer(VERSION, config={"maxMessageSize": "1000000"}) as broker:
        (container,) = engine.containers.values()
        assert container.spec["Image"] == IMAGE
        assert container.environment["PULSAR_PREFIX_maxMessageSize"] == "1000000"
        assert container.environment["PULSAR_PREFIX_topicLevelPoliciesEnabled"] == "true"
        assert broker.service_url == f"pulsar://127.0.0.1:{container.ports[16650]}"
        assert broker.admin_url == f"http://127.0.0.1:{container.ports[8080]}"
    assert engine.containers == {}
    assert "images/create" not in engine.calls  # it was there


def test_the_broker_advertises_where_clients_reach_it_and_keeps_an_address_of_its_own(engine: Engine) -> None:
    with PulsarContainer(VERSION) as broker:
        (container,) = engine.containers.values()
        assert container.files == {
            ADDRESS_FILE: f"internal:pulsar://127.0.0.1:6650,external:{broker.service_url}".encode()
        }
        assert container.environment["PULSAR_PREFIX_bindAddresses"] == "external:pulsar://0.0.0.0:16650"


def test_stopped_and_not_yet_started_it_has_no_address(engine: Engine) -> None:
    broker = PulsarContainer(VERSION)
    with pytest.raises(RuntimeError, match="not running"):
        _ = broker.service_url
    with broker, pytest.raises(RuntimeError, match="running already"):
        broker.start()
    with pytest.raises(RuntimeError, match="not running"):
        _ = broker.admin_url
    broker.stop()  # a second time: nothing
    assert engine.calls.count("containers/delete") == 1


def test_a_container_that_somebody_else_removed_is_no_failure(engine: Engine) -> None:
    with PulsarContainer(VERSION):
        engine.remove(*engine.containers.values())


def test_a_missing_image_is_fetched_and_that_is_told(engine: Engine) -> None:
    engine.images.clear()
    engine.registry.add(IMAGE)
    told: list[str] = []
    with PulsarContainer(VERSION, progress=told.append):
        pass
    assert told == [f"fetching the image {IMAGE} into the engine at {engine.address}"]


@pytest.mark.parametrize("broken_off", ["", "toomanyrequests: You have reached your pull rate limit"])
def test_an_image_that_cannot_be_fetched_is_named_with_the_reason(engine: Engine, broken_off: str) -> None:
    engine.images.clear()
    engine.pull_error = broken_off
    said, reason = failure(), broken_off or f"manifest for {IMAGE} not found: manifest unknown"
    assert f"could not fetch the image {IMAGE}: {reason}" in said
    for remedy in (f"docker pull {IMAGE}", "$TIMEWHEEL_PULSAR_VERSION", "TIMEWHEEL_TEST_BROKER=local"):
        assert remedy in said
    assert engine.ever == []


@pytest.mark.parametrize(
    ("call", "words", "tried"),
    [
        ("containers/create", "no space left on device", f"start a container of {IMAGE}"),
        ("containers/start", "driver failed programming external connectivity", f"start a container of {IMAGE}"),
        ("containers/archive", "container rootfs is marked read-only", "tell the broker its address"),
    ],
)
def test_what_the_engine_refuses_is_told_and_nothing_is_left(engine: Engine, call: str, words: str, tried: str) -> None:
    engine.refusals[call] = words
    assert f"the Docker engine at {engine.address} gave no Pulsar: could not {tried}: {words};" in failure()
    assert engine.containers == {}


def test_a_container_made_by_a_call_that_failed_afterwards_is_removed(engine: Engine) -> None:
    engine.refusals["containers/json"] = "context deadline exceeded"  # asked for as soon as the container is made
    assert "context deadline exceeded" in failure()
    assert len(engine.ever) == 1
    assert engine.containers == {}


def test_a_container_that_ends_at_once_is_told_with_its_exit_code_and_log(engine: Engine) -> None:
    engine.ends_at_once = (1, LOG)
    said = failure()
    assert f"the container of {IMAGE} ended before its broker was healthy" in said
    assert said.endswith(f"The container ended with exit code 1; its log ends:\n{LOG}")
    assert engine.containers == {}


def test_a_container_that_ends_while_the_broker_starts_is_not_waited_for(engine: Engine) -> None:
    @contextmanager
    def ends(container: Container) -> Iterator[None]:
        container.end(1, LOG)
        yield

    engine.program = ends
    assert failure(start_timeout_s=60).endswith(f"The container ended with exit code 1; its log ends:\n{LOG}")
    assert engine.containers == {}


def test_a_broker_that_never_becomes_healthy_is_given_up(engine: Engine) -> None:
    engine.program = None
    said = failure(start_timeout_s=0.3)
    assert "/admin/v2/brokers/ready did not answer within 0.3 s" in said
    assert "TESTCONTAINERS_HOST_OVERRIDE" in said
    assert said.endswith("The container is running; its log ends:\n(nothing)")
    assert engine.containers == {}


def test_an_engine_that_cannot_remove_does_not_hide_why_the_start_failed(engine: Engine) -> None:
    engine.program = None
    engine.refusals["containers/delete"] = "removal is not for today"
    with pytest.raises(BrokerUnavailable, match="did not become healthy") as caught:
        PulsarContainer(VERSION, start_timeout_s=0.1).start()
    (name,) = [container.name for container in engine.containers.values()]
    left = f"the container {name} may be left: docker rm -f {name} (removal is not for today)"
    assert caught.value.__notes__ == [left]


def test_an_interrupted_start_leaves_nothing(engine: Engine) -> None:
    @contextmanager
    def interrupts(container: Container) -> Iterator[None]:
        assert container.status == "running"
        interrupt_main()
        yield

    engine.program = interrupts
    with heeding(signal.SIGINT), pytest.raises(KeyboardInterrupt):
        PulsarContainer(VERSION).start()
    assert len(engine.ever) == 1
    assert engine.containers == {}


def test_an_engine_that_says_nothing_is_given_up(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timewheel.testing.container.ENGINE_TIMEOUT_S", 0.2)
    engine.silent = True
    said = failure()
    assert f"no Docker engine answers at {engine.address}" in said
    assert "timed out" in said
    assert "TIMEWHEEL_TEST_BROKER=local" in said


def test_an_engine_that_is_ill_is_none(engine: Engine) -> None:
    engine.refusals["ping"] = "dial unix /run/containerd/containerd.sock: connection refused"
    assert engine_trouble() == f"no Docker engine answers at {engine.address} ({engine.refusals['ping']})"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("tcp://127.0.0.1:1", "Connection refused"),
        ("ssh://somebody@127.0.0.1", "ssh"),  # docker's own words: the library or program that is missing
        ("carrier-pigeon://roof", "carrier-pigeon"),
    ],
)
def test_an_engine_elsewhere_that_does_not_answer_is_named(
    address: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    point_at(address, monkeypatch, tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # no ssh to ask anybody with
    trouble = engine_trouble()
    assert trouble is not None
    assert trouble.startswith(f"no Docker engine answers at {address} (")
    assert words in trouble


def test_an_engine_that_answers_is_preferred_to_a_local_broker(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIMEWHEEL_TEST_BROKER", raising=False)
    monkeypatch.delenv("PULSAR_SERVICE_URL", raising=False)
    with pulsar_service(VERSION) as broker:
        assert isinstance(broker, PulsarContainer)
        assert len(engine.containers) == 1


def test_the_container_starts_its_broker_when_it_has_been_told_the_address(tmp_path: Path) -> None:
    """The image's own two programs are played by scripts; the shell is real."""
    for name, script in {
        "apply-config-from-env.py": 'echo "advertisedListeners=$PULSAR_PREFIX_advertisedListeners" >> "$1"',
        "pulsar": 'echo "$@"; cat conf/standalone.conf',
    }.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    (tmp_path / "conf").mkdir()
    address = tmp_path / "address"
    address.touch()  # there, and not yet written
    command = ["bash", "-c", COMMAND.replace(ADDRESS_FILE, str(address))]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as shell:
        address.write_text("internal:pulsar://127.0.0.1:6650,external:pulsar://outside:1")
        out, _ = shell.communicate(timeout=30)
    assert out.splitlines() == [
        "standalone -nfw -nss",
        "advertisedListeners=internal:pulsar://127.0.0.1:6650,external:pulsar://outside:1",
    ]
