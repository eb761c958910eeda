"""Checks of relays, shadows and other clients: presence, lateness, hops, types, versions, and clocks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from timewheel.broker.admin.client import BrokerTime
from timewheel.broker.admin.parts import begins_anew, relays_of
from timewheel.broker.admin.policies import DEDUPLICATION, MAX_UNACKED_PER_CONSUMER, MAX_UNACKED_PER_SUBSCRIPTION
from timewheel.broker.admin.stats import DELAYING_TYPES, ConsumerStats
from timewheel.core.durations import HOUR_MS, MINUTE_MS, SECOND_MS, format_duration, span, spelled
from timewheel.core.early_delivery import DEFAULT_MAX_HELD
from timewheel.core.escapes import pulsar_admin, timewheel_command
from timewheel.core.names import RELAY_CONSUMER, RELAY_SUBSCRIPTION
from timewheel.core.plan import Plan
from timewheel.core.plurals import counted
from timewheel.core.routing import Router
from timewheel.core.steps import far_ms
from timewheel.inspect.doctor.seen import Newest, Part, Seen, SeenTopic, check, some_of
from timewheel.inspect.doctor.settings import broker_command, in_force
from timewheel.inspect.missing_topics import ENDS, MOVING, UNDER_WAY, mover_in
from timewheel.inspect.reader import Source
from timewheel.provision.findings import Finding, Kind, error_kind, note_kind, warning_kind
from timewheel.provision.foreign_settings import (
    ENOUGH_UNACKNOWLEDGED,
    FEW_UNACKNOWLEDGED,
    MANY_RELAYS,
    NAMES_FULL,
    number,
    producer_name_findings,
    relay_count_findings,
    unacknowledged_findings,
)
from timewheel.provision.former_topics import run_command
from timewheel.provision.provision_steps import SetPolicy

# fmt: off
NO_RELAY = error_kind(slug="no-relay", do="Start a relay, embedded in consumers or as a service.",
    why="Timers wait here, and no relay moves them on: they will not be delivered.")
RELAY_ELSEWHERE = error_kind(slug="relay-elsewhere", do="See its log and its plan file; restart it with this plan.",
    why="Timers wait here, and the running relay does not read them: it has just started, keeps restarting "
    "this partition, or works by another plan.")
NO_RELAY_YET = note_kind(slug="no-relay-yet", do="Start a relay before timers become due.",
    why="Nothing waits in this plan's own topics yet; the first timer that does needs a relay.")
NO_STANDBY = note_kind(slug="no-standby", do="Run two or three relays.",
    why="One relay works alone: while it is down, timers do not move on.")
RELAY_LATE = error_kind(slug="relay-late", do="See whether relays run and are ready, and their logs.",
    why="A timer should have left so long ago that the plan's guard is used up: timers are delivered late.")
RELAY_BEHIND = warning_kind(slug="relay-behind", do="See whether relays run and are ready, and their logs.",
    why="A timer should have left already: when the plan's guard is used up, timers are delivered late.")
FOREIGN_CONSUMER = error_kind(slug="foreign-consumer", do="Stop it. To look, use a reader or timewheel status PLAN.",
    why="A client that is no relay takes timers from the relays here: timers that it acknowledges are lost.")
# fmt: on
BEHIND_SHARE = 0.5  # fraction of the guard; the rest remains until the next run


@check(NO_RELAY, RELAY_ELSEWHERE, NO_RELAY_YET, NO_STANDBY, MANY_RELAYS, needs={Source.TOPICS})
def _presence(seen: Seen) -> Iterator[Finding]:
    # Slots are visited when they are released; only tiers, the intake and the journal always have relays connected.
    always = [
        topic
        for topic in seen.topics
        if topic.spec is not None and (topic.spec.role == "tier" or topic.spec.is_entrance) and topic.parts
    ]
    empty = []
    elsewhere = _reading(seen)
    for topic in always:
        alone = [part for part in topic.parts if not _relays(part)]
        waiting = [part for part in alone if _backlog(part)]
        if waiting:
            entries = sum(map(_backlog, waiting))
            parts = f"{len(waiting)} of {counted(len(topic.parts), 'partition')}"
            wait = counted(entries, "entry waits", "entries wait")
            read = f"{wait} in {parts}{_first_due(seen, waiting)}; no relay is connected"
            if any(begins_anew(part.stats.subscriptions[RELAY_SUBSCRIPTION], seen.at_ms) for part in waiting):
                read += " now; one was some seconds ago: it keeps restarting, or has just ended"
                cure = "see the relay's log: relay_session_failed and relay_session_crashed have the reason"
                yield RELAY_ELSEWHERE.at(topic.name, read=read, cure=cure)
            elif elsewhere and seen.plan is not None:
                read += f"; relay {elsewhere[0]} reads {elsewhere[1]}"
                restart = f"it: {_start(seen)}" if seen.plan.relay == "service" else "the consumer that it runs in"
                cure = f"see the log of relay {elsewhere[0]}; then restart {restart}"
                yield RELAY_ELSEWHERE.at(topic.name, read=read, cure=cure)
            else:
                yield NO_RELAY.at(topic.name, read=read, cure=_start(seen))
        elif alone:
            empty.append(topic.name)
    if seen.shadow_state in ENDS:
        return  # a shadow that ends needs a relay for waiting timers only: no relay for later, and no standby
    if empty and seen.plan is not None:
        read = f"no relay is connected to {some_of(empty, most=1)}"
        read += f"; relay {elsewhere[0]} reads {elsewhere[1]}" if elsewhere else ""
        yield NO_RELAY_YET.at(seen.plan.due_topic, read=read, cure=_start(seen))
    yield from _numbers(seen, always)


def _first_due(seen: Seen, parts: list[Part]) -> str:
    due_ms = min((part.head.due_ms for part in parts if part.head is not None), default=None)
    if due_ms is None:
        return ""
    away = span(abs(due_ms - seen.at_ms))
    return f", the first due in {away}" if due_ms > seen.at_ms else f", the first overdue by {away}"


def _numbers(seen: Seen, tiers: list[SeenTopic]) -> Iterator[Finding]:
    for topic in tiers[:1]:  # relays read all tiers alike
        most = max(len(_relays(part)) for part in topic.parts)
        if most == 1:
            read = f"one relay is connected to {topic.name}"
            yield NO_STANDBY.at(topic.name, read=read, cure=_start(seen))
        if topic.spec is not None and seen.plan is not None and seen.plan.relay == "embedded":
            yield from relay_count_findings(topic.spec, most, seen.target)


def _reading(seen: Seen) -> tuple[str, str] | None:
    """Return a relay that is connected to a topic of this or an earlier plan, with the topic; None without a relay."""
    found = {relay: topic.name for topic in seen.former for relay in topic.relays}
    found |= {relay: topic.name for topic in seen.topics for part in topic.parts for relay in relays_of(part.stats)}
    return next(iter(sorted(found.items())), None)


def _start(seen: Seen) -> str:
    if seen.plan is not None and seen.plan.relay == "embedded":
        return "start a consumer of the plan: its relay is within it"
    return run_command(seen.plan, seen.target)


def _relays(part: Part) -> tuple[ConsumerStats, ...]:
    relays = part.stats.subscriptions.get(RELAY_SUBSCRIPTION)
    return () if relays is None else relays.consumers or ()


def _backlog(part: Part) -> int:
    relays = part.stats.subscriptions.get(RELAY_SUBSCRIPTION)
    return 0 if relays is None else relays.backlog


@check(RELAY_LATE, RELAY_BEHIND, needs={Source.TOPICS, Source.ENTRIES})
def _lateness(seen: Seen) -> Iterator[Finding]:
    if seen.plan is None:
        return
    for topic in seen.topics:
        heads = [(part.head, part) for part in topic.parts if part.head is not None]
        if not heads:
            continue
        head, part = min(heads, key=lambda one: one[0].release_ms)
        late_ms = seen.at_ms - head.release_ms
        if late_ms <= max(seen.plan.guard_ms * BEHIND_SHARE, SECOND_MS):
            continue
        guard = format_duration(seen.plan.guard_ms)
        yield Finding(
            kind=RELAY_LATE if late_ms > seen.plan.guard_ms else RELAY_BEHIND,
            subject=topic.name,
            read=f"timer {head.timer_id} should have left {part.name} {span(late_ms)} ago; the guard is {guard}",
            cure=_start(seen),
        )


@check(FOREIGN_CONSUMER, needs={Source.TOPICS})
def _foreign_consumers(seen: Seen) -> Iterator[Finding]:
    for topic in seen.topics:
        if topic.step is None and (topic.spec is None or not topic.spec.is_entrance):
            continue
        found = sorted(
            {
                f"{consumer.name or 'one without a name'} at {consumer.address or 'an unknown address'}"
                for part in topic.parts
                for consumer in _relays(part)
                if not RELAY_CONSUMER.fullmatch(consumer.name)
            }
        )
        if found:
            read = f"connected to {RELAY_SUBSCRIPTION}, and no relay: {some_of(found)}"
            yield FOREIGN_CONSUMER.at(topic.name, read=read, cure="stop the program at that address")


RELAYS = (_foreign_consumers, _presence, _lateness)


# fmt: off
NO_DEDUPLICATION = warning_kind(slug="no-deduplication", do="Switch deduplication on for the topic.",
    why="A killed relay sends its unacknowledged hops again, and here they are stored twice.")
FEW_NAMES = warning_kind(slug="few-producer-names", do="Let the broker remember more names.",
    why="The broker keeps fewer producer names than this plan opens for a partition, and may store a hop twice.")
NAMES_FORGOTTEN_SOON = warning_kind(slug="producer-names-forgotten-soon",
    do="Let the broker remember names for some hours.",
    why="A relay that is down for longer than that may store a hop twice when it comes back.")
# fmt: on
USUAL_NAMES = 10_000
USUAL_MEMORY_MIN = 360
SHORT_MEMORY_MIN = 60  # shorter than an outage that needs an operator
SDK_PRODUCERS = 100  # producer names of sending processes, in addition to those of relays


@check(NO_DEDUPLICATION, needs={Source.POLICIES, Source.NAMESPACES, Source.TOPICS})
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
        yield NO_DEDUPLICATION.at(
            topic.name,
            read=f"deduplication: {told}{where}",
            cure=pulsar_admin("topicPolicies", "set-deduplication", topic.name, "--enable"),
            fix=SetPolicy(topic=topic.name, policy=DEDUPLICATION, value=True),
        )


@check(NAMES_FULL, needs={Source.TOPICS, Source.SETTINGS})
def _names(seen: Seen) -> Iterator[Finding]:
    for topic in seen.topics:
        known = [part.producer_names for part in topic.parts if part.producer_names is not None]
        if topic.spec is None or not known:
            continue
        yield from producer_name_findings(topic.spec, max(known), seen.settings)


@check(FEW_NAMES, NAMES_FORGOTTEN_SOON, needs={Source.SETTINGS})
def _limits(seen: Seen) -> Iterator[Finding]:
    if not any(topic.spec is not None and topic.spec.deduplication for topic in seen.topics):
        return
    name = "brokerDeduplicationMaxNumberOfProducers"
    names = number(seen.settings, name, USUAL_NAMES)
    # Each holding topic has two producer names per destination partition: for single hops, and for groups.
    needed = 2 * sum(topic.step is not None for topic in seen.topics) + SDK_PRODUCERS
    if names < needed:
        read = f"{name} is {names:,}; {needed:,} or more may come to a partition"
        cure = broker_command(seen, name, USUAL_NAMES)
        yield FEW_NAMES.at("the broker", read=read, cure=cure)
    name = "brokerDeduplicationProducerInactivityTimeoutMinutes"
    memory_min = number(seen.settings, name, USUAL_MEMORY_MIN)
    if memory_min < SHORT_MEMORY_MIN:
        read = f"{name} is {memory_min}"
        cure = broker_command(seen, name, USUAL_MEMORY_MIN)
        yield NAMES_FORGOTTEN_SOON.at("the broker", read=read, cure=cure)


HOPS = (_deduplication, _names, _limits)


# fmt: off
NOBODY_MOVES = error_kind(slug="nobody-moves", do="Start, pause or abort the shadow by a command.",
    why="Moved timers do not move on, and timers far from due stay in the due topic and make gaps there.")
JOURNAL_OLD = warning_kind(slug="journal-is-old", do="Find the message, and handle or acknowledge it.",
    why="A message that is never acknowledged pins the due topic: the journal grows, and is repeated at each load.")
UNNAMED_SUBSCRIPTION = warning_kind(slug="unnamed-subscription",
    do="Write the subscription into the plan, or remove it.",
    why="A shadow moves only timers that wait on every subscription; an unread subscription pins its journal for ever.")
MOVERS_DIFFER = warning_kind(slug="movers-differ", do="Give all processes that move these timers the same plan file.",
    why="A mover with another plan sends timers another way: timers that both have met are stored twice.")
JOURNAL_REMOVED = error_kind(slug="journal-removed", do="Start the shadow again; search the due topic for lost timers.",
    why="Acknowledged originals whose copies had not moved on yet are lost with the journal; no timer is moved.")
COMPACTED = warning_kind(slug="compacted-due-topic", do="Switch compaction off for the due topic.",
    why="Compaction keeps a cursor of its own, which no shadow can move; its readers get the newest of each key only.")
# fmt: on

COMPACTION = "__compaction"
PINNED_MS = HOUR_MS
"""Longest usual time from the oldest original's due time until it is handled; after that an operator should check."""
_HOP = re.compile(r"tw\|(?!move\|)([^|]+)\|[^|]+\|-?\d+\|([^|]+)")
"""Name of a relay's producer: the source of its hops, and the fingerprint of its routing."""
_DRAIN = "-drain"


def _journal_of(seen: Seen) -> SeenTopic | None:
    return next((topic for topic in seen.topics if _has_role(seen, topic, "journal")), None)


def _has_role(seen: Seen, topic: SeenTopic, role: str) -> bool:
    """Return whether a topic has a role; always False if the plan has no intake."""
    return seen.plan is not None and seen.plan.intake and topic.spec is not None and topic.spec.role == role


@check(NOBODY_MOVES, needs={Source.TOPICS})
def _move_decider(seen: Seen) -> Iterator[Finding]:
    journal = _journal_of(seen)
    if journal is None or seen.shadow_state != MOVING:
        return
    alone = [part for part in journal.parts if mover_in(part.stats) is None]
    if alone:
        parts = counted(len(journal.parts), "partition")
        read = f"its requested state is {MOVING}, and no mover writes into {len(alone)} of {parts}"
        start = timewheel_command("shadow", "run", seen.target)
        relays = sorted({relay for part in alone for relay in relays_of(part.stats)})
        cure = f"see the log of {relays[0]}, the relay here; then restart it: {start}" if relays else start
        yield NOBODY_MOVES.at(journal.name, read=read, cure=cure)


@check(JOURNAL_OLD, needs={Source.TOPICS, Source.ENTRIES})
def _journal(seen: Seen) -> Iterator[Finding]:
    journal = _journal_of(seen)
    oldest = [] if journal is None else [part for part in journal.parts if part.journal_since_ms is not None]
    if journal is None or seen.plan is None or not oldest:
        return
    bound_ms = far_ms(seen.plan) + PINNED_MS

    def age_ms(part: Part) -> int:
        return seen.at_ms - (part.journal_since_ms or 0)

    part = max(oldest, key=age_ms)
    if age_ms(part) > bound_ms:
        read = f"{part.name} has kept a copy for {span(age_ms(part))}; {spelled(bound_ms)} is usual at most"
        cure = timewheel_command("gaps", "explain", seen.plan.due_topic)
        yield JOURNAL_OLD.at(journal.name, read=read, cure=cure)


@check(UNNAMED_SUBSCRIPTION, needs={Source.TOPICS})
def _subscriptions(seen: Seen) -> Iterator[Finding]:
    for topic in seen.topics:
        if topic.spec is None or not _has_role(seen, topic, "due"):
            continue
        unnamed: dict[str, int] = {}
        for _, name, stats in topic.subscriptions():
            if name not in topic.spec.subscriptions and name != COMPACTION:
                unnamed[name] = unnamed.get(name, 0) + stats.backlog
        for name, backlog in sorted(unnamed.items()):
            read = f"{name} is not in the plan; {counted(backlog, 'entry waits', 'entries wait')} for it"
            cure = f"write it among the subscriptions of {seen.target}; or, if it is not needed: "
            cure += pulsar_admin("topics", "unsubscribe", topic.name, "-s", name)
            yield UNNAMED_SUBSCRIPTION.at(topic.name, read=read, cure=cure)


@check(MOVERS_DIFFER, needs={Source.TOPICS})
def _movers(seen: Seen) -> Iterator[Finding]:
    if seen.plan is None or not seen.plan.intake:
        return
    own = Router(seen.plan).fingerprint
    found: dict[str, str] = {}
    for topic in seen.topics:
        for part in topic.parts:
            for producer in part.stats.producers:
                match = _HOP.fullmatch(producer.name)
                if match is not None and _is_of(seen.plan, match[1]):
                    where = f" at {producer.address}" if producer.address else ""
                    found.setdefault(match[2].removesuffix(_DRAIN), f"{producer.name}{where}")
    others = [name for fingerprint, name in sorted(found.items()) if fingerprint != own]
    if others:
        beside = "; others move them by this plan" if own in found else ""
        read = f"moved by another plan than {seen.target}: {some_of(others, last=', and ')}{beside}"
        cure = f"{timewheel_command('shadow', 'run', seen.target)}, in place of the connected movers"
        yield MOVERS_DIFFER.at(seen.plan.due_topic, read=read, cure=cure)


def _is_of(plan: Plan, source: str) -> bool:
    """Return whether a relay's producer comes from a topic of the plan; producer names omit the scheme."""
    return any(f"persistent://{source}".startswith(f"{prefix}.") for prefix in Router(plan).names.own_prefixes)


@check(JOURNAL_REMOVED, needs={Source.TOPICS, Source.NAMESPACES})
def _removed(seen: Seen) -> Iterator[Finding]:
    journal = _journal_of(seen)
    if journal is None or journal.namespace not in seen.namespaces:
        return
    cure = f"{seen.provisions}; then {timewheel_command('shadow', 'start', seen.target)}"
    if journal.exists:
        gone = len(set(range(journal.state.partitions or 0)) - journal.state.existing)
        if gone and seen.shadow_state in UNDER_WAY:
            read = f"its requested state is {seen.shadow_state}, and {gone} of its partitions are missing"
            yield JOURNAL_REMOVED.at(journal.name, read=read, cure=cure)
        return
    held = [topic.name for topic in seen.topics if topic.step is not None and topic.backlog]
    if held:
        read = f"it is missing, and timers wait in {some_of(held, most=1)}"
        yield JOURNAL_REMOVED.at(journal.name, read=read, cure=cure)


@check(COMPACTED, needs={Source.TOPICS, Source.NAMESPACES})
def _compaction(seen: Seen) -> Iterator[Finding]:
    for topic in seen.topics:
        if not _has_role(seen, topic, "due") or not topic.exists:
            continue
        policies = seen.namespaces.get(topic.namespace)
        threshold = (None if policies is None else policies.document.get("compaction_threshold")) or 0
        cure = pulsar_admin("topicPolicies", "set-compaction-threshold", topic.name, "-t", 0)
        if any(name == COMPACTION for _, name, _ in topic.subscriptions()):
            read = f"it has the cursor {COMPACTION}"
            yield COMPACTED.at(topic.name, read=read, cure=f"{cure}; then remove that cursor")
        elif threshold > 0:
            read = f"compaction_threshold is {threshold:,} bytes, set on the namespace {topic.namespace}"
            yield COMPACTED.at(topic.name, read=read, cure=cure)


SHADOWS = (_move_decider, _movers, _journal, _subscriptions, _removed, _compaction)


# fmt: off
BLOCKED = error_kind(slug="blocked-subscription",
    do="See whether a handler hangs; acknowledge or negatively acknowledge its messages.",
    why="Its consumers have too many unacknowledged messages: the broker delivers no more, not even messages due now.")
WRONG_TYPE = error_kind(slug="wrong-subscription-type", do="Restart these consumers with the right type.",
    why="The broker delays on Shared and Key_Shared only, and relays keep order on Failover only.")
OLD_CLIENT = warning_kind(slug="old-client", do="Upgrade the client library.",
    why="timewheel was tested with pulsar-client 3.13; older versions may lose or repeat messages.")
# fmt: on
TRIED_CLIENT = (4, 2)  # the C++ client in pulsar-client 3.13 for Python reports ``Pulsar-CPP-v4.2.0``
_VERSION = re.compile(r"Pulsar-CPP-v(\d+)\.(\d+)")
ORDERED_TYPES = frozenset({"Failover"})


@check(FEW_UNACKNOWLEDGED, needs={Source.POLICIES, Source.NAMESPACES})
def _bounds(seen: Seen) -> Iterator[Finding]:
    for topic in seen.topics:
        if topic.spec is None or not topic.spec.is_consumed or not topic.exists:
            continue
        one = in_force(seen, topic, MAX_UNACKED_PER_CONSUMER)
        if one is not None:
            yield from unacknowledged_findings(topic.spec, one.value, f", {one.where}")
        together = in_force(seen, topic, MAX_UNACKED_PER_SUBSCRIPTION)
        if together is not None and 0 < together.value < ENOUGH_UNACKNOWLEDGED:
            command = "set-max-unacked-messages-per-subscription"
            yield FEW_UNACKNOWLEDGED.at(
                topic.name,
                read=f"maxUnackedMessagesPerSubscription is {together.value:,}, {together.where}; each consumer may "
                f"hold {DEFAULT_MAX_HELD:,}",
                cure=pulsar_admin("topicPolicies", command, topic.name, "-m", ENOUGH_UNACKNOWLEDGED),
            )


@check(BLOCKED, WRONG_TYPE, needs={Source.TOPICS}, of_any_topic=True)
def _types(seen: Seen) -> Iterator[Finding]:
    for topic in seen.topics:
        told: set[tuple[str, Kind]] = set()
        for part, name, stats in topic.subscriptions():
            if stats.blocked and (name, BLOCKED) not in told:
                told.add((name, BLOCKED))
                read = f"{name} is blocked on {part.name}: {counted(stats.unacked, 'message')} unacknowledged"
                cure = timewheel_command("gaps", "explain", topic.name, "--subscription", name)
                yield BLOCKED.at(topic.name, read=read, cure=cure)
            right = _right_types(topic, name, is_shadowed=seen.plan is not None and seen.plan.intake)
            if stats.consumers and right and stats.type not in right and (name, WRONG_TYPE) not in told:
                told.add((name, WRONG_TYPE))
                who = ", ".join(sorted({consumer.name for consumer in stats.consumers})[:3])
                read = f"{name} is {stats.type} on {part.name} ({who}), not {' or '.join(sorted(right))}"
                cure = f"subscribe {name} as {' or '.join(sorted(right))}"
                yield WRONG_TYPE.at(topic.name, read=read, cure=cure)


def _right_types(topic: SeenTopic, subscription: str, *, is_shadowed: bool) -> frozenset[str]:
    """Return the subscription types that work on a topic; empty if any type does."""
    if topic.spec is None:
        return DELAYING_TYPES if topic.delayed else frozenset()
    if is_shadowed and topic.spec.role == "due":
        return DELAYING_TYPES  # a shadow acknowledges on every subscription, including those missing from the plan
    if subscription not in topic.spec.subscriptions or not topic.spec.takes_hops:
        return frozenset()
    return DELAYING_TYPES if topic.by_broker else ORDERED_TYPES


@check(OLD_CLIENT, needs={Source.TOPICS})
def _versions(seen: Seen) -> Iterator[Finding]:
    """Find old C++ clients, Python's included: timewheel relies on them only, not on clients in other languages."""
    for topic in seen.topics:
        old: dict[str, set[str]] = {}
        for part in topic.parts:
            clients = [(producer.client, producer.name) for producer in part.stats.producers]
            for subscription in part.stats.subscriptions.values():
                clients += [(consumer.client, consumer.name) for consumer in subscription.consumers or ()]
            for client, name in clients:
                version = _VERSION.match(client)
                if version is not None and (int(version[1]), int(version[2])) < TRIED_CLIENT:
                    old.setdefault(client, set()).add(name)
        for client, names in sorted(old.items()):
            read = f"{client}: {some_of(sorted(names))}"
            yield OLD_CLIENT.at(topic.name, read=read, cure="pip install --upgrade 'pulsar-client>=3.13'")


CLIENTS = (_bounds, _types, _versions)


# fmt: off
CLOCK_OFF = error_kind(slug="clock-differs", do="Set the clock of this machine, or the broker's, by NTP.",
    why="Timers come late or early by as much as clocks differ, and a plan has room for a fifth of its guard.")
PRODUCER_AHEAD = error_kind(slug="producer-ahead", do="Set the clock of the producer's machine by NTP.",
    why="The clock of a producer is ahead: its timers leave late, and may keep the timers behind them waiting.")
PRODUCER_BEHIND = error_kind(slug="producer-behind", do="Set the clock of the producer's machine by NTP.",
    why="The clock of a producer is behind: its timers with deliver_after are due too early, by as much.")
# fmt: on
SEND_WAIT_MS = 30 * SECOND_MS
"""Longest time that a message waits in its client before it is stored: by default, clients then give up."""
USUAL_SKEW_MS = MINUTE_MS  # smaller differences do not matter to a plan with the usual guard


def _offsets_ms(time: BrokerTime) -> tuple[int, int]:
    """Return the least and the greatest offset of the broker's clock from the local clock (negative: behind)."""
    # The answer is in whole seconds: the clock showed it, or up to a second later, at a moment between request and
    # answer.
    return time.reported_ms - time.answered_ms, time.reported_ms + SECOND_MS - time.asked_ms


def offset_ms(time: BrokerTime) -> int:
    """Return the certain offset of the broker's clock from the local clock (negative: behind); 0 if it may be none."""
    least, most = _offsets_ms(time)
    return least if least > 0 else min(0, most)


def producer_off_ms(newest: Newest, time: BrokerTime | None) -> int:
    """Return the certain offset of a producer's clock from the broker's clock (negative: behind), from a message.

    The message was sent before it was stored, and stored before it was seen. It was stored after it was seen to be
    absent, and after its ledger was opened; and it was sent at most `SEND_WAIT_MS` before that. Without the broker's
    clock, it is taken to equal the local clock; 0 if there may be no offset.
    """
    least, most = (0, 0) if time is None else _offsets_ms(time)
    ahead_ms = newest.published_ms - (newest.seen_ms + most)
    if ahead_ms > 0:
        return ahead_ms
    stored_after_ms = [newest.ledger_since_ms, None if newest.absent_ms is None else newest.absent_ms + least]
    sent_after_ms = max((one for one in stored_after_ms if one is not None), default=0) - SEND_WAIT_MS
    return min(newest.published_ms - sent_after_ms, 0)


@check(CLOCK_OFF, needs={Source.TIME}, of_any_topic=True)
def _broker(seen: Seen) -> Iterator[Finding]:
    skew_ms = _allowed_ms(seen)
    off_ms = 0 if seen.time is None else offset_ms(seen.time)
    if abs(off_ms) > skew_ms:
        side = "ahead of" if off_ms > 0 else "behind"
        read = f"its clock is {span(abs(off_ms))} {side} this machine's; {format_duration(skew_ms)} is allowed"
        cure = "timedatectl set-ntp true"
        yield CLOCK_OFF.at("the broker", read=read, cure=cure)


@check(PRODUCER_AHEAD, PRODUCER_BEHIND, needs={Source.TOPICS, Source.ENTRIES}, of_any_topic=True)
def _producers(seen: Seen) -> Iterator[Finding]:
    skew_ms = _allowed_ms(seen)
    for topic in seen.topics:
        off: dict[tuple[Kind, str], tuple[int, Part]] = {}
        for part in topic.parts:
            for newest in (part.newest, part.later):
                off_ms = 0 if newest is None else producer_off_ms(newest, seen.time)
                if newest is not None and abs(off_ms) > skew_ms:
                    who = PRODUCER_AHEAD if off_ms > 0 else PRODUCER_BEHIND, newest.producer
                    off[who] = max(off.get(who, (0, part)), (abs(off_ms), part), key=lambda one: one[0])
        for kind in (PRODUCER_AHEAD, PRODUCER_BEHIND):
            found = [(by_ms, producer, part) for (of, producer), (by_ms, part) in off.items() if of is kind]
            if found:
                yield _off(kind, topic, sorted(found, key=lambda one: -one[0]))


def _off(kind: Kind, topic: SeenTopic, found: list[tuple[int, str, Part]]) -> Finding:
    side = "ahead of" if kind is PRODUCER_AHEAD else "behind"
    named = [
        f"the clock of producer {producer}{_address(part, producer)} is at least {span(by_ms)} {side} the "
        f"broker's, by a message in {part.name}"
        for by_ms, producer, part in found
    ]
    return kind.at(topic.name, read=some_of(named, "; ", "; and "), cure="timedatectl set-ntp true")


def _address(part: Part, producer: str) -> str:
    """Return the producer's address if it is still connected."""
    return next((f" ({one.address})" for one in part.stats.producers if one.name == producer and one.address), "")


def _allowed_ms(seen: Seen) -> int:
    return USUAL_SKEW_MS if seen.plan is None else seen.plan.skew_ms


CLOCKS = (_broker, _producers)
