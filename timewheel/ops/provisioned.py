"""What provisioning notes beside a due topic: what it has made there, so that a later plan is held against it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from timewheel.admin.client import AdminClient
from timewheel.core.errors import AdminError, AdminMissing, PlanError
from timewheel.core.names import PROVISIONED_PROPERTY, Names, namespace_of
from timewheel.core.plan import MAX_FORMER, Plan

__all__ = ["Provisioned", "note", "provided", "provisioned", "with_noted_namespaces"]

NO_PROPERTIES = 405
"""Method Not Allowed, as brokers older than 2.11 answer to notes of topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisioned:
    """A note beside a due topic.

    Args:
        subscriptions: Of the plan by which the topic was provisioned last.
        namespaces: Holding namespaces in which there are topics of this or an earlier plan.
    """

    subscriptions: frozenset[str] = frozenset()
    namespaces: frozenset[str] = frozenset()

    @classmethod
    def read(cls, properties: Mapping[str, str]) -> Self | None:
        """From a topic's properties; None: there is no note, or none that can be read."""
        try:
            stored = json.loads(properties.get(PROVISIONED_PROPERTY, ""))
            return cls(subscriptions=frozenset(stored["subscriptions"]), namespaces=frozenset(stored["namespaces"]))
        except (ValueError, KeyError, TypeError):
            return None

    def properties(self) -> dict[str, str]:
        """As it is stored."""
        stored = {"subscriptions": sorted(self.subscriptions), "namespaces": sorted(self.namespaces)}
        return {PROVISIONED_PROPERTY: json.dumps(stored, ensure_ascii=False)}


def provisioned(admin: AdminClient, topic: str) -> Provisioned | None:
    """The note beside a topic; None: there is none, or the broker is older than 2.11 and keeps none.

    Raises:
        AdminError: The broker did not tell.
    """
    try:
        return Provisioned.read(admin.topics.properties(topic))
    except AdminMissing:
        return None


def note(admin: AdminClient, topic: str, provided: Provisioned) -> None:
    """Write it; nothing where the broker keeps none.

    Raises:
        AdminError: It was refused.
    """
    try:
        admin.topics.update_properties(topic, provided.properties())
    except AdminError as error:
        if not isinstance(error, AdminMissing) and error.status != NO_PROPERTIES:
            raise


def provided(plan: Plan, noted: Provisioned | None, listed: Sequence[str]) -> Provisioned:
    """What is there once a plan is provisioned; a namespace is forgotten when no topic of the plan's is left in it.

    Args:
        plan: With all former namespaces that are known.
        noted: Before.
        listed: All topics of its namespaces.
    """
    due = namespace_of(plan.due_topic)
    prefixes = tuple(f"{prefix}." for prefix in Names(plan).own_prefixes)
    in_use = {namespace_of(name) for name in listed if name.startswith(prefixes)}
    before = in_use & noted.namespaces if noted is not None else set()
    return Provisioned(
        subscriptions=frozenset(plan.subscriptions),
        namespaces=frozenset(before | {Names(plan).holding_namespace}) - {due},
    )


def with_noted_namespaces(plan: Plan, noted: Provisioned | None) -> Plan:
    """The plan, with those former namespaces that are noted beside its due topic and that it does not name.

    It is for looks alone: relays go by the plan as it is.
    """
    unnamed = sorted((frozenset() if noted is None else noted.namespaces) - {*Names(plan).namespaces})
    try:
        return replace(plan, former_namespaces=(*plan.former_namespaces, *unnamed)[:MAX_FORMER])
    except PlanError:
        return plan  # somebody else wrote the note
