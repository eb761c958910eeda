"""The admin client: one object with all operations, grouped by the resource that they act on."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import httpx

from timewheel.broker.admin.brokers import Brokers
from timewheel.broker.admin.connections import Tls
from timewheel.broker.admin.entries import EntrySource
from timewheel.broker.admin.http import DEFAULT_RETRY_FOR_S, DEFAULT_TIMEOUT_S, AdminHttp, Token
from timewheel.broker.admin.namespaces import Namespaces, Tenants
from timewheel.broker.admin.topic_policies import TopicPolicies
from timewheel.broker.admin.topics import Subscriptions, Topics
from timewheel.client.hooks import Hooks
from timewheel.core.clock import Clock, SystemClock
from timewheel.hooks import Hook


class AdminClient:
    """A cluster's admin API, thin and typed.

    For example::

        with AdminClient("http://broker:8080", token=read_token) as admin:
            admin.topics.create("persistent://acme/crm/reminders", 4)
            admin.subscriptions.create("persistent://acme/crm/reminders", "billing")
            admin.topic_policies.set("persistent://acme/crm/reminders", MESSAGE_TTL_S, 0)

    Creating an existing resource and deleting a missing resource are no errors: the method returns False. All methods
    raise `AdminError` or a subclass of it. Safe to share between threads.

    Args:
        admin_url: Web service of any broker, or of a proxy: ``http://broker:8080``, ``https://broker:8443``.
        token: Bearer token; or a function that returns the current token, called before every request.
        tls: TLS settings, for example from `timewheel.broker.admin.http.tls_context`; or a function that returns the
            current settings, called before every request; None: the system's authorities.
        timeout_s: Seconds for each step of a request.
        retry_for_s: Seconds since a call's begin within which it may be repeated (only if that is safe); 0: never.
        hooks: Called with warnings; None: they are logged.
        transport: An httpx transport, for tests.
        entries: Source that is tried first for single entries; None: they are read through the admin API, which makes
            the broker open them.
        clock: Waits between attempts, and for changes that the broker applies a moment later; None: the machine's.
        url_hint: Where the URL came from, and how to give another; errors that a wrong URL explains end with it.
    """

    def __init__(
        self,
        admin_url: str,
        *,
        token: Token = None,
        tls: Tls = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retry_for_s: float = DEFAULT_RETRY_FOR_S,
        hooks: tuple[Hook, ...] | None = None,
        transport: httpx.BaseTransport | None = None,
        entries: EntrySource | None = None,
        clock: Clock | None = None,
        url_hint: str = "",
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        """The clock by which users of this client wait."""
        self._http = AdminHttp(
            admin_url,
            token=token,
            tls=tls,
            timeout_s=timeout_s,
            retry_for_s=retry_for_s,
            transport=transport,
            clock=self.clock,
            url_hint=url_hint,
        )
        self.brokers = Brokers(self._http, Hooks(hooks), self.clock)
        self.tenants = Tenants(self._http)
        self.namespaces = Namespaces(self._http)
        self._entries = entries
        self.topics = Topics(self._http, entries)
        self.topic_policies = TopicPolicies(self._http, self.clock)
        self.subscriptions = Subscriptions(self._http)

    def clusters(self) -> tuple[str, ...]:
        """Return the names of the clusters that the asked cluster knows, itself included."""
        return tuple(self._http.get("/clusters"))

    def bookies(self) -> tuple[str, ...]:
        """Return the ids of the registered bookies; requires a superuser."""
        return tuple(bookie["bookieId"] for bookie in self._http.get("/bookies/all")["bookies"])

    def close(self) -> None:
        """Close all connections; the client cannot be used after that."""
        self._http.close()
        if self._entries is not None:
            self._entries.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
