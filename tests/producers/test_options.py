from __future__ import annotations

import pulsar
import pulsar.schema
import pytest

from timewheel.core.errors import ClientMisuse
from timewheel.core.grouping import LARGEST_BATCH
from timewheel.producers.pool import OWNED, ProducerOptions

BYTES = pulsar.schema.BytesSchema()


@pytest.mark.parametrize("name", sorted(OWNED))
def test_options_that_timewheel_sets_are_refused_by_name_and_reason(name: str) -> None:
    with pytest.raises(ClientMisuse, match=name) as caught:
        ProducerOptions(BYTES, {name: None})
    assert OWNED[name] in str(caught.value)


def test_an_unknown_option_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(
        TypeError, match=r"did you mean send_timeout_millis\?; these pass through: batching_max_allowed"
    ):
        ProducerOptions(BYTES, {"send_timeout_ms": 1})
    with pytest.raises(TypeError, match=r"did you mean max_pending\?"):
        ProducerOptions(BYTES, {"maxpending": 1})


def test_batches_are_no_larger_than_a_relay_takes() -> None:
    ProducerOptions(BYTES, {"batching_max_messages": LARGEST_BATCH})
    with pytest.raises(ClientMisuse, match=f"{LARGEST_BATCH} messages"):
        ProducerOptions(BYTES, {"batching_max_messages": LARGEST_BATCH + 1})


def test_batched_and_compressed_only_where_a_relay_holds() -> None:
    options = ProducerOptions(BYTES, {"batching_max_messages": 7, "send_timeout_millis": 1})
    held = options.of("relay")
    assert held["batching_enabled"] is True
    assert held["batching_max_messages"] == 7
    assert held["compression_type"] == pulsar.CompressionType.LZ4
    for place in ("due", "broker"):
        delayed = options.of(place)
        assert not {name for name in delayed if name.startswith("batching")}
        assert "compression_type" not in delayed
        assert delayed["send_timeout_millis"] == 1


def test_a_compression_that_the_user_asks_for_is_used_everywhere() -> None:
    options = ProducerOptions(BYTES, {"compression_type": pulsar.CompressionType.ZSTD})
    assert {options.of(place)["compression_type"] for place in ("relay", "due")} == {pulsar.CompressionType.ZSTD}


def test_the_users_schema_goes_to_every_topic_and_takes_bytes_as_they_are() -> None:
    schema = pulsar.schema.StringSchema()
    options = ProducerOptions(schema, {})
    for place in ("relay", "due"):
        used = options.of(place)["schema"]
        assert used.schema_info() is schema.schema_info()
        assert used.encode(b"\xff\x00") == b"\xff\x00"
