"""Rules for redirects: the targets that a call and its credentials may go to."""

from __future__ import annotations

from collections import Counter
from typing import Final
from urllib.parse import parse_qsl, unquote

import httpx

from timewheel.core.errors import AdminError

API: Final = "/admin/v2"
LOOKUP: Final = "/lookup/v2/topic"
_KEEPS_METHOD: Final = frozenset({307, 308})
REDIRECTS: Final = _KEEPS_METHOD | {301, 302, 303}


def owner_url(response: httpx.Response, asked: httpx.URL, method: str, endpoint: str) -> httpx.URL:
    """Return the target of a redirect, if the token may go there.

    Raises:
        AdminError: It leads out of HTTP, from HTTPS down to HTTP, to another call, or would turn a write into a read.
    """
    status = response.status_code
    if status not in _KEEPS_METHOD and method != "GET":
        raise AdminError(status, endpoint, f"a redirect that does not keep {method}; is a proxy in between?")
    url = asked.join(response.headers.get("Location", ""))  # httpx has already refused a malformed location
    if "Location" not in response.headers or url.scheme not in {"http", "https"} or not url.host or url.userinfo:
        raise AdminError(status, endpoint, f"a redirect to {origin_of(url)}, which is no broker's address")
    if asked.scheme == "https" and url.scheme == "http":
        raise AdminError(
            status,
            endpoint,
            f"a redirect from HTTPS down to {origin_of(url)}; the credentials are not sent in the clear",
        )
    if _call_of(url) != _call_of(asked):
        raise AdminError(status, endpoint, f"a redirect at {origin_of(url)} to another call; is a proxy in between?")
    return url


def _call_of(url: httpx.URL) -> tuple[list[str], Counter[tuple[str, str]]]:
    """Return the call in a URL, without its origin: a proxy may have a prefix of its own before the path of the admin
    API, and brokers add to the query that they looked up the owner.
    """
    path, _, query = url.raw_path.decode("ascii", "replace").partition("?")
    _, mark, call = path.partition(API)
    segments = [unquote(part) for part in (call if mark else path).split("/")]
    return segments, Counter((name, value) for name, value in parse_qsl(query, True) if name != "authoritative")


def origin_of(url: httpx.URL) -> str:
    """Return scheme, host and port; never a user or a password."""
    return f"{url.scheme}://{url.netloc.decode('ascii', 'replace').rpartition('@')[2]}"
