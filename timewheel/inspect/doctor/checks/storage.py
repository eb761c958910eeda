"""Checks of storage: copies of each entry, ledgers, message size, backlog quotas, expiry, and data kept for ever."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from timewheel.broker.admin.policies import (
    AGE_QUOTA,
    INACTIVE_TOPIC,
    KEEP_INACTIVE,
    MAX_MESSAGE_BYTES,
    MESSAGE_TTL_S,
    NO_QUOTA,
    PERSISTENCE,
    RETENTION,
    SIZE_QUOTA,
    BacklogQuota,
    Persistence,
    Policy,
    Retention,
)
from timewheel.core.durations import DAY_MS, MINUTE_MS, SECOND_MS, format_duration, spelled
from timewheel.core.escapes import pulsar_admin
from timewheel.core.plurals import counted
from timewheel.inspect.doctor.seen import Seen, SeenTopic, check
from timewheel.inspect.doctor.settings import (
    InForce,
    all_in_force,
    broker_command,
    in_force,
    is_on,
)
from timewheel.inspect.reader import Source
from timewheel.provision.findings import Finding, error_kind, note_kind, warning_kind
from timewheel.provision.foreign_settings import SUBSCRIPTIONS_EXPIRE, expiry_findings, number
from timewheel.provision.provision_steps import SetPolicy

# fmt: off
ONE_COPY = error_kind(slug="one-copy", do="Write two copies or more.",
    why="Each timer lies on one bookie only, for days: if that disk goes, the timers are gone.")
ONE_COPY_PERHAPS = warning_kind(slug="one-copy-perhaps", do="If there are more bookies, write two copies or more.",
    why="Each timer lies on one bookie only, for days; whether there are more bookies could not be seen.")
ONE_BOOKIE = note_kind(slug="one-bookie", do="Run three bookies, and write two copies.",
    why="All timers lie on the disk of one bookie, as in a standalone Pulsar: if that goes, the timers are gone.")
ONE_CONFIRMATION = warning_kind(slug="one-confirmation", do="Wait for two copies or more.",
    why="A send is confirmed after one bookie has it: if that is lost before the copy is made, so are the last timers.")
TOO_FEW_BOOKIES = error_kind(slug="too-few-bookies", do="Restore the missing bookies, or require fewer.",
    why="A ledger needs more bookies than there are, so that nothing can be written once the present one is full.")
NO_SPARE_BOOKIE = warning_kind(slug="no-spare-bookie", do="Run one bookie more, or spread ledgers over fewer.",
    why="A ledger needs every bookie: while one of them is away, nothing can be written.")
SICK_BROKER = error_kind(slug="sick-broker", do="Bring bookies back, until more run than a ledger needs.",
    why="The broker cannot store a message of its own, as when too few bookies run: no timer is taken or moved.")
READS_STOPPED = error_kind(slug="reads-stopped", do="Unload the topic: the broker opens it anew.",
    why="After an outage of bookies the broker may read no more for a subscription: what is due is not delivered.")
NO_SPECULATIVE_READS = note_kind(slug="no-speculative-reads", do="Decide whether a second bookie is read.",
    why="The setting is off, so a read asks the next bookie only after the first has failed or timed out.")
STOPPED_READS_STAY = note_kind(slug="stopped-reads-stay", do="Let the broker look for reads that stopped.",
    why="The setting is off: what is read no more, as after an outage of bookies, waits for a consumer or an unload.")
SHORT_GUARD = note_kind(slug="short-guard", do="Make it longer than twice the brokers' session time-out and 30 s.",
    why="Timers held while a broker dies may miss the guard: they go by the late lane, and may be handled twice.")
ENDLESS_LEDGERS = warning_kind(slug="endless-ledgers", do="Let ledgers end after some hours.",
    why="Disk is freed by whole ledgers: a ledger that is open for longer than timers wait keeps all handled timers.")
MESSAGE_TOO_LARGE = error_kind(slug="message-size-differs", do="Give all topics of the plan the same maximum size.",
    why="A timer that another topic of the plan has taken may be refused by this one: it never leaves that topic.")
# fmt: on
USUAL_ROLLOVER_MIN = 240


@check(
    ONE_COPY,
    ONE_COPY_PERHAPS,
    ONE_BOOKIE,
    ONE_CONFIRMATION,
    TOO_FEW_BOOKIES,
    NO_SPARE_BOOKIE,
    needs={Source.NAMESPACES, Source.POLICIES, Source.BOOKIES},
    of_any_topic=True,
)
def _copies(seen: Seen) -> Iterator[Finding]:
    told: set[str] = set()
    for topic in seen.topics:
        found = in_force(seen, topic, PERSISTENCE) if topic.exists or topic.spec is not None else None
        if found is None or found.subject in told:
            continue
        told.add(found.subject)  # once where it is set, not for every topic that inherits it
        yield from _of(seen, topic, found)


def _of(seen: Seen, topic: SeenTopic, found: InForce[Persistence]) -> Iterator[Finding]:
    value = found.value
    read = f"ensemble {value.ensemble}, write quorum {value.write_quorum}, ack quorum {value.ack_quorum}, {found.where}"
    if seen.bookies is not None:
        read += f"; {counted(seen.bookies, 'bookie is', 'bookies are')} registered"
    if seen.bookies is not None and value.ensemble > seen.bookies:
        yield TOO_FEW_BOOKIES.at(found.subject, read=read, cure=_command(topic, found, _spread(value, seen.bookies)))
    elif seen.bookies == 1:
        spread = _spread(Persistence(ensemble=2, write_quorum=2, ack_quorum=2), 3)
        yield ONE_BOOKIE.at(found.subject, read=read, cure=f"run three bookies, then: {_command(topic, found, spread)}")
    elif value.write_quorum == 1 or value.ack_quorum == 1:
        least = 2
        more = Persistence(
            ensemble=max(value.ensemble, least), write_quorum=max(value.write_quorum, least), ack_quorum=least
        )
        copies = ONE_COPY if seen.bookies is not None else ONE_COPY_PERHAPS
        kind = copies if value.write_quorum == 1 else ONE_CONFIRMATION
        yield kind.at(found.subject, read=read, cure=_command(topic, found, more))
    elif seen.bookies is not None and value.ensemble == seen.bookies:
        spread = _spread(value, seen.bookies)
        cure = "run one bookie more" if spread == value else _command(topic, found, spread)
        yield NO_SPARE_BOOKIE.at(found.subject, read=read, cure=cure)


def _spread(value: Persistence, bookies: int) -> Persistence:
    """Return the quorums that leave a bookie to spare, but not fewer than two copies if there are two bookies."""
    ensemble = min(value.ensemble, max(bookies - 1, min(2, bookies)))
    write_quorum = min(value.write_quorum, ensemble)
    return replace(value, ensemble=ensemble, write_quorum=write_quorum, ack_quorum=min(value.ack_quorum, write_quorum))


def _command(topic: SeenTopic, found: InForce[Persistence], value: Persistence) -> str:
    place = ("topicPolicies", topic.name) if found.place == "topic" else ("namespaces", topic.namespace)
    quorums = ("-e", value.ensemble, "-w", value.write_quorum, "-a", value.ack_quorum)
    return pulsar_admin(place[0], "set-persistence", place[1], *quorums, "-r", f"{found.value.mark_deletes_per_s:g}")


@check(SICK_BROKER, needs={Source.BROKERS}, of_any_topic=True)
def _health(seen: Seen) -> Iterator[Finding]:
    if seen.ailment:
        read = f"it cannot store a message: {seen.ailment}"
        if seen.bookies is not None:
            read += f"; {counted(seen.bookies, 'bookie is', 'bookies are')} registered, with those that are away"
        yield SICK_BROKER.at("the broker", read=read, cure="bookkeeper shell listbookies -rw; start those that lack")


@check(READS_STOPPED, needs={Source.TOPICS}, of_any_topic=True)
def _stopped(seen: Seen) -> Iterator[Finding]:
    for part in (part for topic in seen.topics for part in topic.parts):
        for name, position in part.unread.items():
            waiting = counted(part.stats.subscriptions[name].backlog, "message waits", "messages wait")
            read = f"{name}: {waiting}, consumers ask for messages, and no read from {position.text} is under way"
            yield READS_STOPPED.at(part.name, read=read, cure=pulsar_admin("topics", "unload", part.name))


SPECULATIVE_READS = "bookkeeperClientSpeculativeReadTimeoutInMillis"
USUAL_SPECULATIVE_MS = 1_000


UNBLOCK_STUCK = "unblockStuckSubscriptionEnabled"
"""Each minute the broker reads on where messages and permits are, and no read is under way."""


@check(NO_SPECULATIVE_READS, STOPPED_READS_STAY, needs={Source.SETTINGS, Source.BOOKIES}, of_any_topic=True)
def _reads(seen: Seen) -> Iterator[Finding]:
    if (seen.bookies or 0) <= 1:
        return
    if number(seen.settings, SPECULATIVE_READS, USUAL_SPECULATIVE_MS) == 0:
        cure = broker_command(seen, SPECULATIVE_READS, USUAL_SPECULATIVE_MS)
        yield NO_SPECULATIVE_READS.at("the broker", read=f"{SPECULATIVE_READS} is 0: never", cure=cure)
    if not is_on(seen.settings, UNBLOCK_STUCK, default=True):
        cure = broker_command(seen, UNBLOCK_STUCK, "true")
        yield STOPPED_READS_STAY.at("the broker", read=f"{UNBLOCK_STUCK} is false", cure=cure)


SESSION_TIMEOUTS = ("zooKeeperSessionTimeoutMillis", "metadataStoreSessionTimeoutMillis")
"""Names of the time-out of a broker's session; the first is that of older brokers, and beats the other if above 0."""
USUAL_SESSION_MS = 30_000
BACK_OFF_MS = 30_000  # clients' back-off after an outage, beyond twice the outage's length


@check(SHORT_GUARD, needs={Source.SETTINGS, Source.BROKERS})
def _guard(seen: Seen) -> Iterator[Finding]:
    guard_ms = None if seen.plan is None else seen.plan.guard_ms
    if guard_ms is None or (seen.brokers or 0) < 2:
        return
    older, newer = (number(seen.settings, name, 0) for name in SESSION_TIMEOUTS)
    session_ms = older if older > 0 else newer if newer > 0 else USUAL_SESSION_MS
    least_ms = 2 * session_ms + BACK_OFF_MS
    if guard_ms <= least_ms:
        read = (
            f"the guard is {spelled(guard_ms)}, and a dead broker's topics are given away after {spelled(session_ms)}"
        )
        cure = f"plan with a guard above {spelled(least_ms)}"
        yield SHORT_GUARD.at(seen.plan.due_topic if seen.plan else "", read=read, cure=cure)


@check(ENDLESS_LEDGERS, needs={Source.SETTINGS})
def _ledgers(seen: Seen) -> Iterator[Finding]:
    name = "managedLedgerMaxLedgerRolloverTimeMinutes"
    age_min = number(seen.settings, name, USUAL_ROLLOVER_MIN)
    stays_ms = [
        topic.spec.longest_stay_ms for topic in seen.topics if topic.spec is not None and topic.step is not None
    ]
    if not stays_ms or 0 < age_min * MINUTE_MS <= max(DAY_MS, *stays_ms):
        return
    read = f"{name} is {age_min}" + ("" if age_min > 0 else ": never")
    read = f"{read}; timers wait up to {spelled(max(stays_ms))}"
    cure = broker_command(seen, name, USUAL_ROLLOVER_MIN)
    yield ENDLESS_LEDGERS.at("the broker", read=read, cure=cure)


@check(MESSAGE_TOO_LARGE, needs={Source.POLICIES})
def _sizes(seen: Seen) -> Iterator[Finding]:
    own = {topic.name: topic.state.policies.get(MAX_MESSAGE_BYTES) for topic in seen.topics if topic.exists}
    largest = number(seen.settings, "maxMessageSize", 5 * 1024 * 1024)
    most = max((largest if size is None else size for size in own.values()), default=largest)
    for name, size in own.items():
        if size is not None and size < most:
            read = f"maxMessageSize is {size:,} bytes, set on the topic; others of the plan take {most:,}"
            cure = pulsar_admin("topicPolicies", "remove-max-message-size", name)
            yield MESSAGE_TOO_LARGE.at(name, read=read, cure=cure)


STORAGE = (_copies, _health, _stopped, _reads, _guard, _ledgers, _sizes)


# fmt: off
QUOTA_DROPS = error_kind(slug="quota-drops", do="Take the quota away from the topic.",
    why="At this quota the broker silently drops the oldest messages of the backlog, also delayed messages.")
QUOTA_TOO_SHORT = error_kind(slug="quota-too-short", do="Take the quota away from the topic.",
    why="Timers wait here for longer than this quota allows, so producers and relays will be refused.")
QUOTA_BLOCKS = warning_kind(slug="quota-blocks", do="Take the quota away from the topic, or watch its backlog.",
    why="At this backlog producers and relays are refused, and timers stay in the topics before this one.")
# fmt: on
_TYPES = {SIZE_QUOTA: "destination_storage", AGE_QUOTA: "message_age"}


@check(QUOTA_DROPS, QUOTA_TOO_SHORT, QUOTA_BLOCKS, needs={Source.POLICIES, Source.NAMESPACES}, of_any_topic=True)
def _quotas(seen: Seen) -> Iterator[Finding]:
    if not is_on(seen.settings, "backlogQuotaCheckEnabled", default=True):
        return
    for topic in seen.topics:
        for policy in _TYPES if topic.exists and (topic.spec is not None or topic.delayed) else ():
            found = in_force(seen, topic, policy)
            limit = None if found is None else _limit(policy, found.value)
            if found is not None and limit is not None:
                yield _finding(seen, topic, policy, found, limit)


def _limit(policy: Policy[BacklogQuota], quota: BacklogQuota) -> str | None:
    """Return the limit in words; None without a limit."""
    if policy is SIZE_QUOTA:
        return f"{quota.limit_bytes:,} bytes" if quota.limit_bytes >= 0 else None
    return format_duration(quota.limit_s * SECOND_MS) if quota.limit_s > 0 else None


def _finding(
    seen: Seen, topic: SeenTopic, policy: Policy[BacklogQuota], found: InForce[BacklogQuota], limit: str
) -> Finding:
    read = f"backlog quota {_TYPES[policy]} is {limit} with {found.value.action}, {found.where}"
    stay_ms = None if topic.spec is None else topic.spec.longest_stay_ms
    is_short = policy is AGE_QUOTA and stay_ms is not None and found.value.limit_s * SECOND_MS <= stay_ms
    if is_short and stay_ms is not None:
        read += f"; timers wait here up to {spelled(stay_ms)}"
    kind = QUOTA_TOO_SHORT if is_short else QUOTA_BLOCKS
    ours = topic.spec is not None
    return Finding(
        kind=QUOTA_DROPS if found.value.action == "consumer_backlog_eviction" else kind,
        subject=topic.name,
        read=read,
        cure=seen.provisions if ours else _removal(seen, topic, policy, found),
        fix=SetPolicy(topic=topic.name, policy=policy, value=NO_QUOTA) if ours else None,
    )


def _removal(seen: Seen, topic: SeenTopic, policy: Policy[BacklogQuota], found: InForce[BacklogQuota]) -> str:
    if found.place == "topic":
        return pulsar_admin("topicPolicies", "remove-backlog-quota", topic.name, "-t", _TYPES[policy])
    if found.place == "namespace":
        return pulsar_admin("namespaces", "remove-backlog-quota", topic.namespace, "-t", _TYPES[policy])
    if policy is SIZE_QUOTA:
        return broker_command(seen, "backlogQuotaDefaultLimitBytes", -1)
    return broker_command(seen, "backlogQuotaDefaultLimitSecond", -1)


QUOTAS = (_quotas,)


# fmt: off
TTL_TOO_SHORT = error_kind(slug="ttl-too-short", do="Set the topic's own TTL to 0.",
    why="A TTL counts from the publish time and silently drops timers that were never delivered.")
TTL_BEYOND_STAY = warning_kind(slug="ttl-beyond-stay", do="Set the topic's own TTL to 0.",
    why="Timers wait longer than planned while consumers or relays are down, and then the TTL drops them.")
TTL_OVER_DELAYS = warning_kind(slug="ttl-over-delays", do="Set the topic's own TTL to 0.",
    why="A message that is delayed for longer than the TTL is dropped, and is never delivered.")
# fmt: on


@check(TTL_TOO_SHORT, TTL_BEYOND_STAY, TTL_OVER_DELAYS, needs={Source.POLICIES, Source.NAMESPACES}, of_any_topic=True)
def _ttl(seen: Seen) -> Iterator[Finding]:
    for topic, found in all_in_force(seen, MESSAGE_TTL_S):
        if found.value <= 0:
            continue
        read = f"messageTTL is {format_duration(found.value * SECOND_MS)}, {found.where}"
        cure = pulsar_admin("topicPolicies", "set-message-ttl", topic.name, "-t", 0)
        if topic.spec is None:
            if topic.delayed:
                read += f"; {counted(topic.delayed, 'message is', 'messages are')} delayed"
                yield TTL_OVER_DELAYS.at(topic.name, read=read, cure=cure)
            continue
        stay_ms = topic.spec.longest_stay_ms
        yield Finding(
            kind=TTL_TOO_SHORT if found.value * SECOND_MS <= stay_ms else TTL_BEYOND_STAY,
            subject=topic.name,
            read=f"{read}; timers wait here up to {spelled(stay_ms)}",
            cure=cure,
            fix=SetPolicy(topic=topic.name, policy=MESSAGE_TTL_S, value=0),
        )


@check(SUBSCRIPTIONS_EXPIRE, needs={Source.NAMESPACES, Source.SETTINGS}, of_any_topic=True)
def _subscriptions(seen: Seen) -> Iterator[Finding]:
    for namespace, policies in sorted(seen.namespaces.items()):
        within = [topic for topic in seen.topics if topic.namespace == namespace]
        if policies is not None and any(topic.spec is not None or any(topic.subscriptions()) for topic in within):
            yield from expiry_findings(policies, seen.settings)


EXPIRY = (_ttl, _subscriptions)


# fmt: off
KEPT_FOR_EVER = warning_kind(slug="kept-for-ever", do="Give the topic a retention that ends.",
    why="Every timer stays on disk in each topic that it passed, also after it was handled.")
NOBODY_SUBSCRIBED = warning_kind(slug="nobody-subscribed", do="Make the subscription before the first message.",
    why="Without a subscription messages are removed once their retention ends, though no consumer has read them.")
REMOVED_WHEN_CAUGHT_UP = error_kind(slug="removed-when-caught-up", do="Keep the topic though it is idle.",
    why="An idle topic is removed with its subscriptions, and the next message creates it without them.")
AUTO_CREATION = warning_kind(slug="auto-creation", do="Make the plan's topics first, or switch auto-creation off.",
    why="A send to a missing topic creates it, without partitions and subscriptions, and no consumer reads it.")
# fmt: on
UNLIMITED = -1
KEEP_OPTIONS = (
    *("--disable-delete-while-inactive", "--max-inactive-duration", "60s"),
    *("--delete-mode", "delete_when_no_subscriptions"),
)


@check(KEPT_FOR_EVER, NOBODY_SUBSCRIBED, needs={Source.POLICIES, Source.NAMESPACES, Source.TOPICS}, of_any_topic=True)
def _retention(seen: Seen) -> Iterator[Finding]:
    for topic, found in all_in_force(seen, RETENTION):
        is_endless = found.value == Retention(time_min=UNLIMITED, size_mb=UNLIMITED)
        read = f"retention is {_text(found.value)}, {found.where}"
        if topic.spec is not None and is_endless:
            cure = pulsar_admin("topicPolicies", "set-retention", topic.name, "-t", 0, "-s", 0)
            yield KEPT_FOR_EVER.at(topic.name, read=read, cure=cure)
        if topic.spec is None and not is_endless and topic.parts and not any(topic.subscriptions()):
            start = ("-s", "YOUR-SUBSCRIPTION", "-m", "earliest")
            cure = pulsar_admin("topics", "create-subscription", topic.name, *start)
            yield NOBODY_SUBSCRIBED.at(topic.name, read=f"no subscription; {read}", cure=cure)


def _text(retention: Retention) -> str:
    time = "endless" if retention.time_min == UNLIMITED else f"{retention.time_min} min"
    size = "any size" if retention.size_mb == UNLIMITED else f"{retention.size_mb} MB"
    return f"{time}, {size}"


@check(REMOVED_WHEN_CAUGHT_UP, needs={Source.POLICIES, Source.NAMESPACES}, of_any_topic=True)
def _inactive(seen: Seen) -> Iterator[Finding]:
    for topic, found in all_in_force(seen, INACTIVE_TOPIC):
        if not found.value.delete or found.value.mode != "delete_when_subscriptions_caught_up":
            continue
        keep = SetPolicy(topic=topic.name, policy=INACTIVE_TOPIC, value=KEEP_INACTIVE)
        yield REMOVED_WHEN_CAUGHT_UP.at(
            topic.name,
            read=f"an inactive topic is removed after {found.value.after_s} s ({found.value.mode}), {found.where}",
            cure=pulsar_admin("topicPolicies", "set-inactive-topic-policies", topic.name, *KEEP_OPTIONS),
            fix=None if topic.spec is None else keep,
        )


@check(AUTO_CREATION, needs={Source.NAMESPACES, Source.SETTINGS, Source.TOPICS})
def _auto_creation(seen: Seen) -> Iterator[Finding]:
    for name, policies in sorted(seen.namespaces.items()):
        own = [topic for topic in seen.topics if topic.namespace == name and topic.spec is not None]
        missing = sum(not topic.exists for topic in own)
        if policies is None or not missing:
            continue
        override = policies.document.get("autoTopicCreationOverride") or {}
        is_own = "allowAutoTopicCreation" in override
        by_broker = seen.settings is not None and is_on(seen.settings, "allowAutoTopicCreation", default=True)
        on = override["allowAutoTopicCreation"] if is_own else by_broker
        if on:
            where = f"set on the namespace {name}" if is_own else "of the broker"
            read = f"topics are made by the clients that use them, {where}; {missing} of the plan are missing"
            cure = pulsar_admin("namespaces", "set-auto-topic-creation", name, "--disable")
            yield AUTO_CREATION.at(name, read=read, cure=cure)


KEEPING = (_retention, _inactive, _auto_creation)
