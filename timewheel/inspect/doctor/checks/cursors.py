"""Checks of stored cursors, gaps and the broker's behaviour at the limit; and of delayed delivery and its tracker."""

from __future__ import annotations

from collections.abc import Iterator

from timewheel.broker.admin.policies import DELAYED_DELIVERY, PAUSE_ON_ACK_STATE
from timewheel.core.escapes import pulsar_admin, timewheel_command
from timewheel.core.plurals import counted
from timewheel.inspect.doctor.seen import Seen, SeenTopic, check
from timewheel.inspect.doctor.settings import all_in_force, broker_command, is_on
from timewheel.inspect.gaps import Level, SubscriptionGaps
from timewheel.inspect.gaps.gap_status import PLAN_HELPS, may_need_shadow, plan_command
from timewheel.inspect.reader import Source
from timewheel.provision.findings import Finding, error_kind, note_kind, warning_kind
from timewheel.provision.foreign_settings import (
    DELAY_TOO_LONG,
    DELAYS_OFF,
    TICK_DIFFERS,
    delayed_delivery_findings,
    number,
)
from timewheel.provision.shadow_commands import shadow_commands

CURES = (
    "See the cause of the gaps. Against delays: another plan (`timewheel plan check PLAN`), or a shadow for clients "
    "without timewheel."
)
# fmt: off
FORGETS_GAPS = error_kind(slug="forgets-acknowledgements", do=CURES,
    why="An unload now would deliver acknowledged messages again.")
MANY_GAPS = warning_kind(slug="many-gaps", do=CURES,
    why="Near the limit on gaps a little more traffic makes the next unload deliver acknowledged messages again.")
PAUSED = error_kind(slug="paused-at-the-limit",
    do="Acknowledge open messages, or switch dispatcherPauseOnAckStatePersistent off.",
    why="At the limit on gaps this broker delivers no more messages of the subscription, not even due messages.")
PAUSES = note_kind(slug="pauses-at-the-limit", do="Choose between late and repeated timers; watch the gaps.",
    why="At the limit on gaps this broker stops delivering instead of forgetting: messages are late, none is repeated.")
LOW_GAP_LIMIT = note_kind(slug="low-gap-limit", do="Nothing if the plan was made for this limit; else raise the limit.",
    why="A plan made for the default limit on gaps may make more gaps than this broker stores.")
CURSOR_TOO_LARGE = error_kind(slug="cursor-too-large", do="Let the broker write bitmaps, or lower the limit.",
    why="A cursor with as many gaps as the limit allows does not fit into one entry, and is then not written at all.")
CURSOR_IN_METADATA = warning_kind(slug="cursor-fills-metadata-store",
    do="Lower the metadata store's limit: larger cursors go into a ledger.",
    why="Cursors of that many gaps are larger than the 1 MB that a metadata store such as ZooKeeper takes.")
SMALL_LEDGERS = warning_kind(slug="small-ledgers", do="Let ledgers hold more entries than the limit on gaps.",
    why="A bitmap covers whole ledgers, until their acknowledged entries reach the limit: with small ledgers, soon.")
# fmt: on
USUAL_LIMIT = 10_000
METADATA_VALUE_BYTES = 1024 * 1024  # ZooKeeper's ``jute.maxbuffer``


@check(FORGETS_GAPS, MANY_GAPS, PAUSED, needs={Source.TOPICS}, of_any_topic=True)
def _gaps(seen: Seen) -> Iterator[Finding]:
    pausing = {topic.name: cure for topic in seen.topics if (cure := _pausing(seen, topic)) is not None}
    for gaps in seen.gaps:
        if gaps.level is Level.OK:
            continue
        explain = timewheel_command("gaps", "explain", gaps.topic, "--subscription", gaps.subscription)
        if gaps.topic in pausing and gaps.worst.gap_count >= gaps.worst.gap_limit:
            yield PAUSED.at(gaps.topic, read=_read(gaps), cure=pausing[gaps.topic])
        else:
            kind = FORGETS_GAPS if gaps.again_entries else MANY_GAPS
            cure = "; if delays are the cause: ".join((explain, *_aid(seen, gaps)))
            yield kind.at(gaps.topic, read=_read(gaps), cure=cure)


def _aid(seen: Seen, gaps: SubscriptionGaps) -> tuple[str, ...]:
    """Return the command against gaps of delays: another plan where timewheel's clients have one, elsewhere a shadow;
    empty if delays cause none, or the topic has a shadow.
    """
    if not may_need_shadow(gaps) or gaps.topic in seen.shadowed:
        return ()
    if seen.plan is None:
        return shadow_commands(gaps.topic)[:1]
    return () if seen.plan.intake else (f"{PLAN_HELPS}: {plan_command(seen.target)}",)


def _read(gaps: SubscriptionGaps) -> str:
    worst = gaps.worst
    read = f"{gaps.subscription} has {worst.gap_count:,} gaps in its fullest partition, of {worst.gap_limit:,}"
    return read + (
        f"; {counted(gaps.again_entries, 'entry', 'entries')} would come again" if gaps.again_entries else ""
    )


@check(PAUSES, needs={Source.POLICIES, Source.NAMESPACES}, of_any_topic=True)
def _pauses(seen: Seen) -> Iterator[Finding]:
    for topic in seen.topics:
        cure = _pausing(seen, topic) if topic.by_broker and topic.exists else None
        if cure is not None:
            read = "dispatcherPauseOnAckStatePersistent is on"
            yield PAUSES.at(topic.name, read=read, cure=cure)


def _pausing(seen: Seen, topic: SeenTopic) -> str | None:
    """Return the command that disables pausing where it is enabled; None if it is disabled or unknown."""
    command = "remove-dispatcher-pause-on-ack-state-persistent"
    policies = seen.namespaces.get(topic.namespace)
    of_namespace = None if policies is None else policies.get(PAUSE_ON_ACK_STATE)
    if of_namespace and topic.pauses is not False:
        return pulsar_admin("namespaces", command, topic.namespace)
    if topic.pauses:
        return pulsar_admin("topicPolicies", command, topic.name)
    # The value in force that the broker reports for a topic leaves the broker's setting out (4.0.7, 4.2.4).
    if of_namespace is None and is_on(seen.settings, "dispatcherPauseOnAckStatePersistentEnabled", default=False):
        return broker_command(seen, "dispatcherPauseOnAckStatePersistentEnabled", "false")
    return None


@check(LOW_GAP_LIMIT, CURSOR_TOO_LARGE, CURSOR_IN_METADATA, SMALL_LEDGERS, needs={Source.SETTINGS}, of_any_topic=True)
def _formats(seen: Seen) -> Iterator[Finding]:
    profile = seen.profile
    if seen.settings is None or not any(topic.by_broker for topic in seen.topics):
        return
    limit = profile.gap_limit_ranges
    name = "managedLedgerMaxUnackedRangesToPersist"
    if limit < USUAL_LIMIT:
        cure = broker_command(seen, name, USUAL_LIMIT)
        read = f"{name} is {limit:,}, by default it is {USUAL_LIMIT:,}"
        if seen.gaps:
            most = max(gaps.worst.gap_count for gaps in seen.gaps)
            read += f"; the fullest partition that was looked at has {counted(most, 'gap')}"
        yield LOW_GAP_LIMIT.at("the broker", read=read, cure=cure)
    in_parts = is_on(seen.settings, "persistentUnackedRangesWithMultipleEntriesEnabled", default=False)
    needed = limit * profile.bytes_per_range
    if profile.ack_format == "ranges" and needed > profile.frame_limit_bytes and not in_parts:
        read = f"{name} is {limit:,}: about {needed:,} bytes as ranges, of {profile.frame_limit_bytes:,}"
        cure = broker_command(seen, "managedLedgerPersistIndividualAckAsLongArray", "true")
        yield CURSOR_TOO_LARGE.at("the broker", read=read, cure=cure)
    yield from _metadata_store(seen)
    if profile.ack_format == "bitmap" and profile.ledger_max_entries < min(limit, USUAL_LIMIT):
        yield SMALL_LEDGERS.at(
            "the broker",
            read=f"managedLedgerMaxEntriesPerLedger is {profile.ledger_max_entries:,}, {name} is {limit:,}, "
            "written as a bitmap",
            cure=broker_command(seen, "managedLedgerMaxEntriesPerLedger", 50_000),
        )


def _metadata_store(seen: Seen) -> Iterator[Finding]:
    name = "managedLedgerMaxUnackedRangesToPersistInMetadataStore"
    limit = number(seen.settings, name, 1_000)
    is_packed = (seen.settings or {}).get("managedCursorInfoCompressionType", "NONE") != "NONE"
    if limit * seen.profile.bytes_per_range > METADATA_VALUE_BYTES and not is_packed:
        read = f"{name} is {limit:,}, and managedCursorInfoCompressionType is NONE"
        cure = broker_command(seen, name, 1_000)
        yield CURSOR_IN_METADATA.at("the broker", read=read, cure=cure)


CURSORS = (_gaps, _pauses, _formats)


# fmt: off
EARLY_FOR_OTHERS = note_kind(slug="early-for-others",
    do="Nothing, or make the broker strict, or read with timewheel's consumers.",
    why="The broker may deliver up to a tick early, and only timewheel's consumers hold early timers back.")
STARVED = warning_kind(slug="due-topic-starves", do="Switch the detection of fixed delays off.",
    why="With this many delayed messages in order the broker may stop reading, and messages due now wait behind them.")
STARVES_OTHERS = note_kind(slug="detection-of-fixed-delays", do="Switch the detection of fixed delays off.",
    why="With this many delayed messages in order the broker stops reading, and this plan never mixes their order.")
TRACKER_MERGES = warning_kind(slug="tracker-merges", do="Switch the merging of buckets off.",
    why="While it merges buckets, this tracker can count messages twice, and then leaves as many of the last ones due.")
TRACKER_STANDS_STILL = error_kind(slug="tracker-stands-still",
    do="Unload the topic: the tracker counts anew. Then switch the merging of buckets off.",
    why="The tracker counts fewer delayed messages than it holds, and delivers none while its count is 0 or less.")
# fmt: on
IN_BUCKETS = "BucketDelayedDeliveryTrackerFactory"
MAX_BUCKETS = "delayedDeliveryMaxNumBuckets"
NEAR_SHARE = 0.5  # fraction of the lookahead: twice as many messages may wait before the doctor runs again


@check(DELAYS_OFF, DELAY_TOO_LONG, TICK_DIFFERS, needs={Source.POLICIES, Source.NAMESPACES}, of_any_topic=True)
def _delays(seen: Seen) -> Iterator[Finding]:
    for topic, found in all_in_force(seen, DELAYED_DELIVERY):
        if not topic.by_broker:
            continue
        tick_ms, origin = None if seen.plan is None else seen.plan.tick_ms, f", {found.where}"
        yield from delayed_delivery_findings(
            topic.name, found.value, spec=topic.spec, tick_ms=tick_ms, target=seen.target, origin=origin
        )


def _merged_buckets(seen: Seen) -> int:
    """Return the number of buckets above which the tracker merges them; 0: never (broker-facts: merged-buckets)."""
    kind = (seen.settings or {}).get("delayedDeliveryTrackerFactoryClassName", "").rpartition(".")[2]
    return max(number(seen.settings, MAX_BUCKETS, -1), 0) if kind == IN_BUCKETS else 0


@check(TRACKER_MERGES, TRACKER_STANDS_STILL, needs={Source.SETTINGS, Source.TOPICS}, of_any_topic=True)
def _merges(seen: Seen) -> Iterator[Finding]:
    topics = [topic for topic in seen.topics if topic.by_broker]
    merged = _merged_buckets(seen)
    if merged and topics:
        read = f"delayedDeliveryTrackerFactoryClassName is {IN_BUCKETS}, and {MAX_BUCKETS} is {merged}"
        yield TRACKER_MERGES.at("the broker", read=read, cure=broker_command(seen, MAX_BUCKETS, -1))
    for topic in topics:
        for part, name, one in topic.subscriptions():
            waiting = one.backlog - one.unacked
            if one.delayed < 0 or (merged and not one.delayed and waiting > 0 and one.is_consumed):
                read = f"{name} counts {one.delayed} delayed messages, while {counted(waiting, 'message')} wait"
                cure = pulsar_admin("topics", "unload", part.name)
                yield TRACKER_STANDS_STILL.at(part.name, read=read, cure=cure)


@check(EARLY_FOR_OTHERS, needs={Source.SETTINGS}, of_any_topic=True)
def _early(seen: Seen) -> Iterator[Finding]:
    if seen.plan is None or seen.plan.readers != "any":
        return
    if not is_on(seen.settings, "isDelayedDeliveryDeliverAtTimeStrict", default=seen.settings is None):
        read = 'isDelayedDeliveryDeliverAtTimeStrict is false; the plan has readers = "any"'
        cure = broker_command(seen, "isDelayedDeliveryDeliverAtTimeStrict", "true")
        yield EARLY_FOR_OTHERS.at("the broker", read=read, cure=cure)


@check(STARVED, STARVES_OTHERS, needs={Source.SETTINGS, Source.TOPICS}, of_any_topic=True)
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
        yield STARVED.at(topic.name, read=f"{read}; {name} is {lookahead:,}", cure=cure)
    if seen.plan is not None and not mixed and not near:
        yield STARVES_OTHERS.at("the broker", read=f"{name} is {lookahead:,}", cure=cure)


def _fills(topic: SeenTopic) -> bool:
    """Return whether the topic mixes delays; a tier held by the broker has equal delays, in order on purpose."""
    return topic.by_broker and (topic.spec is None or topic.spec.is_consumed)


DELAYS = (_delays, _merges, _early, _starved)
