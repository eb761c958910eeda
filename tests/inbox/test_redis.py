"""The store in Redis, when that is gone, frozen, full or a replica; and what a restart of it keeps."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.redis_server import RedisServer, redis_server
from timewheel.consumers.inbox import Answer, RedisInbox
from timewheel.errors import BadInbox, InboxUnavailable

LEASE_MS, KEEP_MS = 600_000, 3_600_000
BRIEF_MS = 300
ANSWER_MS = 20_000


@pytest.fixture
def mortal() -> Iterator[RedisServer]:
    """One of a test's own, which writes all down before it answers, as one that keeps claims has to."""
    with redis_server("--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


def test_one_that_is_killed_is_told_and_knows_all_when_it_is_back(mortal: RedisServer) -> None:
    with closing(RedisInbox.from_url(mortal.url, timeout_ms=ANSWER_MS)) as inbox:
        inbox.claim("done", "a", LEASE_MS)
        inbox.done("done", "a", KEEP_MS)
        inbox.claim("claimed", "a", LEASE_MS)
        mortal.kill()
        for ask in (
            lambda: inbox.claim("new", "a", LEASE_MS),
            lambda: inbox.renew("claimed", "a", LEASE_MS),
            lambda: inbox.done("claimed", "a", KEEP_MS),
            lambda: inbox.release("claimed", "a"),
        ):
            with pytest.raises(InboxUnavailable, match=r"see that Redis runs.*asking again is safe") as caught:
                ask()
            assert caught.value.store == f"Redis at {mortal.socket}"
        mortal.start()

        assert [inbox.claim(key, "b", LEASE_MS).answer for key in ("done", "claimed", "new")] == [
            Answer.DONE,
            Answer.TAKEN,
            Answer.MINE,
        ]
        assert inbox.done("claimed", "a", KEEP_MS), "its scripts are gone with the process, and loaded again"


def test_one_that_keeps_nothing_forgets_all_of_it_in_a_restart() -> None:
    """What the page warns of."""
    with redis_server() as server, closing(RedisInbox.from_url(server.url, timeout_ms=ANSWER_MS)) as inbox:
        inbox.claim("done", "a", LEASE_MS)
        inbox.done("done", "a", KEEP_MS)
        server.kill()
        server.start()

        assert inbox.claim("done", "b", LEASE_MS).answer is Answer.MINE


def test_one_that_does_not_answer_is_told_within_the_time_out(mortal: RedisServer) -> None:
    with closing(RedisInbox.from_url(mortal.url, timeout_ms=BRIEF_MS)) as inbox:
        mortal.signal(signal.SIGSTOP)
        try:
            with pytest.raises(InboxUnavailable, match=r"TimeoutError: .*not overloaded"):
                inbox.claim("key", "a", LEASE_MS)
        finally:
            mortal.signal(signal.SIGCONT)


def test_one_that_is_full_is_told_and_good_again_when_there_is_room(mortal: RedisServer) -> None:
    with closing(RedisInbox.from_url(mortal.url, timeout_ms=ANSWER_MS)) as inbox, mortal.client() as client:
        inbox.claim("key", "a", LEASE_MS)
        client.config_set("maxmemory", "1mb")
        with pytest.raises(InboxUnavailable, match=r"raise maxmemory.*never evict"):
            inbox.claim("new", "a", LEASE_MS)
        client.config_set("maxmemory", "0")

        assert inbox.done("key", "a", KEEP_MS)


def test_a_replica_is_told(mortal: RedisServer) -> None:
    with closing(RedisInbox.from_url(mortal.url, timeout_ms=ANSWER_MS)) as inbox, mortal.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(InboxUnavailable, match="connect to the primary"):
            inbox.claim("key", "a", LEASE_MS)


def test_a_wrong_password_is_told_without_the_password(mortal: RedisServer) -> None:
    with mortal.client() as client:
        client.config_set("requirepass", "right")
    url = mortal.url.replace("unix://", "unix://:wr0ng@")
    inbox = RedisInbox.from_url(url, timeout_ms=ANSWER_MS)
    with closing(inbox), pytest.raises(InboxUnavailable, match="a user and password that Redis knows") as caught:
        inbox.claim("key", "a", LEASE_MS)
    assert "wr0ng" not in str(caught.value)


def test_a_key_without_an_end_is_somebody_elses_and_another_waits_a_lease(redis_shared: RedisServer) -> None:
    with closing(RedisInbox.from_url(redis_shared.url, prefix="endless:")) as inbox, redis_shared.client() as client:
        client.set("endless:key", "claimed by hand")
        claim = inbox.claim("key", "a", LEASE_MS)

    assert (claim.answer, claim.again_ms) == (Answer.TAKEN, LEASE_MS)


def test_a_client_that_was_handed_in_stays_open(redis_shared: RedisServer) -> None:
    with redis_shared.client() as client:
        inbox = RedisInbox(client, prefix="handed-in:")
        assert inbox.claim("key", "a", LEASE_MS).answer is Answer.MINE
        inbox.close()
        assert client.ping()
        assert client.get("handed-in:key") == b"claimed a"
        assert 0 < int(client.pttl("handed-in:key")) <= LEASE_MS


def test_a_time_out_of_nothing_is_refused() -> None:
    with pytest.raises(BadInbox, match="timeout_ms: 0"):
        RedisInbox.from_url("redis://localhost", timeout_ms=0)
