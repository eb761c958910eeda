"""The admin client: one object with all operations, grouped by the resource that they act on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx

from timewheel.broker.admin.entries import EntrySource
from timewheel.broker.admin.http import DEFAULT_RETRY_FOR_S, DEFAULT_TIMEOUT_S, AdminHttp, Repeat, Tls, Token
from timewheel.broker.admin.names import namespace_path, tenant_path
from timewheel.broker.admin.policies import Policy, TopicPolicies
from timewheel.broker.admin.stats import utc_ms
from timewheel.broker.admin.topics import Subscriptions, Topics
from timewheel.client.hooks import Hooks
from timewheel.core.clock import Clock, SystemClock
from timewheel.core.errors import AdminDenied, AdminError, AdminUnreachable
from timewheel.events import BrokerConfigurationDenied
from timewheel.hooks import Hook

HEALTH_TIMEOUT_S = 10.0
"""A healthy broker answers the question for its health in 0.05 s, at the first time in some seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerTime:
    """A broker's clock beside the clock of this machine, at the request and the answer; all times are UTC milliseconds.

    The broker's time is in whole seconds: the real time was this, or up to a second later.
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

    def ailment(self) -> str:
        """Return why the asked broker cannot store and read a message of its own just now; empty: it can.

        If too few bookies take writes, a broker answers at once, or gives up after 58 s, so the question has a time-out
        of its own.

        Raises:
            AdminDenied: The check itself is not allowed, so nothing is known about health.
        """
        try:
            # WRITE, though it stores nothing of ours: 500 is the answer of a sick broker, also to a second call.
            answer = self._http.call("GET", "/brokers/health", repeat=Repeat.WRITE, timeout_s=HEALTH_TIMEOUT_S)
        except AdminDenied:
            raise
        except AdminUnreachable as error:
            return f"no answer within {HEALTH_TIMEOUT_S:g} s" if error.sent else error.reason
        except AdminError as error:
            return error.reason
        said = answer.text.strip()
        return "" if said == "ok" else said

    def is_healthy(self) -> bool:
        """Return whether the asked broker has no `ailment`; False also if no broker answers. Raises as `ailment`."""
        return not self.ailment()

    def active(self) -> tuple[str, ...]:
        """Return the web addresses of the cluster's running brokers; requires a superuser."""
        return tuple(self._http.get("/brokers"))

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
        return BrokerTime(asked_ms=asked_ms, reported_ms=utc_ms(told), answered_ms=answered_ms)

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


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespacePolicies:
    """All policies of a namespace, as they were at one moment."""

    namespace: str  # `tenant/namespace`
    # more than one cluster: its topics are geo-replicated (broker-facts: policies-of-topics)
    replication_clusters: tuple[str, ...]
    schema_validation_enforced: bool  # producers without a schema are refused on topics with a schema
    document: Mapping[str, Any]  # all policies, as the broker returned them

    def get(self, policy: Policy[T]) -> T | None:
        """Return the value that is set on the namespace; None if the broker's setting applies."""
        return policy.read(self.document.get(policy.document_key))

    @property
    def is_replicated(self) -> bool:
        """True if a relay in each cluster would forward every timer, so that each is handled once for each cluster."""
        return len(self.replication_clusters) > 1


class Tenants:
    """Operations on tenants; all need a superuser."""

    def __init__(self, http: AdminHttp) -> None:
        self._http = http

    def list(self) -> tuple[str, ...]:
        return tuple(self._http.get("/tenants"))

    def create(self, tenant: str, *, admin_roles: Sequence[str] = (), clusters: Sequence[str] | None = None) -> bool:
        """Create a tenant, in all clusters if none are given; False if it existed already: it stays as it is."""
        allowed = self._http.get("/clusters") if clusters is None else clusters
        body = {"adminRoles": [*admin_roles], "allowedClusters": [*allowed]}
        return self._http.make(f"/tenants/{tenant_path(tenant)}", body=body)

    def delete(self, tenant: str) -> bool:
        """Delete an empty tenant; False if it does not exist."""
        return self._http.remove(f"/tenants/{tenant_path(tenant)}")


class Namespaces:
    """Operations on namespaces; names are ``tenant/namespace``."""

    def __init__(self, http: AdminHttp) -> None:
        self._http = http

    def list(self, tenant: str) -> tuple[str, ...]:
        return tuple(self._http.get(f"/namespaces/{tenant_path(tenant)}"))

    def create(self, namespace: str, *, bundles: int | None = None) -> bool:
        """Create a namespace; False if it existed already: it stays as it is.

        Bundles spread its topics over brokers; None: the broker's default number.
        """
        return self._http.make(_path(namespace), body=None if bundles is None else {"bundles": {"numBundles": bundles}})

    def delete(self, namespace: str) -> bool:
        """Delete an empty namespace; False if it does not exist."""
        return self._http.remove(_path(namespace))

    def policies(self, namespace: str) -> NamespacePolicies:
        """Read all policies of a namespace at once."""
        document = self._http.get(_path(namespace))
        return NamespacePolicies(
            namespace=namespace,
            replication_clusters=tuple(document.get("replication_clusters", ())),
            schema_validation_enforced=document.get("schema_validation_enforced", False),
            document=document,
        )

    def set_policy(self, namespace: str, policy: Policy[T], value: T) -> None:
        """Set a policy for all topics of the namespace without a policy of their own."""
        self._http.call("POST", _policy_path(namespace, policy), query=policy.query, body=policy.encode(value))

    def remove_policy(self, namespace: str, policy: Policy[Any]) -> None:
        """Remove a policy, so that the broker's setting applies again."""
        self._http.call("DELETE", _policy_path(namespace, policy), query=policy.query)


def _path(namespace: str) -> str:
    return f"/namespaces/{namespace_path(namespace)}"


def _policy_path(namespace: str, policy: Policy[Any]) -> str:
    if not policy.namespace_name:
        raise ValueError(f"{policy} has no level of namespaces: set it on the topic")
    return f"{_path(namespace)}/{policy.namespace_name}"


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
        admin_url: Web service of any broker, or of a proxy: ``http://broker:8080``, ``https://broker:8443``;
            or of several, ``http://one:8080,two:8080``: the next is asked if one gives no answer within about 2 s.
        token: Bearer token; or a function that returns the current token, called before every request.
        tls: TLS settings, for example from `timewheel.broker.admin.http.tls_context`; or a function that returns the
            current settings, called before every request; None: the system's authorities.
        timeout_s: Seconds for each step of a request.
        retry_for_s: Seconds since a call's begin within which it may be repeated (only if that is safe); 0: never, but
            by the next host of the URL.
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
        """Return the ids of all bookies that ever registered, also of those that are away; requires a superuser."""
        return tuple(bookie["bookieId"] for bookie in self._http.get("/bookies/all")["bookies"])

    def close(self) -> None:
        """Close all connections; the client cannot be used after that."""
        self._http.close()
        if self._entries is not None:
            self._entries.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
