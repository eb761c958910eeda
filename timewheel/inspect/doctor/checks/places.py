"""Checks of a namespace's effects on all its topics: replication, and rules about schemas."""

from __future__ import annotations

from collections.abc import Iterator

from timewheel.core.escapes import pulsar_admin
from timewheel.inspect.doctor.check import Check
from timewheel.inspect.doctor.finding import Finding, Kind, Severity
from timewheel.inspect.doctor.seen import Seen, Source
from timewheel.inspect.doctor.settings import broker_command, is_on

REPLICATED = Kind(
    slug="replicated",
    severity=Severity.WARNING,
    why="A relay in each cluster would forward every timer, so that each is handled once for each cluster.",
    do="Give the plan a holding_namespace of its own that is not replicated.",
)
SCHEMAS_ENFORCED = Kind(
    slug="schemas-enforced",
    severity=Severity.INFO,
    why="Where a topic has a schema, producers without one are refused; timewheel's relays pass schemas on.",
    do="Send to the plan's topics with the schema.",
)
SCHEMAS_FROZEN = Kind(
    slug="schemas-frozen",
    severity=Severity.WARNING,
    why="A schema that the namespace does not know yet is refused there, and timers with it do not leave their topic.",
    do="Allow producers to register schemas, or upload them to all topics.",
)


def _places(seen: Seen) -> Iterator[Finding]:
    used = {topic.namespace for topic in seen.topics if topic.spec is not None}
    for name, policies in sorted(seen.namespaces.items()):
        if policies is None or name not in used:
            continue
        if len(policies.replication_clusters) > 1:
            clusters = ", ".join(policies.replication_clusters)
            yield Finding(
                kind=REPLICATED,
                subject=name,
                read=f"it is replicated: {clusters}",
                cure=f'write holding_namespace = "tenant/namespace", not replicated, into {seen.target}',
            )
        if policies.document.get("is_allow_auto_update_schema") is False:
            yield Finding(
                kind=SCHEMAS_FROZEN,
                subject=name,
                read=f"is_allow_auto_update_schema is false, set on the namespace {name}",
                cure=pulsar_admin("namespaces", "set-is-allow-auto-update-schema", name, "--enable"),
            )


def _enforced(seen: Seen) -> Iterator[Finding]:
    used = {topic.namespace for topic in seen.topics if topic.spec is not None}
    for name, policies in sorted(seen.namespaces.items()):
        if policies is not None and policies.schema_validation_enforced and name in used:
            yield Finding(
                kind=SCHEMAS_ENFORCED,
                subject=name,
                read=f"schema_validation_enforced, set on the namespace {name}",
                cure=pulsar_admin("namespaces", "set-schema-validation-enforce", name, "--disable"),
            )
    if is_on(seen.settings, "isSchemaValidationEnforced", default=False):
        yield Finding(
            kind=SCHEMAS_ENFORCED,
            subject="the broker",
            read="isSchemaValidationEnforced is true",
            cure=broker_command(seen, "isSchemaValidationEnforced", "false"),
        )


PLACES = (
    Check(kinds=(REPLICATED, SCHEMAS_FROZEN), inspect=_places, needs=frozenset({Source.NAMESPACES})),
    Check(kinds=(SCHEMAS_ENFORCED,), inspect=_enforced, needs=frozenset({Source.NAMESPACES, Source.SETTINGS})),
)
