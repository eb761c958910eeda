"""Producer options of the client: options that are passed through, and options that timewheel sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulsar

from timewheel.client.own_numbers import own_numbers
from timewheel.client.schemas import PassThroughSchema
from timewheel.core.errors import ClientMisuse, did_you_mean
from timewheel.core.grouping import LARGEST_BATCH
from timewheel.producers.sending.outgoing import Place

BATCH = "batching_max_messages"
PASSED_THROUGH = frozenset(
    {
        "batching_max_allowed_size_in_bytes",
        BATCH,
        "batching_max_publish_delay_ms",
        "batching_type",
        "compression_type",
        "properties",
        "send_timeout_millis",
    }
)

_OF_PRODUCERS = ("schema", "clock", "hooks", "max_pending", "max_producers", "max_message_bytes")
"""Arguments of the producers themselves, which a misspelt option may mean."""

OWNED: Mapping[str, str] = {
    "access_mode": "several producers write to every topic of a plan",
    "batching_enabled": "it is on where a relay holds and off where the broker delays",
    "block_if_queue_full": "sends are bounded by max_pending, over all topics",
    "chunking_enabled": "a relay forwards whole messages only; store large payloads elsewhere and send a reference",
    "crypto_key_reader": "a relay must be able to read what it forwards; encrypt the payload yourself",
    "encryption_key": "a relay must be able to read what it forwards; encrypt the payload yourself",
    "initial_sequence_id": "the client must not use a number twice",
    "lazy_start_partitioned_producers": "every producer writes to one partition topic",
    "max_pending_messages": "use max_pending, which bounds all topics together",
    "max_pending_messages_across_partitions": "use max_pending, which bounds all topics together",
    "message_router": "the partition is computed from the key as the Java client does",
    "message_routing_mode": "the partition is computed from the key as the Java client does",
    "producer_name": "a fixed name would let one producer of many live, and one that is known can be used up by others",
    "topic": "the plan names the topics",
}
"""Options that timewheel sets itself, each with the reason that the refusal states."""


class ProducerOptions:
    """Options with which a plan's producers are opened.

    Args:
        schema: The user's schema, registered with every topic, holding topics too (broker-facts: byte-for-byte).
        options: pulsar-client's own keyword arguments of ``create_producer``.

    Raises:
        ClientMisuse: Only timewheel may set an option, or batches could be larger than a relay takes.
        TypeError: pulsar-client has no such option.
    """

    __slots__ = ("_common", "_cuts", "_held")

    def __init__(self, schema: Any, options: Mapping[str, Any]) -> None:
        for name in options:
            if name in OWNED:
                raise ClientMisuse(f"producer option {name!r} is set by timewheel: {OWNED[name]}")
            if name not in PASSED_THROUGH:
                near = did_you_mean(name, {*PASSED_THROUGH, *_OF_PRODUCERS})
                known = f"these pass through: {', '.join(sorted(PASSED_THROUGH))}"
                raise TypeError(f"no producer option {name!r}{near}; {known}")
        if options.get(BATCH, 0) > LARGEST_BATCH:
            raise ClientMisuse(
                f"producer option {BATCH!r} is {options[BATCH]}: a relay sets aside as a whole what has more than "
                f"{LARGEST_BATCH} messages; pass that or less"
            )
        self._common: dict[str, Any] = {
            # timewheel limits pending sends over all topics; a second limit here would report refused sends in
            # callbacks (broker-facts: full-send-queue).
            "max_pending_messages": 0,
            "schema": PassThroughSchema.like(schema),
            **{name: value for name, value in options.items() if not name.startswith("batching_")},
        }
        # Cancellations are small, and many at once if a service cancels in bulk; a waiting cancel waits a millisecond
        # more.
        self._cuts: dict[str, Any] = {
            **{name: value for name, value in self._common.items() if name != "schema"},
            "batching_enabled": True,
            "batching_max_publish_delay_ms": 1,
        }
        self._held: dict[str, Any] = {
            "batching_enabled": True,
            # Cheap to compute, and a batch of timers is repetitive.
            "compression_type": pulsar.CompressionType.LZ4,
            **options,
        }

    def of(self, place: Place) -> dict[str, Any]:
        """Return keyword arguments of ``create_producer`` for a topic in which messages wait at this place.

        Messages are batched and compressed if a relay holds them. If the broker delays them, the client does not batch
        them anyway, and compressing small messages individually does not make them smaller.
        """
        match place:
            case "relay":
                options = {**self._common, **self._held}
            case "cancellations":
                options = self._cuts
            case _:
                options = self._common
        return {**options, **own_numbers()}
