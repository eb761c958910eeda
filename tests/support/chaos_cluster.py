"""A play on a cluster: several plans, relays, replicas and loads at once, and faults by node."""

from __future__ import annotations

import random
import threading
from collections import ChainMap, Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tests.support.chaos_audit import where_stored
from tests.support.chaos_cancels import Cancels
from tests.support.chaos_conductor import Disturbance, NotInTime, Post
from tests.support.chaos_ledger import Event, Failed, Handled, now_ms
from tests.support.chaos_load import Sent, Traffic
from tests.support.chaos_stage import SHOWN, Stage
from tests.support.chaos_verdict import Cost, Verdict, costs, first_calls, judge, repeats
from tests.support.chaos_worker import PLAIN
from timewheel.broker.admin import AdminClient
from timewheel.core.names import namespace_of
from timewheel.core.plan import Calendar, Tiered
from timewheel.inspect.doctor.reading import unread_of
from timewheel.testing import LocalCluster, eventually
from timewheel.testing.admin_calls import is_ready, unload_all_namespaces

RELAYS, REPLICAS = 2, 3
CANCELLED = 0.1
ON_TIME_MS = 1_000
READY_TIMEOUT_S = 180.0
RECOVERY_TIMEOUT_S = 120.0  # a place that is not on time again by then is left to the figures
DRAIN_TIMEOUT_S = 60.0  # after the last due time: what has not come then, with all nodes up, is stuck


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults of a cluster by name, each a disturbance that ends with all nodes up."""

    cluster: LocalCluster  # the cluster
    topics: Sequence[str]  # the partitions whose busiest broker is the victim
    session_s: float  # time after which a silent node counts as dead
    away_s: float = 40.0  # how long other nodes stay away

    def by_name(self) -> Mapping[str, Disturbance]:
        """Return all faults."""
        two = ("bookie-1", "bookie-2")
        found: Mapping[str, Callable[[], object]] = {
            "unload": self._unload,
            "move": self._move,
            "split": lambda: self.cluster.split(self.topics[0]),
            "SIGTERM": lambda: self._away(self.busiest(), self.cluster.stop, self.away_s / 2),
            "kill": lambda: self._away(self.busiest(), self.cluster.kill, self.session_s + 15),
            "kill, back at once": lambda: self._away(self.busiest(), self.cluster.kill, 1),
            "freeze": lambda: self._frozen(self.busiest(), self.session_s / 2),
            "freeze past the session": lambda: self._frozen(self.busiest(), self.session_s + 15),
            "bookie killed": lambda: self._away("bookie-1", self.cluster.kill, self.away_s),
            "bookie frozen": lambda: self._frozen("bookie-2", self.away_s / 2),
            "write outage": lambda: self._all_away(two, self.away_s),
            "ZooKeeper frozen": lambda: self._frozen("zookeeper", self.away_s),
            "ZooKeeper killed": lambda: self._away("zookeeper", self.cluster.kill, self.away_s / 4),
            "rolling restart": lambda: self._rolling(None),
            "upgrade to 4.2.4": lambda: self._rolling("4.2.4"),
        }
        return {name: partial(_make, fault) for name, fault in found.items()}

    def busiest(self) -> str:
        """Return the broker that serves most of the partitions."""
        owners = Counter(owner for topic in self.topics if (owner := self.cluster.owner(topic)) is not None)
        return owners.most_common(1)[0][0]

    def _unload(self) -> None:
        unload_all_namespaces(next(url for url in self.cluster.admin_urls.values() if is_ready(url)))

    def _move(self) -> None:
        for topic in self.topics[:2]:
            owner = self.cluster.owner(topic)
            self.cluster.move(topic, to=next(name for name in self.cluster.admin_urls if name != owner))

    def _away(self, node: str, end: Callable[[str], None], for_s: float) -> None:
        end(node)
        _wait(for_s)
        self.cluster.start(node)

    def _all_away(self, nodes: Sequence[str], for_s: float) -> None:
        for node in nodes:
            self.cluster.kill(node)
        _wait(for_s)
        for node in nodes:
            self.cluster.start(node)

    def _frozen(self, node: str, for_s: float) -> None:
        self.cluster.freeze(node)
        _wait(for_s)
        self.cluster.thaw(node)
        if node in self.cluster.admin_urls:
            # A broker ends itself when it learns that its session is lost.
            eventually(lambda: self.cluster.pid(node) is None or is_ready(self.cluster.admin_urls[node]), 60)
            self.cluster.start(node)

    def _rolling(self, version: str | None) -> None:
        """Restart brokers, or all nodes with another version, in the order of Pulsar's upgrade guide."""
        nodes = self.cluster.admin_urls if version is None else sorted(self.cluster.nodes, key=_in_order_of_upgrade)
        for node in nodes:
            self.cluster.restart(node, version=version)


def _make(fault: Callable[[], object], _: random.Random) -> None:
    fault()


def _in_order_of_upgrade(node: str) -> tuple[int, str]:
    return ("zookeeper", "bookie", "broker").index(node.partition("-")[0]), node


def _killed(post: Post) -> None:
    post.kill()
    post.start()


def _stood_still(post: Post, choices: random.Random) -> None:
    post.stop()
    _wait(choices.choice((2, 20, 70)))  # the last is longer than a broker waits for a client
    post.go_on()


def _wait(for_s: float) -> None:
    threading.Event().wait(for_s)


class ClusterPlay:
    """Plans that live on a cluster: two relays, three replicas of a service, a load for each plan.

    Args:
        stages: A stage for each plan, by the name that its timers' ids begin with.
        faults: Of the cluster.
        traffic: Of each plan.
        inbox: The plans whose replicas share an inbox.
        send_timeout_ms: The producers' send time-out.
        job: Further fields of the replicas' jobs.

    Attributes:
        on: A stage, for all that is shared.
        unloaded: Partitions that were unloaded since the broker read them no more.
    """

    def __init__(
        self,
        stages: Mapping[str, Stage],
        faults: Faults,
        traffic: Traffic,
        *,
        inbox: Sequence[str] = (),
        send_timeout_ms: int = 30_000,
        **job: Any,
    ) -> None:
        self._stages, self._cluster = dict(stages), faults.cluster
        self.on = next(iter(stages.values()))
        files = {name: str(stage.plan_file) for name, stage in stages.items()}
        relayed = tuple(files[name] for name, on in stages.items() if not isinstance(on.plan.scheme, Calendar))
        urls = list(self._cluster.admin_urls.values())
        self._relays = [
            self.on.service(f"relay-{number}", admin_url=urls[number % len(urls)], plans=relayed)
            for number in range(RELAYS)
        ]
        served: dict[str, Any] = {
            "plans": tuple(files.values()),
            "plain": relayed,  # a plain client does not follow a calendar
            "inbox": tuple(files[name] for name in inbox),
            "fails": 5,
            **job,
        }
        self._replicas = [self.on.consumer(f"replica-{number}", **served) for number in range(REPLICAS)]
        for relay in self._relays:
            relay.start()
        eventually(lambda: all(relay.is_ready for relay in self._relays), READY_TIMEOUT_S, message="relays ready")
        for replica in self._replicas:  # on loaded topics: a service ends if it cannot begin, as one of ours does
            replica.start()
        self._cancels = {
            name: Cancels(on.client, on.plan, on.seed, share=CANCELLED)
            for name, on in stages.items()
            if on.plan.cancel is not None
        }
        self._loads = {
            name: on.load(
                traffic,
                name=f"{name}-",
                persists=True,
                send_timeout_millis=send_timeout_ms,
                stored=self._cancels.get(name, lambda _timer: None),
            )
            for name, on in stages.items()
        }
        self.conductor = self.on.conductor(
            list(self._loads.values()),
            steady=[*self._relays, *self._replicas],
            disturbances={**faults.by_name(), **self._of_services()},
        )
        self._places = {f"{name}-{part}" for name, on in stages.items() for part in range(on.plan.partitions)}
        self._stuck: set[str] = set()
        self.unloaded = 0
        self._await_on_time(READY_TIMEOUT_S, "all partitions on time")

    def _of_services(self) -> Mapping[str, Disturbance]:
        """Return faults of relays and replicas, deployments and a change of all plans that have tiers."""
        return {
            "relay killed": lambda choices: _killed(choices.choice(self._relays)),
            "replica killed": lambda choices: _killed(choices.choice(self._replicas)),
            "relay stands still": lambda choices: _stood_still(choices.choice(self._relays), choices),
            "replica stands still": lambda choices: _stood_still(choices.choice(self._replicas), choices),
            "deployment": lambda _: self._deploy(),
            "plans change": lambda _: self._change_plans(),
        }

    def _deploy(self) -> None:
        for relay in self._relays:
            relay.end()
            relay.start()
            eventually(lambda: relay.is_ready, READY_TIMEOUT_S, message="a relay ready")  # noqa: B023 - awaited here
        self.restart_replicas()

    def _change_plans(self) -> None:
        for stage in self._stages.values():
            plan = stage.plan
            if isinstance(plan.scheme, Tiered):
                scheme = replace(plan.scheme, window_ms=plan.scheme.window_ms + 500)
                stage.change(replace(plan, scheme=scheme, revision=plan.revision + 1))
        self._deploy()

    @property
    def sent(self) -> dict[str, Sent]:
        """All timers but those that a cancellation kept back, or may have."""
        handled = self.conductor.handled
        kept_back = {name for cancels in self._cancels.values() for name in cancels.meant - handled}
        return {
            name: one for load in self._loads.values() for name, one in list(load.sent.items()) if name not in kept_back
        }

    @property
    def certain_yet_handled(self) -> set[str]:
        """Timers that were handled although their cancellation was certain."""
        return {name for cancels in self._cancels.values() for name in cancels.certain} & self.conductor.handled

    def make(self, name: str) -> None:
        """Make a fault, and play on until each partition is on time again."""
        self.conductor.make(name)
        with suppress(NotInTime):
            self._await_on_time(RECOVERY_TIMEOUT_S, f"all partitions on time after {name}")

    def finish(self) -> None:
        """Stop the loads and wait for all timers; what is stuck comes, or is lost, when the replicas start again."""
        for load in self._loads.values():
            load.stop()
        for cancels in self._cancels.values():
            cancels.stop()
        with suppress(NotInTime):
            self.conductor.calm(lambda: not self._missing(), self._rest_s() + DRAIN_TIMEOUT_S, "all timers handled")
        while self._missing() and self._unload_unread():  # a slot of a wheel has no reader between two visits
            pass
        self._stuck = self._missing()
        if self._stuck:
            self.on.say(f"{len(self._stuck)} timers are stuck; first: {self._whereabouts()}")
            self.restart_replicas()
            with suppress(NotInTime):
                self.conductor.calm(lambda: not self._missing(), DRAIN_TIMEOUT_S, "stuck timers handled")

    def verdict(self) -> Verdict:
        """Judge all plans together."""
        self.conductor.observe()
        return judge(self.sent, self._calls(), stuck=self._stuck)

    def costs(self, *, plain: bool = False) -> Iterator[Cost]:
        """Yield the cost of each fault, to our consumers or to plain clients."""
        return costs(self.sent, self._calls(plain=plain), self.conductor.faults)

    def repeats(self, *, plain: bool = False) -> Counter[tuple[str, str]]:
        """Count by plan and cause what our consumers, or plain clients on the same topics, handled again."""
        again = repeats(self.sent, self._calls(plain=plain))
        return Counter((one.timer_id.rpartition("-")[0], one.cause) for one in again)

    def _calls(self, *, plain: bool = False) -> list[Event]:
        calls = [event for event in self.conductor.events if isinstance(event, Handled | Failed)]
        prefix = f"{PLAIN}-"
        if plain:
            return [
                event._replace(timer_id=event.timer_id.removeprefix(prefix))
                for event in calls
                if event.timer_id.startswith(prefix)
            ]
        return [event for event in calls if not event.timer_id.startswith(prefix)]

    def _await_on_time(self, timeout_s: float, message: str) -> None:
        begun_ms, begun = now_ms(), len(self.conductor.events)
        sent = ChainMap(*(load.sent for load in self._loads.values()))  # it grows, and is too long to copy each time

        def is_on_time() -> bool:
            recent = first_calls(sent, self.conductor.events[begun:])
            return self._places <= {
                call.place for call in recent if call.could_ms >= begun_ms and call.late_ms <= ON_TIME_MS
            }

        self.conductor.calm(is_on_time, timeout_s, message)

    def _unload_unread(self) -> bool:
        """Unload what the broker reads no more, as the doctor advises (broker-facts: reads-that-stop)."""
        before = self.unloaded
        with AdminClient(self._cluster.admin_url) as admin:
            for due in {stage.plan.due_topic for stage in self._stages.values()}:
                for name in admin.topics.list(namespace_of(due)):
                    if name.startswith(due) and unread_of(
                        admin.topics.stats(name, clients=True), admin.topics.internal_stats(name)
                    ):
                        self.on.say(f"the broker reads no more: {name}")
                        self._cluster.unload(name)
                        self.unloaded += 1
        with suppress(NotInTime):
            self.conductor.calm(lambda: not self._missing(), DRAIN_TIMEOUT_S, "what was read no more handled")
        return self.unloaded > before

    def _missing(self) -> set[str]:
        return {name for name, one in self.sent.items() if one.confirmed} - self.conductor.handled

    def _rest_s(self) -> float:
        return max(0, max(one.due_ms for one in self.sent.values()) - now_ms()) / 1000

    def restart_replicas(self, **job: Any) -> None:
        """Restart the replicas, one after another, with changes of their jobs."""
        for replica in self._replicas:
            with suppress(TimeoutError):
                replica.end()
            replica.kill()
            replica.start(**job)

    def _whereabouts(self) -> str:
        lines = []
        for name, stage in self._stages.items():
            missing = sorted(timer for timer in self._stuck if timer.startswith(f"{name}-"))[:SHOWN]
            if missing and not isinstance(stage.plan.scheme, Calendar):
                lines += [f"waiting: {stage.backlogs()}", *where_stored(stage.client, stage.plan, missing)]
        return "\n".join(lines)
