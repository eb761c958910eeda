"""Counts the timers that still wait outside the due topic, and watches whether they move."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial

from timewheel.broker.admin.client import AdminClient
from timewheel.client.positions import EntryPosition
from timewheel.core.durations import MINUTE_MS, span
from timewheel.core.errors import AdminMissing, TopologyError
from timewheel.core.names import (
    JOURNAL_SUBSCRIPTION,
    RELAY_SUBSCRIPTION,
    Names,
    partition_of,
    partition_topic,
    parts_of,
)
from timewheel.core.plan import Plan
from timewheel.core.topology import FormerTopic, HoldingTopic, entrances_of, former_topics, topology
from timewheel.inspect.reader import Reader
from timewheel.inspect.status import Amount
from timewheel.inspect.status.places import summed, timers_held
from timewheel.provision.former_topics import FormerTopics, held_backlog, look_into
from timewheel.shadow.machine.cursors import pending_entries

_FORMER = "topics of earlier plans in "
GIVE_UP_MS = 3 * MINUTE_MS  # a partition that moves to another broker, or whose relay died, continues within a minute


def former_backlogs(reads: Reader, plan: Plan) -> dict[HoldingTopic, int]:
    """Count the waiting entries in holding topics of earlier plans, without empty topics: timers moved before a plan
    changed wait there until a relay has drained them. Calls that are refused are recorded in `reads`.
    """
    found: dict[HoldingTopic, int] = {}
    for namespace in Names(plan).namespaces:
        look = partial(look_into, reads.admin, plan, _listed(reads, namespace))
        topics: tuple[FormerTopic, ...] | None = reads.ask(_FORMER + namespace, look)
        found |= {topic.holding: topic.backlog for topic in topics or () if topic.holding is not None and topic.backlog}
    return found


def former_partitions(reads: Reader, plan: Plan) -> dict[int, list[str]]:
    """List the existing partitions of these topics, by number, in the order of the route: the longest hold first."""
    names = [name for namespace in Names(plan).namespaces for name in _listed(reads, namespace)]
    # The longest time that a timer is held there.
    span_ms = {
        topic.name: max(topic.holding.step.stay_ms, topic.holding.step.slot_ms * topic.holding.step.slots)
        for topic in former_topics(plan, names)
        if topic.holding is not None
    }
    found: dict[int, list[str]] = {}
    for name in sorted(names, key=lambda name: -span_ms.get(partition_of(name)[0], 0)):
        topic, number = partition_of(name)
        if topic in span_ms and number >= 0:
            found.setdefault(number, []).append(name)
    return found


def _listed(reads: Reader, namespace: str) -> tuple[str, ...]:
    return reads.ask(_FORMER + namespace, partial(reads.admin.topics.list, namespace)) or ()


def waiting(admin: AdminClient, plan: Plan) -> int:
    """Count the entries that wait in the intake, in the journal and in holding topics, those of earlier plans included.

    Raises:
        AdminError: The broker did not answer.
    """
    held = held_backlog(admin, plan, with_former=True)
    return held + sum(_backlog(admin, plan, topic.name, RELAY_SUBSCRIPTION) for topic in entrances_of(plan))


def waiting_timers(admin: AdminClient, plan: Plan) -> str:
    """Count the timers in these entries, in words; see `amount_words`.

    Raises:
        AdminError: The broker did not answer.
    """
    former = (topic.holding for topic in FormerTopics(admin, plan)() if topic.holding is not None)
    topics = (*entrances_of(plan), *topology(plan, 0).holding, *former)
    found = timers_held(admin, plan, topics, most=None)
    return amount_words(found, {topic.name for topic in entrances_of(plan)})


def amount_words(found: Mapping[str, Amount | None], entrances: Collection[str]) -> str:
    """Describe timers by topic: "300 timers"; "about 416 timers" while some are in an entrance, which a relay empties
    at once: topics are read one after the other, and a timer that moves on meanwhile counts at two places, or at none.
    None: some entries could not be read.
    """
    known = {name: amount for name, amount in found.items() if amount is not None}
    if len(known) < len(found):
        return "all that waited outside the topic"
    moving = any(amount.count for name, amount in known.items() if name in entrances)
    return ("about " if moving else "") + summed(known.values()).counted("timer")


def journaled(admin: AdminClient, plan: Plan) -> int:
    """Count the entries that the journal keeps because a broker may still deliver their originals again.

    Raises:
        AdminError: The broker did not answer.
    """
    return _backlog(admin, plan, Names(plan).journal, JOURNAL_SUBSCRIPTION)


def _backlog(admin: AdminClient, plan: Plan, topic: str, subscription: str) -> int:
    parts = parts_of(topic, plan.own_partitions)
    found = [admin.topics.stats(part, precise_backlog=True).subscriptions.get(subscription) for part in parts]
    return sum(one.backlog for one in found if one is not None)


class Stalls:
    """Finds partitions that do not move, checked from time to time; ends the wait if a partition does not move for
    long.

    Args:
        admin: Admin client of any broker.
        give_up_ms: See `GIVE_UP_MS`.
    """

    def __init__(self, admin: AdminClient, plan: Plan, give_up_ms: int = GIVE_UP_MS) -> None:
        self._admin = admin
        self._plan = plan
        self._give_up_ms = give_up_ms
        self._heads: dict[str, tuple[EntryPosition, int]] = {}

    def __call__(self) -> str:
        """Describe the partition that has stood still longest, as a clause; empty: all move.

        Raises:
            TopologyError: It has stood still for too long.
            AdminError: The broker did not answer.
        """
        now_ms = self._admin.clock.monotonic_ms()
        before, self._heads = self._heads, {}
        for part, head in self._waiting():
            known = before.get(part)
            self._heads[part] = known if known is not None and known[0] == head else (head, now_ms)
        if not self._heads:
            return ""
        part, (head, since_ms) = min(self._heads.items(), key=lambda one: one[1][1])
        if now_ms == since_ms:
            return ""
        stands = f"has not moved on from {head.text} for {span(now_ms - since_ms)}"
        if now_ms - since_ms >= self._give_up_ms:
            remedy = "see the log of its relay; all other timers are back: run the command again"
            raise TopologyError(part, stands, remedy)
        return f"{part} {stands}"

    def _waiting(self) -> Iterator[tuple[str, EntryPosition]]:
        """Yield the partitions with waiting entries, each with the last entry before them."""
        topics = (*entrances_of(self._plan), *topology(self._plan, 0).holding)
        parts = [partition_topic(topic.name, number) for topic in topics for number in range(self._plan.own_partitions)]
        former = former_partitions(Reader(self._admin), self._plan)
        parts += [part for some in former.values() for part in some]
        for part in parts:
            try:
                stats = self._admin.topics.internal_stats(part)
            except AdminMissing:
                continue  # drained and removed
            cursor = stats.cursors.get(RELAY_SUBSCRIPTION)
            if cursor is not None and pending_entries(cursor, stats.ledgers):
                yield part, cursor.mark_delete
