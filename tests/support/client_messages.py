"""Messages as the client hands them out, of what a test says about them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pulsar

NO_TEXT = b"\xff"  # where text is asked for: the client raises


def client_message(
    properties: dict[str, str] | bytes | None = None,
    *,
    topic: str = "",
    at: tuple[int, int, int] = (1, 2, -1),
    key: str | bytes = "",
    ordering_key: str = "",
    content: bytes = b"",
    event_ms: int = 0,
    redeliveries: int = 0,
) -> Any:
    """Stored as ledger, entry and batch index ``at`` of some partition; ``bytes`` for text are decoded when read."""
    return SimpleNamespace(
        size=len(content),
        message_id=lambda: pulsar.MessageId(3, *at),
        topic_name=lambda: topic,
        properties=lambda: {"who": properties.decode()} if isinstance(properties, bytes) else dict(properties or {}),
        partition_key=lambda: key.decode() if isinstance(key, bytes) else key,
        ordering_key=lambda: ordering_key,
        data=lambda: content,
        has_null_value=lambda: False,
        schema_version=lambda: "",
        event_timestamp=lambda: event_ms,
        redelivery_count=lambda: redeliveries,
    )
