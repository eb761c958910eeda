"""What every store of claims promises: one suite for all of them, the real Redis included."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.inbox_stages import Stage
from timewheel.consumers.inbox import Answer, Claim, Inbox
from timewheel.errors import BadInbox

LEASE_MS = 60_000
KEEP_MS = 3_600_000
SLACK_MS = 30_000
"""A test in which time is made to pass may take so much real time besides."""

MINE, DONE = Claim(Answer.MINE), Claim(Answer.DONE)


def test_every_store_is_an_inbox(stage: Stage) -> None:
    assert isinstance(stage.inbox, Inbox)


def test_the_first_has_it_and_another_waits_until_the_lease_ends(stage: Stage) -> None:
    assert stage.inbox.claim("key", "a", LEASE_MS) == MINE
    refused = stage.inbox.claim("key", "b", LEASE_MS)

    assert refused.answer is Answer.TAKEN
    assert LEASE_MS - SLACK_MS < refused.again_ms <= LEASE_MS
    assert stage.inbox.claim("another key", "b", LEASE_MS) == MINE


def test_a_claim_asked_for_again_is_still_ones_own_with_a_new_lease(stage: Stage) -> None:
    stage.inbox.claim("key", "a", LEASE_MS)
    stage.pass_ms(LEASE_MS - SLACK_MS)

    assert stage.inbox.claim("key", "a", LEASE_MS) == MINE
    assert stage.inbox.claim("key", "b", LEASE_MS).again_ms > LEASE_MS - SLACK_MS


def test_what_is_done_is_done_for_all_until_it_is_forgotten(stage: Stage) -> None:
    stage.inbox.claim("key", "a", LEASE_MS)
    assert stage.inbox.done("key", "a", KEEP_MS)
    stage.pass_ms(KEEP_MS - SLACK_MS)
    assert [stage.inbox.claim("key", owner, LEASE_MS) for owner in "ab"] == [DONE, DONE]

    stage.pass_ms(SLACK_MS)
    assert stage.inbox.claim("key", "b", LEASE_MS) == MINE


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


def test_a_lease_that_ended_and_nobody_took_is_still_good_for_done(stage: Stage) -> None:
    stage.inbox.claim("key", "a", LEASE_MS)
    stage.pass_ms(LEASE_MS)

    assert stage.inbox.done("key", "a", KEEP_MS)
    assert stage.inbox.claim("key", "b", LEASE_MS) == DONE


def test_a_renewed_lease_begins_anew_and_one_that_ended_is_not_renewed(stage: Stage) -> None:
    stage.inbox.claim("key", "a", LEASE_MS)
    stage.pass_ms(LEASE_MS - SLACK_MS)
    assert stage.inbox.renew("key", "a", LEASE_MS)
    stage.pass_ms(SLACK_MS)
    assert stage.inbox.claim("key", "b", LEASE_MS).answer is Answer.TAKEN

    stage.pass_ms(LEASE_MS)
    assert not stage.inbox.renew("key", "a", LEASE_MS)
    assert stage.inbox.claim("key", "b", LEASE_MS) == MINE


def test_what_is_given_back_is_free_at_once(stage: Stage) -> None:
    stage.inbox.claim("key", "a", LEASE_MS)
    stage.inbox.release("key", "a")

    assert stage.inbox.claim("key", "b", LEASE_MS) == MINE


def test_what_is_done_is_neither_given_back_nor_renewed(stage: Stage) -> None:
    stage.inbox.claim("key", "a", LEASE_MS)
    stage.inbox.done("key", "a", KEEP_MS)
    stage.inbox.release("key", "a")

    assert not stage.inbox.renew("key", "a", LEASE_MS)
    assert stage.inbox.claim("key", "b", LEASE_MS) == DONE


def test_done_may_be_said_twice_by_whoever_lost_the_answer(stage: Stage) -> None:
    stage.inbox.claim("key", "a", LEASE_MS)

    assert [stage.inbox.done("key", "a", KEEP_MS) for _ in range(2)] == [True, True]


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
