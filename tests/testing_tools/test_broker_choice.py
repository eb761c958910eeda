"""One variable chooses the broker that tests run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from timewheel.testing import BrokerUnavailable, pulsar_service
from timewheel.testing.settings import BrokerChoice, BrokerKind, broker_choice

COMMANDS = {"PULSAR_SERVICE_URL": "pulsar://commands:6650", "PULSAR_ADMIN_URL": "http://commands:8080"}
HERE = {"TIMEWHEEL_TEST_BROKER": "pulsar://here:6650", "TIMEWHEEL_TEST_BROKER_ADMIN": "http://here:8080"}


@pytest.mark.parametrize("kind", [BrokerKind.CONTAINER, BrokerKind.LOCAL])
def test_a_word_chooses_whatever_else_is_set(kind: BrokerKind) -> None:
    choice = broker_choice({**COMMANDS, "TIMEWHEEL_TEST_BROKER": kind.value})
    assert choice == BrokerChoice(kind=kind, variable="TIMEWHEEL_TEST_BROKER")


def test_a_url_chooses_with_the_admin_url_that_belongs_to_it() -> None:
    assert broker_choice({**COMMANDS, **HERE}) == BrokerChoice(
        kind=BrokerKind.GIVEN,
        service_url="pulsar://here:6650",
        admin_url="http://here:8080",
        variable="TIMEWHEEL_TEST_BROKER",
    )


def test_the_admin_url_of_the_commands_is_not_taken_for_another_broker() -> None:
    with pytest.raises(BrokerUnavailable, match="TIMEWHEEL_TEST_BROKER_ADMIN is not"):
        broker_choice({**COMMANDS, "TIMEWHEEL_TEST_BROKER": "pulsar://here:6650"})


def test_without_it_the_commands_broker_is_taken() -> None:
    choice = broker_choice({**COMMANDS, "TIMEWHEEL_TEST_BROKER": ""})
    assert (choice.kind, choice.service_url, choice.admin_url, choice.variable) == (
        BrokerKind.GIVEN, "pulsar://commands:6650", "http://commands:8080", "PULSAR_SERVICE_URL",
    )  # fmt: skip
    with pytest.raises(BrokerUnavailable, match="PULSAR_ADMIN_URL is not"):
        broker_choice({"PULSAR_SERVICE_URL": "pulsar://commands:6650"})


def test_nothing_set_leaves_it_to_what_can_be_had() -> None:
    assert broker_choice({}) == BrokerChoice(kind=BrokerKind.ANY)


@pytest.mark.parametrize("value", ["docker", "Local", "localhost:6650", "http://here:8080", " local"])
def test_another_value_is_refused_with_those_that_are_allowed(value: str) -> None:
    with pytest.raises(ValueError, match=r"may be container, local, or a service URL such as pulsar://localhost:6650"):
        broker_choice({**COMMANDS, "TIMEWHEEL_TEST_BROKER": value})


def test_a_given_broker_that_does_not_answer_is_named_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMEWHEEL_TEST_BROKER", "pulsar://127.0.0.1:1")
    monkeypatch.setenv("TIMEWHEEL_TEST_BROKER_ADMIN", "http://127.0.0.1:1")
    said = r"TIMEWHEEL_TEST_BROKER does not answer at its admin URL http://127.0.0.1:1 .*TIMEWHEEL_TEST_BROKER=local"
    with pytest.raises(BrokerUnavailable, match=said), pulsar_service():
        pass


def test_a_given_broker_takes_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in HERE.items():
        monkeypatch.setenv(name, value)
    said = r"TIMEWHEEL_TEST_BROKER is not ours to configure \(maxMessageSize\)"
    with pytest.raises(BrokerUnavailable, match=said), pulsar_service(config={"maxMessageSize": "1"}):
        pass


def test_a_container_asked_for_is_never_replaced_by_another_broker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TIMEWHEEL_TEST_BROKER", "container")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path / 'no.sock'}")
    with pytest.raises(BrokerUnavailable, match=r"no Docker engine answers at unix://.*no\.sock"), pulsar_service():
        pass
