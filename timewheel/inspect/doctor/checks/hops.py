"""Checks of deduplication at the destinations of hops, and of the broker's memory for producer names."""

from __future__ import annotations

from collections.abc import Iterator

from timewheel.broker.admin.policies import DEDUPLICATION
from timewheel.core.escapes import pulsar_admin
from timewheel.core.topology import TopicSpec
from timewheel.inspect.doctor.check import Check
from timewheel.inspect.doctor.finding import Finding, Kind, Severity
from timewheel.inspect.doctor.seen import Seen, SeenTopic, Source
from timewheel.inspect.doctor.settings import broker_command, in_force, number
from timewheel.provision.foreign_settings import producer_name_findings
from timewheel.provision.provision_steps import SetPolicy

NO_DEDUPLICATION = Kind(
    slug="no-deduplication",
    severity=Severity.WARNING,
    why="A killed relay sends its unacknowledged hops again, and here they are stored twice.",
    do="Switch deduplication on for the topic.",
)
NAMES_FULL = Kind(
    slug="producer-names-full",
    severity=Severity.WARNING,
    why="Beyond the number of producer names that it keeps the broker forgets some, and may store a hop twice.",
    do="Find the client that keeps opening producers; let the broker remember more.",
)
FEW_NAMES = Kind(
    slug="few-producer-names",
    severity=Severity.WARNING,
    why="The broker keeps fewer producer names than this plan opens for a partition, and may store a hop twice.",
    do="Let the broker remember more names.",
)
NAMES_FORGOTTEN_SOON = Kind(
    slug="producer-names-forgotten-soon",
    severity=Severity.WARNING,
    why="A relay that is down for longer than that may store a hop twice when it comes back.",
    do="Let the broker remember names for some hours.",
)
USUAL_NAMES = 10_000
USUAL_MEMORY_MIN = 360
SHORT_MEMORY_MIN = 60
"""Shorter than an outage that needs an operator."""
SDK_PRODUCERS = 100
"""Producer names of sending processes, in addition to those of relays."""


def _deduplication(seen: Seen) -> Iterator[Finding]:
    for topic in seen.topics:
        if topic.spec is None or not topic.spec.deduplication or not topic.exists:
            continue
        found = in_force(seen, topic, DEDUPLICATION)
        off = [part.name for part in topic.parts if part.stats.deduplication not in {"Enabled", ""}]
        if (found is None or found.value) and not off:
            continue
        where = "" if found is None else f", {found.where}"
        told = f"it is not in force on {off[0]}" if found is None or found.value else "it is off"
        yield Finding(
            kind=NO_DEDUPLICATION,
            subject=topic.name,
            read=f"deduplication: {told}{where}",
            cure=pulsar_admin("topicPolicies", "set-deduplication", topic.name, "--enable"),
            fix=SetPolicy(topic=topic.name, policy=DEDUPLICATION, value=True),
        )


def _names(seen: Seen) -> Iterator[Finding]:
    for topic in seen.topics:
        known = [part.producer_names for part in topic.parts if part.producer_names is not None]
        if topic.spec is None or not known:
            continue
        for found in producer_name_findings(topic.spec, max(known), seen.settings):
            yield Finding(kind=NAMES_FULL, subject=found.where, read=found.problem, cure=found.remedy)


def _limits(seen: Seen) -> Iterator[Finding]:
    if not any(_takes_hops(topic.spec) for topic in seen.topics):
        return
    name = "brokerDeduplicationMaxNumberOfProducers"
    names = number(seen.settings, name, USUAL_NAMES)
    # Each holding topic has two producer names per destination partition: for single hops, and for groups.
    needed = 2 * sum(_holds(topic) for topic in seen.topics) + SDK_PRODUCERS
    if names < needed:
        read = f"{name} is {names:,}; {needed:,} or more may come to a partition"
        cure = broker_command(seen, name, USUAL_NAMES)
        yield Finding(kind=FEW_NAMES, subject="the broker", read=read, cure=cure)
    name = "brokerDeduplicationProducerInactivityTimeoutMinutes"
    memory_min = number(seen.settings, name, USUAL_MEMORY_MIN)
    if memory_min < SHORT_MEMORY_MIN:
        read = f"{name} is {memory_min}"
        cure = broker_command(seen, name, USUAL_MEMORY_MIN)
        yield Finding(kind=NAMES_FORGOTTEN_SOON, subject="the broker", read=read, cure=cure)


def _takes_hops(spec: TopicSpec | None) -> bool:
    return spec is not None and spec.deduplication


def _holds(topic: SeenTopic) -> bool:
    return topic.step is not None


HOPS = (
    Check(
        kinds=(NO_DEDUPLICATION,),
        inspect=_deduplication,
        needs=frozenset({Source.POLICIES, Source.NAMESPACES, Source.TOPICS}),
    ),
    Check(kinds=(NAMES_FULL,), inspect=_names, needs=frozenset({Source.TOPICS, Source.SETTINGS})),
    Check(kinds=(FEW_NAMES, NAMES_FORGOTTEN_SOON), inspect=_limits, needs=frozenset({Source.SETTINGS})),
)
