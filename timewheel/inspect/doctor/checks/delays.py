"""Checks of delayed delivery: enabled or not, tick, bounds, and the effects of the broker's delay tracker."""

from __future__ import annotations

from collections.abc import Iterator

from timewheel.broker.admin.policies import DELAYED_DELIVERY, DelayedDelivery
from timewheel.core.durations import SECOND_MS, format_duration, spelled
from timewheel.core.escapes import timewheel_command
from timewheel.inspect.doctor.check import Check
from timewheel.inspect.doctor.finding import Finding, Kind, Severity
from timewheel.inspect.doctor.seen import Seen, SeenTopic, Source
from timewheel.inspect.doctor.settings import broker_command, in_force, is_on, number
from timewheel.provision.foreign_settings import set_delayed_delivery
from timewheel.provision.provision_steps import SetPolicy

DELAYS_OFF = Kind(
    slug="delays-off",
    severity=Severity.ERROR,
    why="With delayed delivery off the broker delivers every timer at once.",
    do="Switch delayed delivery on for the topic.",
)
DELAY_TOO_LONG = Kind(
    slug="delay-too-long",
    severity=Severity.ERROR,
    why="The broker refuses a message that is delayed for longer than its bound, and timers wait here for longer.",
    do="Raise or remove the bound for the topic.",
)
TICK_DIFFERS = Kind(
    slug="tick-differs",
    severity=Severity.WARNING,
    why="The plan's lead is computed from its tick: now it is too short, so timers are late, or needlessly long.",
    do="Write the broker's tick into the plan.",
)
EARLY_FOR_OTHERS = Kind(
    slug="early-for-others",
    severity=Severity.INFO,
    why="The broker may deliver up to a tick early, and only timewheel's consumers hold early timers back.",
    do="Nothing, or make the broker strict, or read with timewheel's consumers.",
)
STARVED = Kind(
    slug="due-topic-starves",
    severity=Severity.WARNING,
    why="With this many delayed messages in order the broker may stop reading, and messages due now wait behind them.",
    do="Switch the detection of fixed delays off.",
)
STARVES_OTHERS = Kind(
    slug="detection-of-fixed-delays",
    severity=Severity.INFO,
    why="With this many delayed messages in order the broker stops reading, and this plan never mixes their order.",
    do="Switch the detection of fixed delays off.",
)
TRACKER_UNTRIED = Kind(
    slug="tracker-untried",
    severity=Severity.INFO,
    why="timewheel's figures of memory, and of silence after an unload, were measured with the tracker in memory.",
    do="Measure with this tracker first.",
)
IN_MEMORY = "InMemoryDelayedDeliveryTrackerFactory"
NEAR_SHARE = 0.5
"""Fraction of the lookahead: twice as many messages may wait before the doctor runs again."""


def _delays(seen: Seen) -> Iterator[Finding]:
    for topic in seen.topics:
        found = in_force(seen, topic, DELAYED_DELIVERY) if topic.exists and topic.by_broker else None
        if found is None:
            continue
        if not found.value.active:
            read = f"delayed delivery is off, {found.where}"
            yield _repaired(DELAYS_OFF, seen, topic, found.value, read)
            continue
        stay_ms = 0 if topic.spec is None else topic.spec.longest_stay_ms
        if 0 < found.value.max_delay_ms < stay_ms:
            read = f"the longest delay is {format_duration(found.value.max_delay_ms)}, {found.where}"
            read += f"; timers wait {spelled(stay_ms)}"
            yield _repaired(DELAY_TOO_LONG, seen, topic, found.value, read)
        if seen.plan is not None and found.value.tick_ms != seen.plan.tick_ms:
            yield Finding(
                kind=TICK_DIFFERS,
                subject=topic.name,
                read=f"the tick is {found.value.tick_ms} ms, {found.where}; the plan says {seen.plan.tick_ms} ms",
                cure=f'write tick = "{format_duration(found.value.tick_ms)}" into {seen.target}',
            )


def _repaired(kind: Kind, seen: Seen, topic: SeenTopic, found: DelayedDelivery, read: str) -> Finding:
    value = DelayedDelivery(active=True, tick_ms=found.tick_ms, max_delay_ms=0)
    return Finding(
        kind=kind,
        subject=topic.name,
        read=read,
        cure=_command(seen, topic, found),
        fix=None if topic.spec is None else SetPolicy(topic=topic.name, policy=DELAYED_DELIVERY, value=value),
    )


def _command(seen: Seen, topic: SeenTopic, found: DelayedDelivery) -> str:
    if found.tick_ms % SECOND_MS and topic.spec is not None:
        # Only whole seconds fit pulsar-admin, so its command would change the tick.
        return timewheel_command("doctor", seen.target, "--fix")
    return set_delayed_delivery(topic.name, found)


def _tracker(seen: Seen) -> Iterator[Finding]:
    kind = (seen.settings or {}).get("delayedDeliveryTrackerFactoryClassName", IN_MEMORY).rpartition(".")[2]
    if kind != IN_MEMORY and any(topic.by_broker for topic in seen.topics):
        yield Finding(
            kind=TRACKER_UNTRIED,
            subject="the broker",
            read=f"delayedDeliveryTrackerFactoryClassName is {kind}",
            cure=broker_command(
                seen, "delayedDeliveryTrackerFactoryClassName", f"org.apache.pulsar.broker.delayed.{IN_MEMORY}"
            ),
        )
    if seen.plan is None or seen.plan.readers != "any":
        return
    if not is_on(seen.settings, "isDelayedDeliveryDeliverAtTimeStrict", default=seen.settings is None):
        yield Finding(
            kind=EARLY_FOR_OTHERS,
            subject="the broker",
            read='isDelayedDeliveryDeliverAtTimeStrict is false; the plan has readers = "any"',
            cure=broker_command(seen, "isDelayedDeliveryDeliverAtTimeStrict", "true"),
        )


def _starved(seen: Seen) -> Iterator[Finding]:
    lookahead = number(seen.settings, "delayedDeliveryFixedDelayDetectionLookahead", 0)
    if not lookahead:
        return
    # If all readers are timewheel's, its producers and relays mix the order on purpose, but other clients may send too
    # (broker-facts: starved-due-topic).
    mixed = seen.plan is not None and seen.plan.readers == "timewheel"
    name = "delayedDeliveryFixedDelayDetectionLookahead"
    cure = broker_command(seen, name, 0)
    topics = [topic for topic in seen.topics if _fills(topic)]
    if mixed:
        near = [topic for topic in topics if topic.stands_still(lookahead)]
    else:
        near = [topic for topic in topics if topic.delayed >= lookahead * NEAR_SHARE]
    for topic in near:
        read = f"{topic.delayed:,} delayed messages in a partition{', and others are not delivered' * mixed}"
        yield Finding(kind=STARVED, subject=topic.name, read=f"{read}; {name} is {lookahead:,}", cure=cure)
    if seen.plan is not None and not mixed and not near:
        yield Finding(kind=STARVES_OTHERS, subject="the broker", read=f"{name} is {lookahead:,}", cure=cure)


def _fills(topic: SeenTopic) -> bool:
    """Return whether the topic mixes delays; a tier held by the broker has equal delays, in order on purpose."""
    return topic.by_broker and (topic.spec is None or topic.spec.is_consumed)


DELAYS = (
    Check(
        kinds=(DELAYS_OFF, DELAY_TOO_LONG, TICK_DIFFERS),
        inspect=_delays,
        needs=frozenset({Source.POLICIES, Source.NAMESPACES}),
        of_any_topic=True,
    ),
    Check(
        kinds=(TRACKER_UNTRIED, EARLY_FOR_OTHERS),
        inspect=_tracker,
        needs=frozenset({Source.SETTINGS}),
        of_any_topic=True,
    ),
    Check(
        kinds=(STARVED, STARVES_OTHERS),
        inspect=_starved,
        needs=frozenset({Source.SETTINGS, Source.TOPICS}),
        of_any_topic=True,
    ),
)
