"""Verbs on the brokers themselves."""

from __future__ import annotations

from collections.abc import Mapping

from timewheel.admin.http import AdminHttp
from timewheel.core.errors import AdminDenied, AdminError
from timewheel.events import BrokerConfigurationDenied
from timewheel.wire.hooks import Hooks

__all__ = ["Brokers"]


class Brokers:
    """What the brokers say about themselves."""

    def __init__(self, http: AdminHttp, hooks: Hooks) -> None:
        self._http = http
        self._hooks = hooks

    def is_healthy(self) -> bool:
        """Whether the asked broker could publish and read a message just now; False also if nobody answers.

        Raises:
            AdminDenied: The check itself is not allowed, which says nothing about health.
        """
        try:
            return self._http.call("GET", "/brokers/health").text.strip() == "ok"
        except AdminDenied:
            raise
        except AdminError:
            return False

    def version(self) -> str:
        """Version of the asked broker, such as ``4.0.7``."""
        return self._http.call("GET", "/brokers/version").text.strip().strip('"')

    def runtime_configuration(self) -> Mapping[str, str] | None:
        """All settings of the asked broker, by the names of ``broker.conf``.

        Returns:
            None if the role may not read them (it takes a superuser); a warning goes to the hooks, since whoever asks
            must go on with guesses.
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
