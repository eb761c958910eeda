"""What keys and owners are made of, and what is said where a library is missing."""

from __future__ import annotations

import pickle
import random
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.checkout import ROOT
from tests.support.processes import ran
from timewheel import errors
from timewheel.consumers.inbox import MAX_KEY_BYTES, Owners, inbox_key, kept_for_ms

TOPIC = "persistent://acme/crm/reminders"
NAMES = st.text(st.characters(exclude_categories=["Cs", "Z", "C"]), min_size=1, max_size=20)
PARTS = st.tuples(NAMES, NAMES, st.text(st.characters(exclude_categories=["Cs"]), max_size=20), st.integers(0, 9))


def test_a_key_says_what_it_is_of() -> None:
    assert inbox_key(TOPIC, "billing", "sub-42", 3) == "acme/crm/reminders billing 3 sub-42"


@settings(max_examples=40)
@given(PARTS, PARTS)
@example(("a", "b", "1 c", 0), ("a", "b", "c", 1))
@example(("a", "b 1", "c", 2), ("a", "b", "2 c", 1))
@example(("a", "b c", "c", 0), ("a", "b%20c", "c", 0))
@example(("a", "b", "\0", 0), ("a", "b", "%00", 0))
@example(("a", "b", "%25", 0), ("a", "b", "%", 0))
@example(("a", "b", "c", 0), ("a", "b", "c", 0))
def test_two_timers_have_two_keys(one: tuple[str, str, str, int], other: tuple[str, str, str, int]) -> None:
    assert (inbox_key(*_placed(one)) == inbox_key(*_placed(other))) == (one == other)


def _placed(parts: tuple[str, str, str, int]) -> tuple[str, str, str, int]:
    due_topic, subscription, timer_id, generation = parts
    return f"persistent://a/b/{due_topic}", subscription, timer_id, generation


@settings(max_examples=40)
@given(st.text(max_size=30))
def test_no_key_has_a_character_that_databases_refuse(timer_id: str) -> None:
    assert "\0" not in inbox_key(TOPIC, "billing", timer_id.encode(errors="ignore").decode(), 0)


@pytest.mark.parametrize("character", ["x", "鍵"], ids=["ascii", "three bytes"])
def test_a_key_that_is_too_long_is_refused_with_its_limit(character: str) -> None:
    rest_bytes = len(inbox_key(TOPIC, "", "", 0))
    width = len(character.encode())
    fits = character * ((MAX_KEY_BYTES - rest_bytes) // width)

    assert len(inbox_key(TOPIC, fits, "", 0).encode()) > MAX_KEY_BYTES - width
    with pytest.raises(errors.InboxKeyTooLong, match=f"at most {MAX_KEY_BYTES}.*shorter ids") as caught:
        inbox_key(TOPIC, fits + character, "", 0)
    assert caught.value.limit_bytes == MAX_KEY_BYTES
    assert caught.value.size_bytes > MAX_KEY_BYTES


def test_the_longest_timer_id_fits_beside_long_names() -> None:
    assert inbox_key("persistent://" + "t" * 500, "s" * 400, "\U0001f511" * 256, 999_999_999)


@pytest.mark.parametrize(
    ("due_ms", "now_ms", "kept_ms"),
    [(1_000, 1_000, 50), (1_000, 5_000, 50), (5_000, 1_000, 4_050)],
    ids=["on time", "late", "before it was due"],
)
def test_a_key_is_kept_past_its_due_time_and_past_now(due_ms: int, now_ms: int, kept_ms: int) -> None:
    assert kept_for_ms(due_ms, now_ms, 50) == kept_ms


def test_owners_differ_within_a_process_and_between_processes() -> None:
    made = [Owners(random.Random(seed)) for seed in range(100)]

    assert len({owners.new() for owners in made for _ in range(100)}) == 10_000
    assert Owners(random.Random(7)).new() == Owners(random.Random(7)).new()


def test_what_an_inbox_says_crosses_processes() -> None:
    for error in (
        errors.InboxFull("in memory", 5, "keys", "raise max_keys"),
        errors.InboxKeyTooLong(3_000, MAX_KEY_BYTES),
        errors.BadInbox("lease_ms", "0, must be at least 1"),
    ):
        twin = pickle.loads(pickle.dumps(error))
        assert (type(twin), str(twin), vars(twin)) == (type(error), str(error), vars(error))
    full = errors.InboxFull("in memory", 5, "keys", "raise max_keys")
    assert isinstance(full, errors.InboxUnavailable)
    assert str(full) == "inbox in memory: full, at most 5 keys; raise max_keys"


WITHOUT_REDIS = """
import sys
sys.modules["redis"] = sys.modules["sqlalchemy"] = None  # as if they were not installed
from timewheel.consumers.inbox import MemoryInbox, SqlInbox, SqliteInbox
from timewheel.consumers.inbox import RedisInbox
"""


def test_without_its_extra_redis_says_how_to_install_it_and_the_other_stores_are_there() -> None:
    done = ran([sys.executable, "-c", WITHOUT_REDIS], cwd=ROOT)

    assert done.stderr.splitlines()[-1] == (
        "timewheel.core.extras.ExtraMissing: RedisInbox needs redis, which this line installs: "
        f"{sys.executable} -m pip install 'redis>=5'"
    )
