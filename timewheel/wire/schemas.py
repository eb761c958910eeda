"""Schemas that announce a definition and leave the bytes alone.

Content is encoded once, before routing, so that its size is known; every producer then takes raw bytes and still
registers the user's schema, holding topics' too: the schema version must exist there for a relay to carry it on
(broker-facts: byte-for-byte).
"""

from __future__ import annotations

from typing import Any

import pulsar.schema

__all__ = ["PassThroughSchema"]


class PassThroughSchema(pulsar.schema.Schema):  # type: ignore[misc]  # pulsar ships no types
    """A schema with somebody else's definition whose content is bytes already.

    Args:
        schema_info: The definition as the client knows it, from ``Schema.schema_info()``.
    """

    def __init__(self, schema_info: Any) -> None:
        # The base class would build a definition of its own from a record class; ours exists already.
        self._schema_info = schema_info

    @classmethod
    def like(cls, schema: Any) -> PassThroughSchema:
        """One with the definition of a user's schema."""
        return cls(schema.schema_info())

    def encode(self, obj: Any) -> Any:
        return obj

    def decode(self, data: Any) -> Any:
        return data
