"""Settings of namespaces, brokers and other clients that break a plan's guarantees.

Provisioning warns of them before the first timer, the doctor finds them later. An ``origin`` is the end of a sentence:
the place where a value was set, if it is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from timewheel.broker.admin.client import NamespacePolicies
from timewheel.broker.admin.policies import DELAYED_DELIVERY, SUBSCRIPTION_EXPIRY_MIN, DelayedDelivery
from timewheel.broker.admin.stats import TopicStats
from timewheel.core.durations import SECOND_MS, format_duration, spelled
from timewheel.core.early_delivery import DEFAULT_MAX_HELD, HELD_SHARE
from timewheel.core.escapes import pulsar_admin, timewheel_command
from timewheel.core.names import CANCELLATIONS_SUBSCRIPTION, LOOK_PREFIX
from timewheel.core.plurals import counted
from timewheel.core.topology import TopicSpec
from timewheel.provision.findings import Finding, error_kind, note_kind, warning_kind
from timewheel.provision.provision_steps import SetPolicy
from timewheel.provision.shadow_commands import shadow_commands

# fmt: off
SUBSCRIPTIONS_EXPIRE = error_kind(slug="subscription-expiry", do="Switch it off for the namespace.",
    why="A subscription without a consumer for this long is removed, with its backlog.")
REPLICATED = warning_kind(slug="replicated", do="Give the plan a holding_namespace of its own that is not replicated.",
    why="A relay in each cluster would forward every timer, so that each is handled once for each cluster.")
FEW_NATIVE_TIMERS = note_kind(slug="few-native-timers", do="Nothing.",
    why="A plan moves no timer that waits under the broker's own delay, and so few are no problem.")
NATIVE_TIMERS = warning_kind(slug="native-timers", do="Begin with a shadow, or plan for a new due topic.",
    why="A plan moves no timer that waits under the broker's own delay: until they are due the gaps between them stay.")
DELAYS_OFF = error_kind(slug="delays-off", do="Switch delayed delivery on for the topic.",
    why="With delayed delivery off the broker delivers every timer at once.")
DELAY_TOO_LONG = error_kind(slug="delay-too-long", do="Raise or remove the bound for the topic.",
    why="The broker refuses a message that is delayed for longer than its bound, and timers wait here for longer.")
TICK_DIFFERS = warning_kind(slug="tick-differs", do="Write the broker's tick into the plan.",
    why="The plan's lead is computed from its tick: now it is too short, so timers are late, or needlessly long.")
FEW_UNACKNOWLEDGED = warning_kind(slug="few-unacknowledged",
    do="Raise the bound for the topic, or let consumers hold fewer.",
    why="A consumer that holds its limit of early timers gets no more messages, not even messages due now.")
NAMES_FULL = warning_kind(slug="producer-names-full",
    do="Find the client that keeps opening producers; let the broker remember more.",
    why="Beyond the number of producer names that it keeps the broker forgets some, and may store a hop twice.")
MANY_RELAYS = warning_kind(slug="many-relays", do="Run relays as a service of two or three.",
    why="All but one relay of a partition keep threads and connections and do nothing, and each may take it over.")
FOREIGN_SUBSCRIPTION = warning_kind(slug="foreign-subscription", do="Remove the subscription if it is not needed.",
    why="Messages that a foreign subscription does not acknowledge stay on disk for ever.")
# fmt: on
DEFAULT_PRODUCER_NAMES = 10_000  # the broker's default of ``brokerDeduplicationMaxNumberOfProducers``
DEFAULT_GAP_LIMIT = 10_000  # the broker's default of ``managedLedgerMaxUnackedRangesToPersist``
FULL_SHARE = 0.8
FEW_SHARE = 0.5
"""Fraction of the gap limit: this many timers, each with a gap of its own, leave room for as many gaps again."""
MANY = 50  # from this number on, relays within consumers cost more than relays of their own
ENOUGH_UNACKNOWLEDGED = DEFAULT_MAX_HELD * HELD_SHARE

Settings = Mapping[str, str]


def number(settings: Settings | None, name: str, default: int) -> int:
    """Return a numeric setting of the broker; the default if it is unknown or no number."""
    try:
        return int(float((settings or {}).get(name, "")))
    except (ValueError, OverflowError):  # "inf" is no number of anything
        return default


def expiry_findings(policies: NamespacePolicies, broker: Settings | None) -> Iterator[Finding]:
    """Find the expiry of subscriptions, which no topic policy overrides (broker-facts: policies-of-topics)."""
    expiry_min, origin = policies.get(SUBSCRIPTION_EXPIRY_MIN), f"set on the namespace {policies.namespace}"
    if expiry_min is None:
        expiry_min, origin = number(broker, "subscriptionExpirationTimeMinutes", 0), "of the broker"
    if expiry_min > 0:
        cure = pulsar_admin("namespaces", "set-subscription-expiration-time", policies.namespace, "-t", 0)
        read = f"subscriptions expire after {expiry_min} min, {origin}"
        yield SUBSCRIPTIONS_EXPIRE.at(policies.namespace, read=read, cure=cure)


def replication_findings(policies: NamespacePolicies, target: str) -> Iterator[Finding]:
    if policies.is_replicated:
        read = f"it is replicated: {', '.join(policies.replication_clusters)}"
        cure = f'write holding_namespace = "tenant/namespace", not replicated, into {target}'
        yield REPLICATED.at(policies.namespace, read=read, cure=cure)


def native_timer_findings(spec: TopicSpec, parts: Iterable[TopicStats], broker: Settings | None) -> Iterator[Finding]:
    """Find timers that wait in a due topic before its plan is applied for the first time.

    Later on, some timers always wait in the due topic, for the last part of their delay.
    """
    each = [max((own.delayed - own.stale_entries for own in part.subscriptions.values()), default=0) for part in parts]
    delayed = sum(each)
    if not delayed:
        return
    limit = number(broker, "managedLedgerMaxUnackedRangesToPersist", 0) or DEFAULT_GAP_LIMIT
    read = f"{counted(delayed, 'timer waits', 'timers wait')} here under the broker's own delay"
    if max(each) <= limit * FEW_SHARE:
        read += f", and a partition may have {limit:,} gaps"
        yield FEW_NATIVE_TIMERS.at(spec.name, read=read, cure="nothing need be done")
        return
    cure = f"first a shadow: {shadow_commands(spec.name)[0]}; or a plan with a new due_topic"
    yield NATIVE_TIMERS.at(spec.name, read=read, cure=cure)


def delayed_delivery_findings(
    topic: str,
    found: DelayedDelivery,
    *,
    spec: TopicSpec | None,
    tick_ms: int | None,
    target: str = "PLAN",
    origin: str = "",
) -> Iterator[Finding]:
    """Find the effects of a topic's delayed-delivery settings on timers that wait under the broker's delay.

    Args:
        topic: Its full name.
        found: The settings in force.
        spec: The plan's specification of the topic; None without a plan.
        tick_ms: The plan's tick; None without a plan.
        target: The user's name for the plan.
        origin: See the module.
    """
    cure, fix = set_delayed_delivery(topic, found), None
    if spec is not None:
        value = DelayedDelivery(active=True, tick_ms=found.tick_ms, max_delay_ms=0)
        fix = SetPolicy(topic=topic, policy=DELAYED_DELIVERY, value=value)
        if found.tick_ms % SECOND_MS:
            # Only whole seconds fit pulsar-admin, so its command would change the tick.
            cure = timewheel_command("doctor", target, "--fix")
    if not found.active:
        yield DELAYS_OFF.at(topic, read=f"delayed delivery is off{origin}", cure=cure, fix=fix)
        return
    stay_ms = 0 if spec is None else spec.longest_stay_ms
    if found.refuses(stay_ms):
        read = f"the longest delay is {format_duration(found.max_delay_ms)}{origin}; timers wait {spelled(stay_ms)}"
        yield DELAY_TOO_LONG.at(topic, read=read, cure=cure, fix=fix)
    if tick_ms is not None and found.tick_ms != tick_ms:
        read = f"the tick is {found.tick_ms} ms{origin}; the plan says {tick_ms} ms"
        cure = f'write tick = "{format_duration(found.tick_ms)}" into {target}'
        yield TICK_DIFFERS.at(topic, read=read, cure=cure)


def unacknowledged_findings(spec: TopicSpec, max_unacked: int, origin: str = "") -> Iterator[Finding]:
    """Find a limit on a consumer's unacknowledged messages, if any, too low for timers that it holds until due."""
    if max_unacked == 0 or max_unacked >= ENOUGH_UNACKNOWLEDGED:
        return
    command = "set-max-unacked-messages-per-consumer"
    raised = pulsar_admin("topicPolicies", command, spec.name, "-m", ENOUGH_UNACKNOWLEDGED)
    held = max_unacked // HELD_SHARE
    read = f"maxUnackedMessagesPerConsumer is {max_unacked:,}{origin}; {DEFAULT_MAX_HELD:,} may be held"
    cure = f"give each DelayedConsumer max_held={held}, or {raised}" if held else raised
    yield FEW_UNACKNOWLEDGED.at(spec.name, read=read, cure=cure)


def producer_name_findings(spec: TopicSpec, names: int, broker: Settings | None) -> Iterator[Finding]:
    """Find topics whose broker is about to forget producer names and sequence ids (broker-facts: forgotten-names)."""
    limit = number(broker, "brokerDeduplicationMaxNumberOfProducers", DEFAULT_PRODUCER_NAMES)
    if names >= limit * FULL_SHARE:
        cure = (
            "find the client that keeps opening producers; an unload of the topic lets it forget those that are gone "
            "(not on 4.0.7), or raise brokerDeduplicationMaxNumberOfProducers"
        )
        read = f"{names:,} producers' names are remembered of a partition, of {limit:,}"
        yield NAMES_FULL.at(spec.name, read=read, cure=cure)


def relay_count_findings(spec: TopicSpec, relays: int, target: str = "PLAN") -> Iterator[Finding]:
    """Find tiers read by more relays than useful, if every consumer has a relay of its own."""
    if relays >= MANY:
        cure = (
            f'write relay = "service" in the plan and run two or three of {timewheel_command("relay", "run", target)}, '
            "before the consumers are deployed with it"
        )
        yield MANY_RELAYS.at(spec.name, read=f"{relays} relays read each partition, and one of them works", cure=cure)


def foreign_subscriptions(spec: TopicSpec, subscriptions: Mapping[int, frozenset[str]]) -> Iterator[Finding]:
    """Find foreign subscriptions on a topic of timewheel; on a due topic any subscription is legitimate."""
    if spec.role == "due":
        return
    everyone = {name for names in subscriptions.values() for name in names}
    # Names of readers: of commands at work, and of the log of cancellations, where the client makes them up.
    own = (LOOK_PREFIX, f"{CANCELLATIONS_SUBSCRIPTION}-") if spec.role == "cancellations" else LOOK_PREFIX
    for name in sorted(everyone - set(spec.subscriptions)):
        if not name.startswith(own):
            cure = pulsar_admin("topics", "unsubscribe", "-s", name, spec.name)
            yield FOREIGN_SUBSCRIPTION.at(spec.name, read=f"subscription {name!r} is not timewheel's", cure=cure)


def set_delayed_delivery(topic: str, found: DelayedDelivery) -> str:
    """Return the command that enables delayed delivery without a bound on delays; a tick of whole seconds is kept."""
    seconds, rest_ms = divmod(found.tick_ms, SECOND_MS)
    # Without -t the command sets a tick of a second. Without -md it sets no bound; older versions do not know -md.
    tick = () if rest_ms else ("-t", f"{seconds}s")
    bound = ("-md", "0s") if found.max_delay_ms else ()
    return pulsar_admin("topicPolicies", "set-delayed-delivery", topic, "-e", *tick, *bound)
