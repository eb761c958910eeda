"""Where a redirect may take a call and its credentials."""

from __future__ import annotations

from typing import Final

import httpx

from timewheel.core.errors import AdminError

__all__ = ["REDIRECTS", "origin_of", "owner_url"]

_KEEPS_METHOD: Final = frozenset({307, 308})
REDIRECTS: Final = _KEEPS_METHOD | {301, 302, 303}


def owner_url(response: httpx.Response, asked: httpx.URL, method: str, endpoint: str) -> httpx.URL:
    """Where a redirect leads, if the token may go there.

    Raises:
        AdminError: It leads out of HTTP, from HTTPS down to HTTP, or would turn a write into a read.
    """
    status = response.status_code
    if status not in _KEEPS_METHOD and method != "GET":
        raise AdminError(status, endpoint, f"a redirect that does not keep {method}; is a proxy in between?")
    url = asked.join(response.headers.get("Location", ""))  # httpx has refused a garbled one already
    if "Location" not in response.headers or url.scheme not in {"http", "https"} or not url.host or url.userinfo:
        raise AdminError(status, endpoint, f"a redirect to {origin_of(url)}, which is no broker's address")
    if asked.scheme == "https" and url.scheme == "http":
        raise AdminError(
            status,
            endpoint,
            f"a redirect from HTTPS down to {origin_of(url)}; the credentials are not sent in the clear",
        )
    return url


def origin_of(url: httpx.URL) -> str:
    """Scheme, host and port; never a user or a password."""
    return f"{url.scheme}://{url.netloc.decode('ascii', 'replace').rpartition('@')[2]}"
