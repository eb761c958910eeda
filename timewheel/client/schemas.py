"""Schemas that announce a definition and leave the bytes unchanged (broker-facts: byte-for-byte)."""

from __future__ import annotations

from typing import Any

import _pulsar
import pulsar
import pulsar.schema

from timewheel.client.native import NO_SCHEMA, fetch_schema_info


class PassThroughSchema(pulsar.schema.Schema):  # type: ignore[misc]  # pulsar ships no types
    """Schema with a given definition, whose content is already bytes.

    Content is encoded once, before routing, so that its size is known. Every producer then takes raw bytes and still
    registers the user's schema, on holding topics too: the version must exist there for a relay to carry it on.
    """

    def __init__(self, schema_info: Any) -> None:
        # The base class would build a definition from a record class; here the definition is given.
        self._schema_info = schema_info

    @classmethod
    def like(cls, schema: Any) -> PassThroughSchema:
        """Return a schema with the definition of a user's schema."""
        return cls(schema.schema_info())

    def encode(self, obj: Any) -> Any:
        return obj

    def decode(self, data: Any) -> Any:
        return data


MAX_CACHED_DEFINITIONS = 1_000
"""Limit on cached versions of a topic partition; each takes a few kB, and histories have a handful."""


class SchemaNotFound(pulsar.TopicNotFound):  # type: ignore[misc]  # pulsar ships no types
    """A topic has no schema of the version that one of its messages names."""


class SchemaNotCarried(pulsar.IncompatibleSchema):  # type: ignore[misc]
    """pulsar-client cannot send on a message that it received under such a schema."""


SCHEMA_REFUSALS = (SchemaNotFound, pulsar.IncompatibleSchema)
"""Errors of opening a producer that concern the messages of a single schema version only."""


class Schemas:
    """Definitions of a source topic's schema versions, fetched once each.

    A hop of raw bytes would lose the version, and a reader would decode an old record with a new schema. So every
    message goes on through a producer that announces exactly the definition of its schema, without touching its bytes.
    """

    def __init__(self, client: Any, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._cached: dict[int, PassThroughSchema] = {}

    def producer_options(self, version: int) -> dict[str, Any]:
        """Return keyword arguments of ``create_producer`` for messages of a schema version."""
        if version == NO_SCHEMA:
            return {}
        schema = self._cached.get(version)
        if schema is None:
            if len(self._cached) >= MAX_CACHED_DEFINITIONS:
                self._cached.clear()
            try:
                info = fetch_schema_info(self._client, self._topic, version)
            except pulsar.TopicNotFound as error:
                raise SchemaNotFound(f"{self._topic} has no schema of version {version}") from error
            schema = self._cached[version] = PassThroughSchema(info)
        # With such a producer the client reads every message as a pair of key and value, looks for them in a message
        # without them, and ends the process.
        if schema.schema_info().schema_type() == _pulsar.SchemaType.KEY_VALUE:
            raise SchemaNotCarried(
                f"version {version} of {self._topic} is KEY_VALUE, which pulsar-client cannot send on"
            )
        return {"schema": schema}
