"""The stage of a chaos test: a plan on a broker, its posts, its load, and the verdict at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol, Self

import pulsar

from tests.support.chaos_audit import AUDIT, count_copies, where_stored
from tests.support.chaos_conductor import Conductor, NotInTime, Post
from tests.support.chaos_ledger import Hop, now_ms
from tests.support.chaos_load import Load, Traffic
from tests.support.chaos_verdict import Verdict, judge
from tests.support.chaos_worker import Job
from tests.support.checkout import ROOT
from tests.support.wrong_hops import RulesName
from timewheel.broker.admin.client import AdminClient
from timewheel.core.plan import Calendar, Plan
from timewheel.core.planfile import save_plan
from timewheel.core.topology import topology
from timewheel.provision.provisioning import ensure
from timewheel.testing.process import OwnedProcess

BUSINESS = "billing"
"""The plan's other subscription, `chaos_audit.AUDIT`, has no consumer."""
QUICK_TAKEOVER = {"activeConsumerFailoverDelayTimeMillis": "100"}
"""A broker setting, 0.1 s instead of 1 s: a relay spends its short life on forwarding, where a kill has an effect, not
on waiting to become the active consumer, and a joining relay takes over in the middle of the other relay's prefetch
(broker-facts: false-beginning).
"""
SHOWN = 20
"""Number of missing timers that a failed test names."""


class _Broker(Protocol):
    @property
    def service_url(self) -> str: ...
    @property
    def admin_url(self) -> str: ...


class Stage:
    """Use it as a context manager.

    Args:
        broker: The broker.
        plan: The plan; with the subscriptions `BUSINESS` and `AUDIT`.
        folder: Folder of ledgers, logs and the plan file.
        seed: Seed of all random choices.
        say: Shows a line of the test's report.
    """

    def __init__(
        self, broker: _Broker, plan: Plan, folder: Path, seed: int, say: Callable[[object], None] = print
    ) -> None:
        assert set(plan.subscriptions) == {BUSINESS, AUDIT}
        self.broker = broker
        self.plan = plan
        self.plan_file = folder / "plan.toml"
        self.seed = seed
        self.say = say
        self._folder = folder
        self._stack = ExitStack()
        self.client: Any = None
        self.admin: AdminClient

    def __enter__(self) -> Self:
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self.client = pulsar.Client(self.broker.service_url, logger=quiet, operation_timeout_seconds=20)
        self._stack.callback(self.client.close)
        self.admin = self._stack.enter_context(AdminClient(self.broker.admin_url))
        ensure(self.admin, self.plan, now_ms=now_ms())
        save_plan(self.plan, self.plan_file)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def relay(self, name: str, *, hop_rules: RulesName = "right", lists: bool = False, **job: Any) -> Post:
        """Make a post for relays; relays that can list topics also drain topics of earlier plans."""
        admin_url = self.broker.admin_url if lists else ""
        return self._post(
            Job(role="relay", name=name, hop_rules=hop_rules, admin_url=admin_url, **self._common(), **job)
        )

    def service(self, name: str) -> Post:
        """Make a post for `timewheel relay run`."""
        return self._post(Job(role="service", name=name, admin_url=self.broker.admin_url, **self._common()))

    def consumer(self, name: str, *, embedded: bool = False, **job: Any) -> Post:
        """Make a post for consumers of `BUSINESS`."""
        common = self._common()
        return self._post(Job(role="consumer", name=name, embedded=embedded, subscription=BUSINESS, **common, **job))

    def load(self, traffic: Traffic, **options: Any) -> Load:
        """Start a load; it is stopped with the stage at the latest."""
        load = Load(self.client, self.plan, traffic, self.seed, **options)
        load.start()
        self._stack.callback(load.stop)
        return load

    def conductor(self, load: Load, *, steady: Sequence[Post] = (), **options: Any) -> Conductor:
        """Return a conductor of this load; without victims it kills nothing."""
        options.setdefault("victims", {})
        return Conductor(self.seed, steady=steady, confirmed=lambda: load.confirmed_count, **options)

    def change(self, plan: Plan) -> None:
        """Change the plan for all processes that start from now on."""
        ensure(self.admin, plan, now_ms=now_ms(), create_namespaces=True, ignore_former_topics=True)
        save_plan(plan, self.plan_file)
        self.plan = plan
        if isinstance(plan.scheme, Calendar):
            self._keep_rolling()

    def _keep_rolling(self) -> None:
        """Make a calendar's topics ahead while the stage lasts: a relay waits for missing topics."""
        roller = OwnedProcess(log=self._folder / "roller.log")
        self._stack.callback(roller.close)
        command = ["-m", "timewheel", "topics", "roll", str(self.plan_file), "--watch"]
        roller.start([sys.executable, *command, "--admin-url", self.broker.admin_url], cwd=ROOT)

    def drain(self, conductor: Conductor, loads: Load | Sequence[Load], timeout_s: float) -> None:
        """Stop the load, let all processes live, and wait until every confirmed timer is handled.

        Also returns after ``timeout_s`` seconds: the verdict counts missing timers.
        """
        every = [loads] if isinstance(loads, Load) else loads
        for load in every:
            load.stop()
        confirmed = {timer_id for load in every for timer_id in load.confirmed()}
        with suppress(NotInTime):
            conductor.calm(lambda: confirmed <= conductor.handled, timeout_s, "all confirmed timers handled")

    def verdict(self, conductor: Conductor, load: Load) -> Verdict:
        """Judge the ledgers and the due topic."""
        conductor.observe()
        hops = (event for event in conductor.events if isinstance(event, Hop))
        return judge(load.sent, conductor.events, count_copies(self.client, self.plan, hops, load.sends()))

    def shown_verdict(self, conductor: Conductor, load: Load) -> Verdict:
        """Judge, and show what was done, the verdict, and where missing timers are."""
        verdict = self.verdict(conductor, load)
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
                for subscription, one in self.admin.topics.stats(name).subscriptions.items():
                    if one.backlog and subscription != AUDIT:
                        waiting[f"{name.rsplit('/', 1)[1]} {subscription}"] = one.backlog
        return waiting

    def _common(self) -> dict[str, Any]:
        return {"service_url": self.broker.service_url, "plan": str(self.plan_file), "ledger": ""}

    def _post(self, job: Job) -> Post:
        post = Post(job, self._folder)
        self._stack.callback(post.close)
        return post
