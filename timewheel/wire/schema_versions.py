"""Schema versions on their way through hops (broker-facts: byte-for-byte).

A raw-bytes hop would lose them, and a reader would take an old record for a new one. So every message goes on by a
producer that announces the very definition the message was written with, and leaves its bytes alone.
"""

from __future__ import annotations

from typing import Any

import _pulsar
import pulsar

from timewheel.wire.native import NO_SCHEMA, fetch_schema_info
from timewheel.wire.schemas import PassThroughSchema

__all__ = ["SCHEMA_REFUSALS", "SchemaNotFound", "Schemas"]

MAX_CACHED_DEFINITIONS = 1_000
"""Versions of one topic partition; each is a few kB, and histories have a handful."""


class SchemaNotFound(pulsar.TopicNotFound):  # type: ignore[misc]  # pulsar ships no types
    """A topic has no schema of the version that a message in it names."""


class SchemaNotCarried(pulsar.IncompatibleSchema):  # type: ignore[misc]
    """pulsar-client cannot send what it received under a schema."""


SCHEMA_REFUSALS = (SchemaNotFound, pulsar.IncompatibleSchema)
"""What opening a producer raises for messages of one schema version, whatever becomes of others."""


class Schemas:
    """The definitions of one source topic's schema versions, fetched once each.

    Args:
        client: The user's `pulsar.Client`.
        topic: The topic whose versions are meant.
    """

    __slots__ = ("_cached", "_client", "_topic")

    def __init__(self, client: Any, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._cached: dict[int, PassThroughSchema] = {}

    def producer_options(self, version: int) -> dict[str, Any]:
        """Keyword arguments of ``create_producer`` for messages of one version.

        Raises:
            SchemaNotFound: There is no such version.
            SchemaNotCarried: It is one of keys and values, as Java's clients have.
            PulsarException: The definition could not be fetched.
        """
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
        # The client takes every message of such a producer for a pair, looks for that where nothing is, and ends the
        # process.
        if schema.schema_info().schema_type() == _pulsar.SchemaType.KEY_VALUE:
            raise SchemaNotCarried(
                f"version {version} of {self._topic} is KEY_VALUE, which pulsar-client cannot send on"
            )
        return {"schema": schema}
