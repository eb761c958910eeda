"""The stage of a chaos test: a plan on a broker, its posts, its load, and the verdict at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import pulsar

from tests.conftest import Evidence
from tests.support.chaos_audit import AUDIT, count_copies, where_stored
from tests.support.chaos_cancels import Cancels
from tests.support.chaos_conductor import Conductor, NotInTime, Post
from tests.support.chaos_ledger import Hop, now_ms
from tests.support.chaos_load import Load, Traffic
from tests.support.chaos_verdict import Verdict, judge
from tests.support.chaos_worker import Fuse, Job, Role
from tests.support.checkout import ROOT
from timewheel.broker.admin.client import AdminClient
from timewheel.core.plan import Calendar, Plan
from timewheel.core.planfile import save_plan
from timewheel.core.topology import topology
from timewheel.provision.provisioning import ensure
from timewheel.testing import Broker
from timewheel.testing.process import OwnedProcess

BUSINESS = "billing"  # the plan's other subscription, `chaos_audit.AUDIT`, has no consumer
QUICK_TAKEOVER = {"activeConsumerFailoverDelayTimeMillis": "100"}
"""A broker setting, 0.1 s instead of 1 s: a relay spends its short life on forwarding, where a kill has an effect, not
on waiting to become the active consumer, and a joining relay takes over in the middle of the other relay's prefetch
(broker-facts: false-beginning).
"""
SHOWN = 20  # number of missing timers that a failed test names


class Stage:
    """Use it as a context manager.

    Args:
        broker: The broker.
        plan: The plan; `consumer` needs the subscription `BUSINESS`, the count of stored copies `AUDIT`.
        folder: Folder of ledgers, logs and the plan file.
        seed: Seed of all random choices.
        say: Shows a line of the test's report.
        evidence: Takes the figures of a proof.
    """

    def __init__(
        self, broker: Broker, plan: Plan, folder: Path, seed: int, say: Callable[[object], None], evidence: Evidence
    ) -> None:
        self.broker, self.plan, self.seed, self.say = broker, plan, seed, say
        self.evidence = partial(evidence, seed=seed)
        self.plan_file = folder / "plan.toml"
        self._folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._folder.mkdir(exist_ok=True)
        self.client = self.new_client(timeout_s=20)
        self.admin = self._stack.enter_context(AdminClient(self.broker.admin_url, retry_for_s=60))
        ensure(self.admin, self.plan, now_ms=now_ms())
        save_plan(self.plan, self.plan_file)
        self._keep_rolling()
        return self

    def new_client(self, timeout_s: int = 60) -> Any:
        """Open a further client; it is closed with the stage."""
        log = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(self._folder / "client.log"))
        client = pulsar.Client(self.broker.service_url, logger=log, operation_timeout_seconds=timeout_s)
        self._stack.callback(client.close)
        return client

    def close(self) -> None:
        """End all processes and the load; a second call does nothing."""
        self._stack.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def relay(self, name: str, *, lists: bool = False, **job: Any) -> Post:
        """Make a post for relays; relays that can list topics also drain topics of earlier plans."""
        return self._job("relay", name, admin_url=self.broker.admin_url if lists else "", **job)

    def service(self, name: str, *options: str, **job: Any) -> Post:
        """Make a post for `timewheel relay run`, with further options of the command."""
        return self._job("service", name, **{"admin_url": self.broker.admin_url, "options": options, **job})

    def consumer(self, name: str, *, subscription: str = BUSINESS, **job: Any) -> Post:
        """Make a post for consumers."""
        return self._job("consumer", name, subscription=subscription, **job)

    def load(self, traffic: Traffic, **options: Any) -> Load:
        """Start a load; it is stopped with the stage at the latest."""
        load = Load(self.client, self.plan, traffic, self.seed, **options)
        load.start()
        self._stack.callback(load.stop)
        return load

    def conductor(self, loads: Load | Sequence[Load], *, steady: Sequence[Post] = (), **options: Any) -> Conductor:
        """Return a conductor of one load, or of several, which may grow; without victims it kills nothing."""

        def confirmed() -> int:
            return sum(load.confirmed_count for load in ([loads] if isinstance(loads, Load) else loads))

        return Conductor(self.seed, **{"victims": {}, "steady": steady, "confirmed": confirmed, **options})

    def change(self, plan: Plan) -> None:
        """Change the plan for all processes that start from now on."""
        ensure(self.admin, plan, now_ms=now_ms(), create_namespaces=True, ignore_former_topics=True)
        save_plan(plan, self.plan_file)
        self.plan = plan
        self._keep_rolling()

    def _keep_rolling(self) -> None:
        """Make a calendar's topics ahead while the stage lasts: a relay waits for missing topics."""
        if not isinstance(self.plan.scheme, Calendar):
            return
        roller = OwnedProcess(log=self._folder / "roller.log")
        self._stack.callback(roller.close)
        command = ["-m", "timewheel", "topics", "roll", str(self.plan_file), "--watch"]
        roller.start([sys.executable, *command, "--admin-url", self.broker.admin_url], cwd=ROOT)

    def drain(
        self, conductor: Conductor, loads: Load | Sequence[Load], timeout_s: float, cancels: Cancels | None = None
    ) -> None:
        """Stop the load, let all processes live, and wait until every confirmed timer is handled.

        Also returns after ``timeout_s`` seconds: the verdict counts missing timers. With cancels: all timers that
        nobody meant to cancel, in time, and then until all is acknowledged.
        """
        every = [loads] if isinstance(loads, Load) else loads
        for load in every:
            load.stop()
        wanted = {timer_id for load in every for timer_id in load.confirmed()}
        if cancels is None:
            with suppress(NotInTime):
                conductor.calm(lambda: wanted <= conductor.handled, timeout_s, "all confirmed timers handled")
            return
        cancels.stop()
        wanted -= cancels.meant
        conductor.calm(lambda: wanted <= conductor.handled, timeout_s, "all timers that were not cancelled handled")
        # And what is left of the others would have come by now: the last due time is over.
        business = f" {BUSINESS}"
        conductor.calm(lambda: not any(business in place for place in self.backlogs()), timeout_s, "all acknowledged")

    def drain_all(self, conductor: Conductor, load: Load, timeout_s: float, *, but: str | None = None) -> None:
        """Wait for the last due time, and until nothing waits, except on the subscription ``but``."""
        last_due_ms = max(sent.due_ms for sent in load.sent.values())
        conductor.calm(
            lambda: now_ms() > last_due_ms and all(place.endswith(f" {but}") for place in self.backlogs()),
            timeout_s,
            "all topics drained",
        )

    def verdict(self, conductor: Conductor, load: Load, cancels: Cancels | None = None) -> Verdict:
        """Judge the ledgers and the due topic, without the timers that a cancel has, or may have, kept back."""
        conductor.observe()
        kept_back = set() if cancels is None else cancels.meant - conductor.handled
        sent = {timer_id: one for timer_id, one in load.sent.items() if timer_id not in kept_back}
        hops = (event for event in conductor.events if isinstance(event, Hop))
        return judge(sent, conductor.events, count_copies(self.client, self.plan, hops, load.sends()))

    def shown_verdict(self, conductor: Conductor, load: Load, cancels: Cancels | None = None) -> Verdict:
        """Judge, and show what was done, the verdict, and where missing timers are."""
        verdict = self.verdict(conductor, load, cancels)
        self.say(conductor)
        self.say(verdict)
        if verdict.totals.lost:
            self.say(self.whereabouts(conductor, load))
        return verdict

    def whereabouts(self, conductor: Conductor, load: Load) -> str:
        """Return the stored copies of the first missing timers, and all backlogs: for the message of a failed test."""
        missing = sorted(load.confirmed() - conductor.handled)
        lines = [f"{len(missing)} timers missing; waiting: {self.backlogs() or 'nowhere'}"]
        lines += [f"{timer_id} due {load.sent[timer_id].due_ms}" for timer_id in missing[:SHOWN]]
        return "\n".join([*lines, *where_stored(self.client, self.plan, missing[:SHOWN])])

    def backlogs(self) -> dict[str, int]:
        """Return the waiting entries by partition and subscription, except those of `AUDIT`."""
        waiting: dict[str, int] = {}
        for spec in topology(self.plan, now_ms()).topics:
            for name in spec.parts:
                for subscription, one in self.admin.topics.stats(name, precise_backlog=True).subscriptions.items():
                    if one.backlog and subscription != AUDIT:
                        waiting[f"{name.rsplit('/', 1)[1]} {subscription}"] = one.backlog
        return waiting

    def _job(self, role: Role, name: str, **job: Any) -> Post:
        given = {"plans": (str(self.plan_file),), **job}
        whole = Job(role=role, name=name, service_url=self.broker.service_url, ledger="", **given)

        def command(ledger: Path, fuse: Fuse | None, **changes: Any) -> Sequence[str]:
            return replace(whole, ledger=str(ledger), fuse=fuse, **changes).arguments()

        return self.post(name, command)

    def post(self, name: str, command: Callable[..., Sequence[str]]) -> Post:
        """Make a post for any command, which is closed with the stage."""
        post = Post(name, command, self._folder)
        self._stack.callback(post.close)
        return post
