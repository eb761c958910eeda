"""Evidence for each cause of a subscription's gaps, in figures, and remedies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.durations import SECOND_MS, rounded_up
from timewheel.core.escapes import pulsar_admin, timewheel_command
from timewheel.inspect.gaps.explain import Cause, Explained, Share
from timewheel.inspect.gaps.gap_status import (
    FIRST_AID,
    FOR_GOOD,
    shadow_helps,
    stale_index_words,
)
from timewheel.provision.shadow_commands import is_lone_partition, is_own, shadow_commands

MAX_HOLDERS = 3
UNDELAYED_SHARE = 0.02
"""Fraction of a topic's entries from which undelayed entries deserve a topic of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """Commands that build on each other.

    Args:
        when: Condition under which to run them; empty if there is no alternative.
        commands: At least one command.
    """

    when: str
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Advice on a cause.

    Args:
        share: The cause's share of the gaps.
        evidence: Evidence, in sentences.
        helps: Remedies, in sentences.
        tries: Alternatives to begin with.
    """

    share: Share
    evidence: tuple[str, ...]
    helps: tuple[str, ...]
    tries: tuple[Try, ...]

    @property
    def commands(self) -> tuple[str, ...]:
        """Commands of all alternatives."""
        return tuple(command for one in self.tries for command in one.commands)


def advice_on(
    found: Explained, profile: BrokerProfile, *, gap_limit: int | None = None, reached_by: Sequence[str] = ()
) -> tuple[Advice, ...]:
    """Return advice on each cause that was found, the greatest share first.

    Args:
        found: Explanation of the gaps.
        profile: The broker's limits.
        gap_limit: Limit given by the user because the role may not read it; commands repeat it.
        reached_by: Options by which a command connects to the cluster.
    """
    sampling = [*([] if gap_limit is None else ["--gap-limit", str(gap_limit)]), *reached_by]
    return tuple(
        Advice(
            share=share,
            evidence=tuple(_evidence(share.cause, found)),
            helps=tuple(_helps(share.cause, found, profile)),
            tries=tuple(_tries(share.cause, found, reached_by, sampling)),
        )
        for share in found.shares
    )


def _evidence(cause: Cause, found: Explained) -> Iterator[str]:
    if cause is Cause.DELAYS:
        yield from _delays(found)
        return
    if found.oldest_ms is not None:
        age = _ago(found.at_ms - found.oldest_ms)
        yield f"the oldest open entry that was seen is {age} old, and it is due"
    unacked = found.gaps.unacked
    if not found.holders:
        yield "no consumer is connected"
    for holder in found.holders[:MAX_HOLDERS]:
        consumer = holder.consumer
        acked = "has acknowledged nothing yet"
        if consumer.last_acked_at_ms:
            since = _ago(found.at_ms - consumer.last_acked_at_ms)
            acked = f"acknowledged last {since} ago"
        flow = "is blocked" if consumer.blocked else f"would take {max(consumer.permits, 0):,} more"
        where = f" on {holder.topic.rpartition('/')[2]}" if len(found.gaps.parts) > 1 else ""
        yield f"{consumer.name or consumer.address}{where} has {consumer.unacked:,} in flight, {acked}, {flow}"
    left = len(found.holders) - MAX_HOLDERS
    if left > 0:
        yield f"{left:,} more consumers have less in flight; all together have {unacked:,}"
    if cause is Cause.KEYS and found.hottest_key:
        yield f"key {found.hottest_key!r} has {100 * found.hottest_share:.0f} % of the open entries that were seen"


def _delays(found: Explained) -> Iterator[str]:
    if found.first_due_ms is not None:
        first = _ago(found.first_due_ms - found.at_ms)
        yield (
            f"of {found.inspected:,} sampled open entries {found.delayed:,} are delayed; the first of "
            f"these is due in {first}"
        )
    if found.gaps.unknown:
        yield "the number of delayed messages in the broker is unknown, since no consumer is connected"
    else:
        held = f"{'at most ' if found.gaps.stale_entries else ''}{found.gaps.delayed:,} delayed messages"
        yield f"the broker holds {held} of this subscription{stale_index_words(found.gaps)}"
    figures = found.figures
    if figures is None:
        return
    half, longest = (rounded_up(delay_ms) for delay_ms in (figures.delay_p50_ms, figures.delay_max_ms))
    yield f"half of {figures.rows:,} sampled entries have a delay of up to {half}, the longest is {longest}"
    if figures.law_gaps is not None and figures.law_gaps_error is not None:
        yield (
            f"such delays, if they do not depend on the time of sending, leave {figures.law_gaps:,.0f} +- "
            f"{figures.law_gaps_error:,.0f} gaps; there are {found.gaps.gap_count:,}"
        )
    if figures.undelayed > UNDELAYED_SHARE * figures.rows:
        part = f"{100 * figures.undelayed / figures.rows:.0f} %"
        yield f"{part} of the sampled entries have no delay, and are acknowledged before earlier, delayed entries"


def _helps(cause: Cause, found: Explained, profile: BrokerProfile) -> Iterator[str]:
    match cause:
        case Cause.DELAYS:
            if not is_own(found.whole):
                yield shadow_helps(found.whole, found.shadow)
            figures = found.figures
            if figures is not None and figures.undelayed > UNDELAYED_SHARE * figures.rows:
                yield "send messages without a delay to a topic of their own"
            if found.shadow is None:
                yield "for good: keep timers where no gaps arise until near their time; let the planner choose a plan"
            yield "or send timers with equal delays to a topic of their own, or spread them over more partitions"
        case Cause.UNACKNOWLEDGED:
            if found.holders:
                yield "find out why the consumers above acknowledge late: a slow handler, a full thread pool"
            else:
                yield "no consumer is connected: start one, and see why the last one ended"
            yield (
                "give back messages that cannot be handled (negative_acknowledge, or an acknowledgement time-out); "
                "gaps of this kind are bounded by the broker's limit on unacknowledged messages"
            )
            yield "lower that limit if it is above the limit on gaps"
        case Cause.KEYS:
            yield "use more keys, with an even share of messages: one key is handled by one consumer, in order"
            yield "make its handler faster; more consumers help only if several keys are behind"
        case Cause.SINGLE:
            yield "acknowledge cumulatively (acknowledge_cumulative): such a subscription then has no gaps at all"
            yield "or acknowledge every message: here the broker sets no limit on unacknowledged messages"
    if found.gaps.worst.gap_count >= profile.gap_limit_ranges:
        yield "until then make handlers idempotent: the next reload of the topic delivers messages again"


def _tries(cause: Cause, found: Explained, reached_by: Sequence[str], sampling: Sequence[str]) -> Iterator[Try]:
    topic = found.gaps.topic
    namespace = topic.partition("://")[2].rpartition("/")[0]
    match cause:
        case Cause.DELAYS:
            shadow = shadow_commands(found.whole, found.shadow, reached_by)
            if shadow:
                yield Try(when=FIRST_AID, commands=shadow)
            if found.shadow is None and not is_lone_partition(found.whole):
                sample = timewheel_command("sample", found.whole, "-o", "delays.parquet", *sampling)
                plan = timewheel_command("plan", "delays.parquet", "-o", "plan.toml")
                yield Try(when=FOR_GOOD if shadow else "", commands=(sample, plan))
        case Cause.UNACKNOWLEDGED:
            enough = max(min(found.gaps.worst.gap_limit // 2, 5_000), 1)
            lower = pulsar_admin("namespaces", "set-max-unacked-messages-per-consumer", namespace, "-c", enough)
            yield Try(when="", commands=(lower,))
        case Cause.KEYS:
            yield Try(when="", commands=(pulsar_admin("topics", "stats", topic),))
        case Cause.SINGLE:
            return


def _ago(span_ms: int) -> str:
    return rounded_up(max(span_ms, SECOND_MS) // SECOND_MS * SECOND_MS)
