"""Checks of connected clients: subscription type, version, blocked subscriptions, and clocks, also of brokers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from timewheel.broker.admin.client import BrokerTime
from timewheel.broker.admin.policies import MAX_UNACKED_PER_CONSUMER, MAX_UNACKED_PER_SUBSCRIPTION
from timewheel.broker.admin.stats import DELAYING_TYPES
from timewheel.core.durations import MINUTE_MS, SECOND_MS, format_duration, span
from timewheel.core.escapes import pulsar_admin, timewheel_command
from timewheel.core.limits import DEFAULT_MAX_HELD, HELD_SHARE
from timewheel.core.plurals import counted
from timewheel.inspect.doctor.finding import Finding, Kind, check, error_kind, warning_kind
from timewheel.inspect.doctor.seen import Newest, Part, Seen, SeenTopic, Source
from timewheel.inspect.doctor.settings import in_force
from timewheel.provision.foreign_settings import unacknowledged_findings

FEW_UNACKNOWLEDGED = warning_kind(
    slug="few-unacknowledged",
    why="A consumer that holds its limit of early timers gets no more messages, not even messages due now.",
    do="Raise the bound for the topic, or let consumers hold fewer.",
)
BLOCKED = error_kind(
    slug="blocked-subscription",
    why="Its consumers have too many unacknowledged messages: the broker delivers no more, not even messages due now.",
    do="See whether a handler hangs; acknowledge or negatively acknowledge its messages.",
)
WRONG_TYPE = error_kind(
    slug="wrong-subscription-type",
    why="The broker delays on Shared and Key_Shared only, and relays keep order on Failover only.",
    do="Restart these consumers with the right type.",
)
OLD_CLIENT = warning_kind(
    slug="old-client",
    why="timewheel was tested with pulsar-client 3.13; older versions may lose or repeat messages.",
    do="Upgrade the client library.",
)
TRIED_CLIENT = (4, 2)
"""The C++ client in pulsar-client 3.13 for Python reports ``Pulsar-CPP-v4.2.0``."""
_VERSION = re.compile(r"Pulsar-CPP-v(\d+)\.(\d+)")
ORDERED_TYPES = frozenset({"Failover"})


@check(FEW_UNACKNOWLEDGED, needs={Source.POLICIES, Source.NAMESPACES})
def _bounds(seen: Seen) -> Iterator[Finding]:
    for topic in seen.topics:
        if topic.spec is None or not topic.spec.is_consumed or not topic.exists:
            continue
        one = in_force(seen, topic, MAX_UNACKED_PER_CONSUMER)
        if one is not None:
            for found in unacknowledged_findings(topic.spec, one.value):
                read = f"maxUnackedMessagesPerConsumer is {one.value:,}, {one.where}; {DEFAULT_MAX_HELD:,} may be held"
                yield FEW_UNACKNOWLEDGED.at(topic.name, read=read, cure=found.remedy)
        together = in_force(seen, topic, MAX_UNACKED_PER_SUBSCRIPTION)
        enough = DEFAULT_MAX_HELD * HELD_SHARE
        if together is not None and 0 < together.value < enough:
            yield FEW_UNACKNOWLEDGED.at(
                topic.name,
                read=f"maxUnackedMessagesPerSubscription is {together.value:,}, {together.where}; each consumer may "
                f"hold {DEFAULT_MAX_HELD:,}",
                cure=pulsar_admin(
                    "topicPolicies", "set-max-unacked-messages-per-subscription", topic.name, "-m", enough
                ),
            )


@check(BLOCKED, WRONG_TYPE, needs={Source.TOPICS}, of_any_topic=True)
def _subscriptions(seen: Seen) -> Iterator[Finding]:
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
                yield WRONG_TYPE.at(
                    topic.name,
                    read=f"{name} is {stats.type} on {part.name} ({who}), not {' or '.join(sorted(right))}",
                    cure=f"subscribe {name} as {' or '.join(sorted(right))}",
                )


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
                if _is_old(client):
                    old.setdefault(client, set()).add(name)
        for client, names in sorted(old.items()):
            some = sorted(names)[:3]
            read = f"{client}: {', '.join(some)}" + (f" and {len(names) - len(some)} more" if names - {*some} else "")
            yield Finding(
                kind=OLD_CLIENT, subject=topic.name, read=read, cure="pip install --upgrade 'pulsar-client>=3.13'"
            )


def _is_old(client: str) -> bool:
    found = _VERSION.match(client)
    return found is not None and (int(found[1]), int(found[2])) < TRIED_CLIENT


CLIENTS = (_bounds, _subscriptions, _versions)


CLOCK_OFF = error_kind(
    slug="clock-differs",
    why="Timers come late or early by as much as clocks differ, and a plan has room for a fifth of its guard.",
    do="Set the clock of this machine, or the broker's, by NTP.",
)
PRODUCER_AHEAD = error_kind(
    slug="producer-ahead",
    why="The clock of a producer is ahead: its timers leave late, and may keep the timers behind them waiting.",
    do="Set the clock of the producer's machine by NTP.",
)
PRODUCER_BEHIND = error_kind(
    slug="producer-behind",
    why="The clock of a producer is behind: its timers with deliver_after are due too early, by as much.",
    do="Set the clock of the producer's machine by NTP.",
)
SEND_WAIT_MS = 30 * SECOND_MS
"""Longest time that a message waits in its client before it is stored: by default, clients then give up."""
MAX_NAMED = 3
USUAL_SKEW_MS = MINUTE_MS
"""Smaller differences do not matter to a plan with the usual guard."""


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
    absent, and after its ledger was opened; and it was sent at most `SEND_WAIT_MS` before that.

    Args:
        newest: The message.
        time: The broker's clock; None to assume that it equals the local clock.

    Returns:
        The offset in milliseconds; 0 if it may be none.
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
        yield CLOCK_OFF.at(
            "the broker",
            read=f"its clock is {span(abs(off_ms))} {side} this machine's; {format_duration(skew_ms)} is allowed",
            cure="timedatectl set-ntp true",
        )


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
    named = "; ".join(
        f"the clock of producer {producer}{_address(part, producer)} is at least {span(by_ms)} {side} the "
        f"broker's, by a message in {part.name}"
        for by_ms, producer, part in found[:MAX_NAMED]
    )
    more = f"; and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    return kind.at(topic.name, read=named + more, cure="timedatectl set-ntp true")


def _address(part: Part, producer: str) -> str:
    """Return the producer's address if it is still connected."""
    return next((f" ({one.address})" for one in part.stats.producers if one.name == producer and one.address), "")


def _allowed_ms(seen: Seen) -> int:
    return USUAL_SKEW_MS if seen.plan is None else seen.plan.skew_ms


CLOCKS = (_broker, _producers)
