"""An inbox in Redis, shared by the processes of many hosts.

Redis ends leases and forgets done keys by its own clock, so that clocks of hosts do not matter. A key holds a text:
``claimed <owner>`` or ``done <owner>``.
"""

from __future__ import annotations

from typing import cast

import redis
from redis.commands.core import Script
from redis.exceptions import NoPermissionError, OutOfMemoryError, ReadOnlyError

from .protocol import DONE, MINE, Claim, InboxUnavailable, check_least, taken

DEFAULT_PREFIX = "tw-inbox:"
DEFAULT_TIMEOUT_MS = 2_000  # timeout of each answer; Redis answers within a millisecond
_MINE, _DONE = -11, -12
"""Answers of the script for `MINE` and `DONE`; other answers are the milliseconds that another owner has the key."""

# Runs only if the key exists: reads and takes it in a single step, since it may end in between. PTTL of a key that
# never ends (set by another program) is -1: then the lease is as long as ours would be.
_CLAIM_HELD = """
local found = redis.call('GET', KEYS[1])
if not found or found == 'claimed ' .. ARGV[1] then
    redis.call('SET', KEYS[1], 'claimed ' .. ARGV[1], 'PX', ARGV[2])
    return -11
end
if string.sub(found, 1, 5) == 'done ' then
    return -12
end
local left = redis.call('PTTL', KEYS[1])
if left < 0 then
    return tonumber(ARGV[2])
end
return left
"""
_RENEW = """
if redis.call('GET', KEYS[1]) ~= 'claimed ' .. ARGV[1] then
    return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
_FINISH = """
local found = redis.call('GET', KEYS[1])
if found and found ~= 'claimed ' .. ARGV[1] and found ~= 'done ' .. ARGV[1] then
    return 0
end
redis.call('SET', KEYS[1], 'done ' .. ARGV[1], 'PX', ARGV[2])
return 1
"""
_RELEASE = """
if redis.call('GET', KEYS[1]) ~= 'claimed ' .. ARGV[1] then
    return 0
end
return redis.call('DEL', KEYS[1])
"""


class RedisInbox:
    """Claims and done keys in Redis 6.2 or newer.

    It is as reliable as that Redis's memory: a key that Redis loses in a crash, a failover or by eviction is done
    again. Its ``maxmemory-policy`` must be ``noeviction``.

    Args:
        client: The user's client, with its timeouts (``socket_timeout``), which bound each call. `close` leaves it
            open.
        prefix: Prefix of all keys.
    """

    def __init__(self, client: redis.Redis, *, prefix: str = DEFAULT_PREFIX) -> None:
        self._client = client
        self._prefix = prefix
        self._owns_client = False
        self._claim_held = client.register_script(_CLAIM_HELD)
        self._renew = client.register_script(_RENEW)
        self._finish = client.register_script(_FINISH)
        self._release = client.register_script(_RELEASE)

    @classmethod
    def from_url(cls, url: str, *, prefix: str = DEFAULT_PREFIX, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> RedisInbox:
        """Create an inbox with its own client, which connects at the first claim.

        Args:
            url: ``redis://host:port/db``, ``rediss://`` for TLS, ``unix:///path``.
            prefix: Prefix of all keys.
            timeout_ms: Timeout of a connection and of each answer.
        """
        check_least("timeout_ms", timeout_ms, 1)
        timeout_s = timeout_ms / 1000
        client = redis.Redis.from_url(url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s)
        inbox = cls(client, prefix=prefix)
        inbox._owns_client = True
        return inbox

    def claim(self, key: str, owner: str, lease_ms: int) -> Claim:
        """See `Inbox.claim`."""
        check_least("lease_ms", lease_ms, 1)
        name = self._prefix + key
        try:
            if self._client.set(name, f"claimed {owner}", nx=True, px=lease_ms):
                return MINE
            found = cast("int", self._claim_held(keys=[name], args=[owner, lease_ms]))
        except redis.RedisError as error:
            raise self._unavailable(error) from error
        if found == _MINE:
            return MINE
        return DONE if found == _DONE else taken(found)

    def renew(self, key: str, owner: str, lease_ms: int) -> bool:
        """See `Inbox.renew`."""
        check_least("lease_ms", lease_ms, 1)
        return self._asked(self._renew, key, owner, lease_ms)

    def done(self, key: str, owner: str, forget_ms: int) -> bool:
        """See `Inbox.done`."""
        check_least("forget_ms", forget_ms, 0)
        return self._asked(self._finish, key, owner, max(forget_ms, 1))  # Redis accepts no expiry of 0

    def release(self, key: str, owner: str) -> None:
        """See `Inbox.release`."""
        self._asked(self._release, key, owner)

    def close(self) -> None:
        """See `Inbox.close`."""
        if self._owns_client:
            self._client.close()

    def _asked(self, script: Script, key: str, *arguments: str | int) -> bool:
        try:
            return bool(script(keys=[self._prefix + key], args=arguments))
        except redis.RedisError as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: redis.RedisError) -> InboxUnavailable:
        options = self._client.connection_pool.connection_kwargs
        # Never the URL: it may have a password.
        address = options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
        remedy = next((remedy for kind, remedy in _REMEDIES.items() if isinstance(error, kind)), "see Redis's own log")
        return InboxUnavailable(f"Redis at {address}", f"{type(error).__name__}: {error}", remedy)


# The more specific errors first.
_REMEDIES: dict[type[redis.RedisError], str] = {
    redis.AuthenticationError: "give the client a user and password that Redis knows",
    OutOfMemoryError: "raise maxmemory, or remember done keys for a shorter time; never evict them",
    ReadOnlyError: "this is a replica: connect to the primary",
    NoPermissionError: "allow the user GET, SET, DEL, PTTL, PEXPIRE and EVALSHA on keys of the prefix",
    redis.TimeoutError: "see that Redis runs and is not overloaded; asking again is safe",
    redis.ConnectionError: "see that Redis runs and can be reached; asking again is safe",
}
