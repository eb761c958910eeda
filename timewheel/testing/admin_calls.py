"""The few admin calls that a test broker needs before any other client can talk to it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx

from timewheel.core.connection import urls_of

if TYPE_CHECKING:
    from collections.abc import Callable

SYSTEM_TENANT = "pulsar"
POLL_S = 0.1
CALL_TIMEOUT_S = 5.0
UNLOAD_TIMEOUT_S = 60.0  # Time-out of an unload, which closes ledgers and cursors first

# Standalone creates the namespace a moment after the broker answers. The health check, which loads a topic and sends
# through it, comes last: a call that times out here continues in the broker, and should not meet a half started broker.
_READY_PATHS = ("/admin/v2/brokers/ready", "/admin/v2/namespaces/public/default", "/admin/v2/brokers/health")


def topic_path(topic: str) -> str:
    """Build the path of a topic in admin URLs, with its name quoted; a short name is in `public/default`."""
    domain, separator, rest = topic.partition("://")
    if not separator:
        domain, rest = "persistent", topic if topic.count("/") == 2 else f"public/default/{topic}"
    tenant, namespace, name = rest.split("/", 2)
    return f"{domain}/{tenant}/{namespace}/{quote(name, safe='')}"


def unload_topic(admin_url: str, topic: str) -> None:
    """Unload a topic, and all partitions of a partitioned topic; `httpx.HTTPStatusError` if it does not exist."""
    with _client(admin_url, UNLOAD_TIMEOUT_S) as admin:
        admin.put(f"/admin/v2/{topic_path(topic)}/unload").raise_for_status()


def unload_all_namespaces(admin_url: str) -> None:
    """Unload every topic of every tenant but Pulsar's own: cursors are written, and clients are disconnected."""
    with _client(admin_url, UNLOAD_TIMEOUT_S) as admin:
        for tenant in admin.get("/admin/v2/tenants").raise_for_status().json():
            if tenant != SYSTEM_TENANT:
                for namespace in admin.get(f"/admin/v2/namespaces/{tenant}").raise_for_status().json():
                    admin.put(f"/admin/v2/namespaces/{namespace}/unload").raise_for_status()


def broker_version(admin_url: str) -> str:
    with _client(admin_url, CALL_TIMEOUT_S) as admin:
        return admin.get("/admin/v2/brokers/version").raise_for_status().text.strip().strip('"')


def await_ready(admin_url: str, timeout_s: float, *, check: Callable[[], None]) -> None:
    """Poll until the broker is healthy and its default namespace exists.

    `check` is called between the polls and may raise, for instance because the broker's process has ended.
    Raises TimeoutError with the URL that did not answer.
    """
    deadline = time.monotonic() + timeout_s
    waiting_for = list(_READY_PATHS)
    with _client(admin_url, CALL_TIMEOUT_S) as admin:
        while waiting_for:
            if _is_ok(admin, waiting_for[0]):
                del waiting_for[0]
                continue
            check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{admin_url}{waiting_for[0]} did not answer within {timeout_s} s")
            time.sleep(POLL_S)


def is_ready(admin_url: str, *, healthy: bool = False) -> bool:
    """Return whether a broker is ready, or also healthy: it has the default namespace and can write."""
    with _client(admin_url, CALL_TIMEOUT_S) as admin:
        return all(_is_ok(admin, path) for path in (_READY_PATHS if healthy else _READY_PATHS[:1]))


def lookup(admin_url: str, topic: str) -> str | None:
    """Return the service URL of a topic's broker; None if no broker is found, or if the broker to ask is away."""
    try:
        with _client(admin_url, CALL_TIMEOUT_S) as admin:
            answer = admin.get(f"/lookup/v2/topic/{topic_path(topic)}")
    except httpx.TransportError:
        return None
    if answer.is_server_error:
        return None
    url: str = answer.raise_for_status().json()["brokerUrl"]
    return url


def bundle_of(admin_url: str, topic: str) -> str:
    """Return the range of hashes of the bundle that a topic belongs to: `0x40000000_0x80000000`."""
    with _client(admin_url, CALL_TIMEOUT_S) as admin:
        return admin.get(f"/lookup/v2/topic/{topic_path(topic)}/bundle").raise_for_status().text.strip().strip('"')


def unload_bundle(admin_url: str, topic: str, *, to: str) -> None:
    """Unload the bundle of a topic, and have it loaded by the broker `to` (`host:web port`)."""
    with _client(admin_url, UNLOAD_TIMEOUT_S) as admin:
        admin.put(f"{_bundle_path(admin_url, topic)}/unload", params={"destinationBroker": to}).raise_for_status()


def split_bundle(admin_url: str, topic: str) -> None:
    """Split the bundle of a topic in two, and unload both halves."""
    with _client(admin_url, UNLOAD_TIMEOUT_S) as admin:
        admin.put(f"{_bundle_path(admin_url, topic)}/split", params={"unload": "true"}).raise_for_status()


def _bundle_path(admin_url: str, topic: str) -> str:
    _, tenant, namespace, _ = topic_path(topic).split("/")
    return f"/admin/v2/namespaces/{tenant}/{namespace}/{bundle_of(admin_url, topic)}"


def _client(admin_url: str, timeout_s: float) -> httpx.Client:
    # trust_env would send a call to 127.0.0.1 through the machine's HTTP proxy.
    return httpx.Client(base_url=urls_of(admin_url)[0], timeout=timeout_s, trust_env=False, follow_redirects=True)


def _is_ok(admin: httpx.Client, path: str) -> bool:
    try:
        return admin.get(path).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
