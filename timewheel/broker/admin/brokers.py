"""Operations on the brokers themselves."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from urllib.parse import quote

from timewheel.broker.admin.http import AdminHttp
from timewheel.client.hooks import Hooks
from timewheel.core.clock import Clock
from timewheel.core.errors import AdminDenied, AdminError
from timewheel.events import BrokerConfigurationDenied

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerTime:
    """A broker's clock beside the clock of this machine; all times are UTC milliseconds.

    Args:
        asked_ms: Time of the request, by this machine's clock.
        reported_ms: The broker's time. It is in whole seconds: the real time was this, or up to a second later.
        answered_ms: Time of the answer, by this machine's clock.
    """

    asked_ms: int
    reported_ms: int
    answered_ms: int


class Brokers:
    """Health, version, time and settings of the brokers."""

    def __init__(self, http: AdminHttp, hooks: Hooks, clock: Clock) -> None:
        self._http = http
        self._hooks = hooks
        self._clock = clock

    def is_healthy(self) -> bool:
        """Return whether the asked broker could publish and read a message just now; False also if no broker answers.

        Raises:
            AdminDenied: The check itself is not allowed, so nothing is known about health.
        """
        try:
            return self._http.call("GET", "/brokers/health").text.strip() == "ok"
        except AdminDenied:
            raise
        except AdminError:
            return False

    def version(self) -> str:
        """Return the version of the asked broker, such as ``4.0.7``."""
        return self._http.call("GET", "/brokers/version").text.strip().strip('"')

    def time(self) -> BrokerTime | None:
        """Read the clock of the asked broker; None: its answers carry no time, or a proxy removed it."""
        asked_ms = self._clock.now_ms()
        answer = self._http.call("GET", "/brokers/version")
        answered_ms = self._clock.now_ms()
        try:
            told = parsedate_to_datetime(answer.headers.get("Date", ""))
        except ValueError:
            return None
        if told.tzinfo is None:
            return None
        reported_ms = (told - _EPOCH) // dt.timedelta(milliseconds=1)
        return BrokerTime(asked_ms=asked_ms, reported_ms=reported_ms, answered_ms=answered_ms)

    def dynamic_settings(self) -> frozenset[str]:
        """Return the names of the settings that can be changed while brokers run; requires a superuser."""
        return frozenset(self._http.get("/brokers/configuration"))

    def set_dynamic(self, name: str, value: str) -> None:
        """Change a dynamic setting on all brokers, now and after restarts; requires a superuser."""
        self._http.call("POST", f"/brokers/configuration/{quote(name, safe='')}/{quote(value, safe='')}")

    def unset_dynamic(self, name: str) -> None:
        """Remove the dynamic value of a setting: after their next start the brokers use the value in their files."""
        self._http.call("DELETE", f"/brokers/configuration/{quote(name, safe='')}")

    def runtime_configuration(self) -> Mapping[str, str] | None:
        """Read all settings of the asked broker, by their names in ``broker.conf``.

        Returns:
            None if the role may not read them (a superuser may). The hooks get a warning then, since the caller must
            continue with guesses.
        """
        try:
            return dict(self._http.get("/brokers/configuration/runtime"))
        except AdminDenied as error:
            self._hooks.emit(
                BrokerConfigurationDenied(
                    endpoint=error.endpoint,
                    reason=error.reason,
                    consequence="limits are taken from the broker's version, not from its settings",
                )
            )
            return None
