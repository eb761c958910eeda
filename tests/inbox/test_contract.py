"""What every store of claims promises: one suite for all of them, the real Redis included."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.inbox_stages import Stage
from timewheel.consumers.inbox import Answer, Claim
from timewheel.errors import BadInbox

LEASE_MS = 60_000
KEEP_MS = 3_600_000

MINE, DONE = Claim(Answer.MINE), Claim(Answer.DONE)


def test_a_lease_that_ended_is_anothers_to_take_and_the_first_is_fenced_off(stage: Stage) -> None:
    stage.inbox.claim("key", "a", LEASE_MS)
    stage.pass_ms(LEASE_MS)
    assert stage.inbox.claim("key", "b", LEASE_MS) == MINE

    stage.inbox.release("key", "a")
    assert not stage.inbox.renew("key", "a", LEASE_MS)
    assert not stage.inbox.done("key", "a", KEEP_MS)
    assert stage.inbox.claim("key", "c", LEASE_MS).answer is Answer.TAKEN, "nothing of this harms who has it now"
    assert stage.inbox.done("key", "b", KEEP_MS)
    assert not stage.inbox.done("key", "a", KEEP_MS)


def test_a_restart_keeps_claims_where_the_store_outlives_the_process(stage: Stage) -> None:
    stage.inbox.claim("claimed", "a", LEASE_MS)
    stage.inbox.claim("done", "a", LEASE_MS)
    stage.inbox.done("done", "a", KEEP_MS)
    stage.restart()
    answers = [stage.inbox.claim(key, "b", LEASE_MS).answer for key in ("claimed", "done")]

    assert answers == ([Answer.TAKEN, Answer.DONE] if stage.keeps else [Answer.MINE, Answer.MINE])


@pytest.mark.parametrize(
    "key", ["", "a b\n", "%00", "clé-鍵-🔑", "x" * 2_048], ids=["empty", "space", "%", "é", "long"]
)
def test_any_text_is_a_key(stage: Stage, key: str) -> None:
    assert stage.inbox.claim(key, "a", LEASE_MS) == MINE
    assert stage.inbox.done(key, "a", KEEP_MS)
    assert stage.inbox.claim(key, "b", LEASE_MS) == DONE


def test_of_many_threads_one_has_each_key(stage: Stage) -> None:
    threads, keys = 8, [f"key-{number}" for number in range(40)]
    begin = threading.Barrier(threads, timeout=60)

    def claims(owner: int) -> list[str]:
        begin.wait()
        return [key for key in keys if stage.inbox.claim(key, f"owner-{owner}", LEASE_MS) == MINE]

    with ThreadPoolExecutor(threads) as pool:
        won = [key for mine in pool.map(claims, range(threads)) for key in mine]

    assert sorted(won) == sorted(keys)


def test_a_lease_or_a_memory_of_no_length_is_refused(stage: Stage) -> None:
    calls: list[Callable[[], object]] = [
        lambda: stage.inbox.claim("key", "a", 0),
        lambda: stage.inbox.renew("key", "a", 0),
        lambda: stage.inbox.done("key", "a", -1),
    ]
    for call in calls:
        with pytest.raises(BadInbox, match="must be at least"):
            call()


def test_a_store_may_be_closed_twice(stage: Stage) -> None:
    stage.inbox.close()
    stage.inbox.close()
