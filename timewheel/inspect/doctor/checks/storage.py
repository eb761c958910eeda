"""Checks of storage: copies of each entry, lifetime of ledgers, and limits on message size."""

from __future__ import annotations

from collections.abc import Iterator

from timewheel.broker.admin.policies import MAX_MESSAGE_BYTES, PERSISTENCE, Persistence
from timewheel.core.durations import DAY_MS, MINUTE_MS, spelled
from timewheel.core.escapes import pulsar_admin
from timewheel.core.plurals import counted
from timewheel.inspect.doctor.check import Check
from timewheel.inspect.doctor.finding import Finding, Kind, Severity
from timewheel.inspect.doctor.seen import Seen, SeenTopic, Source
from timewheel.inspect.doctor.settings import InForce, broker_command, in_force, number

ONE_COPY = Kind(
    slug="one-copy",
    severity=Severity.ERROR,
    why="Each timer lies on one bookie only, for days: if that disk goes, the timers are gone.",
    do="Write two copies or more.",
)
ONE_COPY_PERHAPS = Kind(
    slug="one-copy-perhaps",
    severity=Severity.WARNING,
    why="Each timer lies on one bookie only, for days; whether there are more bookies could not be seen.",
    do="If there are more bookies, write two copies or more.",
)
ONE_BOOKIE = Kind(
    slug="one-bookie",
    severity=Severity.INFO,
    why="All timers lie on the disk of one bookie, as in a standalone Pulsar: if that goes, the timers are gone.",
    do="Run three bookies, and write two copies or more.",
)
ONE_CONFIRMATION = Kind(
    slug="one-confirmation",
    severity=Severity.WARNING,
    why="A send is confirmed after one bookie has it: if that is lost before the copy is made, so are the last timers.",
    do="Wait for two copies or more.",
)
TOO_FEW_BOOKIES = Kind(
    slug="too-few-bookies",
    severity=Severity.ERROR,
    why="A ledger needs more bookies than there are, so that nothing can be written once the present one is full.",
    do="Restore the missing bookies, or require fewer.",
)
ENDLESS_LEDGERS = Kind(
    slug="endless-ledgers",
    severity=Severity.WARNING,
    why="Disk is freed by whole ledgers: a ledger that is open for longer than timers wait keeps all handled timers.",
    do="Let ledgers end after some hours.",
)
MESSAGE_TOO_LARGE = Kind(
    slug="message-size-differs",
    severity=Severity.ERROR,
    why="A timer that another topic of the plan has taken may be refused by this one: it never leaves that topic.",
    do="Give all topics of the plan the same maximum size.",
)
USUAL_ROLLOVER_MIN = 240


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
        read += f"; {counted(seen.bookies, 'bookie')}"
    if seen.bookies is not None and value.ensemble > seen.bookies:
        fewer = Persistence(ensemble=seen.bookies, write_quorum=seen.bookies, ack_quorum=seen.bookies)
        yield Finding(kind=TOO_FEW_BOOKIES, subject=found.subject, read=read, cure=_command(topic, found, fewer))
    elif seen.bookies == 1:
        cure = "run three bookies, then: " + _command(
            topic, found, Persistence(ensemble=3, write_quorum=2, ack_quorum=2)
        )
        yield Finding(kind=ONE_BOOKIE, subject=found.subject, read=read, cure=cure)
    elif value.write_quorum == 1 or value.ack_quorum == 1:
        least = 2
        more = Persistence(
            ensemble=max(value.ensemble, least), write_quorum=max(value.write_quorum, least), ack_quorum=least
        )
        copies = ONE_COPY if seen.bookies is not None else ONE_COPY_PERHAPS
        kind = copies if value.write_quorum == 1 else ONE_CONFIRMATION
        yield Finding(kind=kind, subject=found.subject, read=read, cure=_command(topic, found, more))


def _command(topic: SeenTopic, found: InForce[Persistence], value: Persistence) -> str:
    place = ("topicPolicies", topic.name) if found.place == "topic" else ("namespaces", topic.namespace)
    quorums = ("-e", value.ensemble, "-w", value.write_quorum, "-a", value.ack_quorum)
    return pulsar_admin(place[0], "set-persistence", place[1], *quorums, "-r", f"{found.value.mark_deletes_per_s:g}")


def _ledgers(seen: Seen) -> Iterator[Finding]:
    name = "managedLedgerMaxLedgerRolloverTimeMinutes"
    age_min = number(seen.settings, name, USUAL_ROLLOVER_MIN)
    stays_ms = [
        topic.spec.longest_stay_ms for topic in seen.topics if topic.spec is not None and topic.step is not None
    ]
    if not stays_ms or 0 < age_min * MINUTE_MS <= max(DAY_MS, *stays_ms):
        return
    read = f"{name} is {age_min}" + ("" if age_min > 0 else ": never")
    yield Finding(
        kind=ENDLESS_LEDGERS,
        subject="the broker",
        read=f"{read}; timers wait up to {spelled(max(stays_ms))}",
        cure=broker_command(seen, name, USUAL_ROLLOVER_MIN),
    )


def _sizes(seen: Seen) -> Iterator[Finding]:
    own = {topic.name: topic.state.policies.get(MAX_MESSAGE_BYTES) for topic in seen.topics if topic.exists}
    largest = number(seen.settings, "maxMessageSize", 5 * 1024 * 1024)
    most = max((largest if size is None else size for size in own.values()), default=largest)
    for name, size in own.items():
        if size is not None and size < most:
            yield Finding(
                kind=MESSAGE_TOO_LARGE,
                subject=name,
                read=f"maxMessageSize is {size:,} bytes, set on the topic; others of the plan take {most:,}",
                cure=pulsar_admin("topicPolicies", "remove-max-message-size", name),
            )


STORAGE = (
    Check(
        kinds=(ONE_COPY, ONE_COPY_PERHAPS, ONE_BOOKIE, ONE_CONFIRMATION, TOO_FEW_BOOKIES),
        inspect=_copies,
        needs=frozenset({Source.NAMESPACES, Source.POLICIES, Source.BOOKIES}),
        of_any_topic=True,
    ),
    Check(kinds=(ENDLESS_LEDGERS,), inspect=_ledgers, needs=frozenset({Source.SETTINGS})),
    Check(kinds=(MESSAGE_TOO_LARGE,), inspect=_sizes, needs=frozenset({Source.POLICIES})),
)
