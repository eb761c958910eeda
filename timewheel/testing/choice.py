"""The choice of the broker for tests, from environment variables."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from timewheel.testing.errors import BrokerUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

BROKER_VARIABLE = "TIMEWHEEL_TEST_BROKER"
BROKER_ADMIN_VARIABLE = "TIMEWHEEL_TEST_BROKER_ADMIN"
"""A separate variable, not `PULSAR_ADMIN_URL`, which may be set for the commands and name another broker."""
SERVICE_VARIABLE = "PULSAR_SERVICE_URL"
ADMIN_VARIABLE = "PULSAR_ADMIN_URL"
SERVICE_SCHEMES = ("pulsar://", "pulsar+ssl://")
ELSEWHERE = f"or choose another broker: {BROKER_VARIABLE}=local, or its service URL"
"""End of an error about containers."""


class BrokerKind(Enum):
    """Kinds of brokers for tests."""

    ANY = "any"
    """A container if a Docker engine answers, else a local broker."""
    CONTAINER = "container"
    LOCAL = "local"
    GIVEN = "given"
    """A broker that already runs; the choice holds its addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerChoice:
    """A kind of broker and, for a given broker, its addresses."""

    kind: BrokerKind
    service_url: str = ""
    admin_url: str = ""
    variable: str = ""
    """The variable that made the choice; empty for `BrokerKind.ANY`."""


def broker_choice(environment: Mapping[str, str]) -> BrokerChoice:
    """Read the choice from an environment; empty variables count as unset.

    `TIMEWHEEL_TEST_BROKER` decides. Without it `PULSAR_SERVICE_URL`, the variable of the commands, is used if set.

    Raises:
        ValueError: `TIMEWHEEL_TEST_BROKER` is none of `container`, `local` and a service URL.
        BrokerUnavailable: A service URL is set, but its admin URL is not.
    """
    asked = environment.get(BROKER_VARIABLE, "")
    if asked in {BrokerKind.CONTAINER.value, BrokerKind.LOCAL.value}:
        return BrokerChoice(kind=BrokerKind(asked), variable=BROKER_VARIABLE)
    if asked.startswith(SERVICE_SCHEMES):
        return _given(environment, BROKER_VARIABLE, BROKER_ADMIN_VARIABLE)
    if asked:
        raise ValueError(
            f"{BROKER_VARIABLE} is {asked!r}; it may be container, local, or a service URL such as "
            "pulsar://localhost:6650"
        )
    if environment.get(SERVICE_VARIABLE):
        return _given(environment, SERVICE_VARIABLE, ADMIN_VARIABLE)
    return BrokerChoice(kind=BrokerKind.ANY)


def _given(environment: Mapping[str, str], variable: str, admin_variable: str) -> BrokerChoice:
    admin_url = environment.get(admin_variable, "")
    if not admin_url:
        raise BrokerUnavailable(
            f"{variable} is set and {admin_variable} is not; both are needed, such as pulsar://localhost:6650 and "
            "http://localhost:8080"
        )
    return BrokerChoice(
        kind=BrokerKind.GIVEN, service_url=environment[variable], admin_url=admin_url, variable=variable
    )
