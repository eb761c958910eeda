"""Tenants, namespaces and their policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from timewheel.broker.admin.http import AdminHttp
from timewheel.broker.admin.names import namespace_path, tenant_path
from timewheel.broker.admin.policies import Policy

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespacePolicies:
    """All policies of a namespace, as they were at one moment.

    Args:
        namespace: ``tenant/namespace``.
        replication_clusters: More than one cluster: its topics are geo-replicated (broker-facts: policies-of-topics).
        schema_validation_enforced: Producers without a schema are refused on topics with a schema.
        document: All policies, as the broker returned them.
    """

    namespace: str
    replication_clusters: tuple[str, ...]
    schema_validation_enforced: bool
    document: Mapping[str, Any]

    @property
    def is_replicated(self) -> bool:
        """True if a relay in each cluster would forward every timer, so that each is handled once for each cluster."""
        return len(self.replication_clusters) > 1

    def get(self, policy: Policy[T]) -> T | None:
        """Return the value that is set on the namespace; None if the broker's setting applies."""
        return policy.read(self.document.get(policy.document_key))


class Tenants:
    """Operations on tenants; all need a superuser."""

    def __init__(self, http: AdminHttp) -> None:
        self._http = http

    def list(self) -> tuple[str, ...]:
        return tuple(self._http.get("/tenants"))

    def create(self, tenant: str, *, admin_roles: Sequence[str] = (), clusters: Sequence[str] | None = None) -> bool:
        """Create a tenant.

        Args:
            tenant: Its name.
            admin_roles: Roles that may administer it.
            clusters: Clusters in which it may have topics; None: all clusters.

        Returns:
            False if it existed already; it stays as it is.
        """
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
        """Create a namespace.

        Args:
            namespace: ``tenant/namespace``.
            bundles: Number of bundles that spread its topics over brokers; None: the broker's default.

        Returns:
            False if it existed already; it stays as it is.
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
        self._http.call("POST", _policy_path(namespace, policy), query=_query(policy), body=policy.encode(value))

    def remove_policy(self, namespace: str, policy: Policy[Any]) -> None:
        """Remove a policy, so that the broker's setting applies again."""
        self._http.call("DELETE", _policy_path(namespace, policy), query=_query(policy))


def _path(namespace: str) -> str:
    return f"/namespaces/{namespace_path(namespace)}"


def _policy_path(namespace: str, policy: Policy[Any]) -> str:
    if not policy.namespace_name:
        raise ValueError(f"{policy} has no level of namespaces: set it on the topic")
    return f"{_path(namespace)}/{policy.namespace_name}"


def _query(policy: Policy[Any]) -> dict[str, str] | None:
    return None if policy.quota is None else {"backlogQuotaType": policy.quota}
