"""The provisioning record of a due topic, with which later plans are compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from timewheel.broker.admin.client import AdminClient
from timewheel.core.errors import AdminError, AdminMissing, PlanError, TopologyError
from timewheel.core.escapes import timewheel_command
from timewheel.core.names import PROVISIONED_PROPERTY, Names, namespace_of
from timewheel.core.plan import MAX_FORMER, Plan
from timewheel.core.routing import ROUTING_CODE, Router
from timewheel.provision.findings import Finding, warning_kind

NO_PROPERTIES = 405  # Method Not Allowed: the answer of brokers older than 2.11 to topic properties


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisioned:
    """Provisioning record in the properties of a due topic."""

    subscriptions: frozenset[str] = frozenset()  # subscriptions of the plan that was provisioned last
    namespaces: frozenset[str] = frozenset()  # holding namespaces that contain topics of this or an earlier plan
    revision: int = 0  # revision of the plan that was provisioned last; 0: unknown, by an earlier version
    routing: str = ""  # routing of that plan, see `routing_of`; empty: unknown, by an earlier version

    @classmethod
    def read(cls, properties: Mapping[str, str]) -> Self | None:
        """Read the record from a topic's properties; None if it is missing or unreadable."""
        try:
            stored = json.loads(properties.get(PROVISIONED_PROPERTY, ""))
            return cls(
                subscriptions=frozenset(stored["subscriptions"]),
                namespaces=frozenset(stored["namespaces"]),
                revision=int(stored.get("revision", 0)),
                routing=str(stored.get("routing", "")),
            )
        except (ValueError, KeyError, TypeError):
            return None

    def properties(self) -> dict[str, str]:
        """Return the record as topic properties."""
        stored = {
            "subscriptions": sorted(self.subscriptions),
            "namespaces": sorted(self.namespaces),
            "revision": self.revision,
            "routing": self.routing,
        }
        return {PROVISIONED_PROPERTY: json.dumps(stored, ensure_ascii=False)}


def provisioned(admin: AdminClient, topic: str) -> Provisioned | None:
    """Read the record of a topic; None if it is missing, or the broker is older than 2.11 and has no topic properties.

    Raises:
        AdminError: A call failed.
    """
    try:
        return Provisioned.read(admin.topics.properties(topic))
    except AdminMissing:
        return None


def note(admin: AdminClient, topic: str, provided: Provisioned) -> None:
    """Write the record; does nothing if the broker stores no topic properties. AdminError: the broker refused."""
    try:
        admin.topics.update_properties(topic, provided.properties())
    except AdminError as error:
        if not isinstance(error, AdminMissing) and error.status != NO_PROPERTIES:
            raise


def provided(plan: Plan, noted: Provisioned | None, listed: Sequence[str]) -> Provisioned:
    """Return the record for a provisioned plan; a namespace without topics of the plan is dropped."""
    due = namespace_of(plan.due_topic)
    prefixes = tuple(f"{prefix}." for prefix in Names(plan).own_prefixes)
    in_use = {namespace_of(name) for name in listed if name.startswith(prefixes)}
    before = in_use & noted.namespaces if noted is not None else set()
    return Provisioned(
        subscriptions=frozenset(plan.subscriptions),
        namespaces=frozenset(before | {Names(plan).holding_namespace}) - {due},
        revision=plan.revision,
        routing=routing_of(plan),
    )


SAME_REVISION = warning_kind(
    slug="same-revision",
    why="Relays with different plans send timers different ways, and each may store a timer.",
    do="Use one file for all processes.",
)


def routing_of(plan: Plan) -> str:
    """Return the plan's routing as it is recorded: the version of the code, and the fingerprint by that version."""
    return f"{ROUTING_CODE}.{Router(plan).fingerprint}"


def same_revision(plan: Plan, topic: str, noted: Provisioned | None, target: str = "PLAN") -> tuple[Finding, ...]:
    """Find that a due topic was provisioned last by another plan of the same revision: nothing tells the two apart.

    Records by another version of the routing code are not compared: an upgrade changes the fingerprint of every plan.
    """
    own = routing_of(plan)
    if noted is None or noted.revision != plan.revision or noted.routing == own:
        return ()
    if noted.routing.partition(".")[0] != own.partition(".")[0]:
        return ()
    read = (
        f"was provisioned by a plan of revision {noted.revision} with routing {noted.routing}, and this file has the "
        f"same revision and routing {own}: nothing says which is the newer"
    )
    cure = (
        f"use one file for all processes; if this is the newer, write revision = {plan.revision + 1} in it and run "
        f"{timewheel_command('topics', 'ensure', target)}"
    )
    return (SAME_REVISION.at(topic, read=read, cure=cure),)


def refuse_older(plan: Plan, topic: str, noted: Provisioned | None, target: str = "PLAN") -> None:
    """Refuse a plan that is older than the plan by which a due topic was provisioned last: its topics may be removed,
    and timers sent into them would have to be drained again.

    Raises:
        TopologyError: The plan is older.
    """
    if noted is not None and plan.revision < noted.revision:
        raise TopologyError(
            topic,
            f"was provisioned by revision {noted.revision} of its plan, and this file has revision {plan.revision}: it "
            "is the older of two",
            f"use the file with revision = {noted.revision} for all processes, and remove this one; or, to go back to "
            f"this plan, write revision = {noted.revision + 1} in it and run "
            f"{timewheel_command('topics', 'ensure', target)}",
        )


def outdated(plan: Plan, noted: Provisioned | None) -> str:
    """Describe how a plan differs from that of the last provisioning, with the remedy; empty: as it, or later."""
    try:
        refuse_older(plan, plan.due_topic, noted)
    except TopologyError as error:
        return f"{error.problem}; {error.remedy}"
    return "".join(f"{one.read}; {one.cure}" for one in same_revision(plan, plan.due_topic, noted))


def with_noted_namespaces(plan: Plan, noted: Provisioned | None) -> Plan:
    """Return the plan with those former namespaces added that only the record of its due topic names.

    For inspection only: relays use the plan unchanged.
    """
    unnamed = sorted((frozenset() if noted is None else noted.namespaces) - {*Names(plan).namespaces})
    try:
        return replace(plan, former_namespaces=(*plan.former_namespaces, *unnamed)[:MAX_FORMER])
    except PlanError:
        return plan  # not a record of timewheel
