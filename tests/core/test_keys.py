"""Keys meet the partition that a Java client would choose (broker-facts: keys-and-partitions)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timewheel.core.names import _cached_hash, java_string_hash, partition_for_key


@pytest.mark.parametrize(
    ("text", "hash_code"),
    [
        ("", 0),
        ("a", 97),
        ("ab", 31 * 97 + 98),
        ("hello", 99_162_322),
        ("Hello World", -862_545_276),
        ("The quick brown fox jumps over the lazy dog", -609_428_141),
        ("polygenelubricants", -(2**31)),  # the well-known least of all
        ("é", 0xE9),
        ("😀", 31 * 0xD83D + 0xDE00),  # a pair of UTF-16 units: 1,772,899
        ("\ud83d", 0xD83D),  # half of a pair, which Java allows in a String
    ],
)
def test_the_hash_is_that_of_java_with_the_sign_cleared(text: str, hash_code: int) -> None:
    assert java_string_hash(text) == hash_code & 0x7FFF_FFFF


@given(st.text(st.characters()), st.integers(1, 1_024))
def test_every_key_has_one_partition(key: str, partitions: int) -> None:
    partition = partition_for_key(key, partitions)
    assert 0 <= partition < partitions
    assert partition == java_string_hash(key) % partitions == partition_for_key(key, partitions)


def test_long_keys_are_not_kept() -> None:
    before = _cached_hash.cache_info().currsize
    for number in range(20):
        partition_for_key(f"{number}" + "k" * 256, 4)
    assert _cached_hash.cache_info().currsize == before
