"""A run of the demo, from the broker's start to the verdict: topics, players, sampler, unload, trial of the checker.

Its progress is a line, rewritten in place on a terminal, and written from time to time elsewhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from timewheel.broker.admin.client import AdminClient
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.errors import AdminError, TimewheelError
from timewheel.core.escapes import visible
from timewheel.core.names import partition_topic
from timewheel.core.plan import Calendar, Plan
from timewheel.core.topology import topology
from timewheel.demo.player import Players, connect
from timewheel.demo.results import BrokerFacts, Files, Result, measure, save
from timewheel.demo.sabotage import CheckerTrial, try_checker
from timewheel.demo.sampling import Gauge, Sampler
from timewheel.demo.settings import DEFAULT_LIMIT, SchemeName, Settings
from timewheel.demo.verdict import judge
from timewheel.inspect.profile import profile_of
from timewheel.provision.provisioning import ensure
from timewheel.shadow.desired_state import State as ShadowState
from timewheel.shadow.desired_state import desired_for
from timewheel.testing import LocalPulsar
from timewheel.testing.evidence.journal import now_ms

PLAIN_PERIOD_S = 15.0  # interval of progress lines without a terminal
REFRESH_PER_S = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of the run: the time to the verdict, the ranges that the broker keeps, the gaps by scheme."""

    phase: str
    left_s: float
    limit: int = 0
    gaps: Mapping[SchemeName, int] = field(default_factory=dict)


def progress_line(state: State) -> str:
    """Format the state as a line that fits a terminal of 80 columns."""
    native = [f"native {gaps:,}" for scheme, gaps in state.gaps.items() if scheme == "native"]
    others = [gaps for scheme, gaps in state.gaps.items() if scheme != "native"]
    parts = [*native, *([f"timewheel at most {max(others):,}"] if others else [])]
    counted = f"  gaps now: {', '.join(parts)}, kept {state.limit:,}" if parts else ""
    return f"[{state.left_s:4.0f} s left] {state.phase}{counted}"


def screen_for(console: Console) -> PlainScreen:
    """Return a screen that rewrites a line on a terminal, and elsewhere writes lines from time to time."""
    return TerminalScreen(console) if console.is_terminal else PlainScreen(console)


class PlainScreen:
    """Plain lines, for logs and pipes: every line, and progress from time to time."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_s = 0.0

    def say(self, line: str) -> None:
        self._console.print(visible(line), highlight=False, markup=False, soft_wrap=True)

    def show(self, state: State) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + PLAIN_PERIOD_S
            self.say(progress_line(state))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class TerminalScreen(PlainScreen):
    """A line that is rewritten in place; other lines scroll above it."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live = Live(console=console, refresh_per_second=REFRESH_PER_S, transient=True)

    def show(self, state: State) -> None:
        self._live.update(Text(visible(progress_line(state)), no_wrap=True, overflow="ellipsis"))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


SAMPLES_PER_DAY = 10  # target, so that at least 8 remain while every topic is unloaded
VERDICT_S = 3.0  # estimated time from the last timer to the verdict
CALENDAR_AHEAD_MS = 20_000  # allowed delay of the end of a calendar's burst on a busy machine
LATEST_UNLOAD = 0.75
"""Part of the first scheme's play after which the topics are unloaded even if a busy machine still publishes."""
UNLOAD_ATTEMPTS = 3  # a busy broker may answer an unload with an error (500), and continue it all the same
AFTER_LAST_DUE_MS = 2_500  # least time after the last due time for late timers and redeliveries
GRACE_MS = 90_000
"""Time without another handled timer, after all were due, after which missing timers count as lost. A client that lost
its connection waits for up to a minute before it tries again."""
DONE_TIMEOUT_S = 300.0
TRIAL_TIMEOUT_S = 600.0
READY_TIMEOUT_S = 600.0
"""Time-outs of steps that take seconds on an idle machine: a busy machine is no reason to end without a verdict."""
TURN_S = 0.1


class DemoFailed(TimewheelError, RuntimeError):
    """The run could not be completed; no verdict."""


@dataclass(eq=False)
class Stage:
    """The running broker with everything that acts on it."""

    _settings: Settings
    _screen: PlainScreen
    _crew: Players
    _admin: AdminClient
    _facts: BrokerFacts
    _workers: ThreadPoolExecutor
    _then_s: float

    def __post_init__(self) -> None:
        self._gauges: dict[SchemeName, Gauge] = {}
        self._sampler = Sampler(self._admin, self._settings.day_ms // SAMPLES_PER_DAY)
        self._began_ms = now_ms()
        self._unloaded_ms = 0
        self._unloads_ms: dict[SchemeName, int] = {}
        self._trial: CheckerTrial | None = None
        self._trial_client: Any = None
        self._has_ended = threading.Event()
        self._asked_ms: dict[SchemeName, int] = {}
        self._moved: dict[SchemeName, tuple[int, int]] = {}  # timers handled, and time of the last

    def __enter__(self) -> Self:
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._sampler.stop()
        # The trial may still run, and would wait for a broker that is gone: its relays, and each call of its client.
        self._has_ended.set()
        if self._trial_client is not None:
            self._trial_client.close()
        self._workers.shutdown(wait=False, cancel_futures=True)

    def play(self) -> None:
        # A shadow's start takes longest.
        for scheme in sorted(self._settings.schemes, key=lambda scheme: scheme != "shadow"):
            self._prepare(scheme)
        for scheme in self._settings.schemes:
            self._begin(scheme)
        self._until("playing", self._all_published)
        url, out = self._facts.service_url, self._settings.out
        self._trial_client = connect(url, out)
        tried = self._workers.submit(lambda: try_checker(self._trial_client, url, out, self._has_ended))
        self._until("playing", lambda: now_ms() >= self._began_ms + self._settings.unload_offset_ms)
        self._unloaded_ms = now_ms()
        unloaded = self._workers.submit(self._unload_all)
        self._until("unloading every topic", unloaded.done)
        unloaded.result()
        self._screen.say(
            f"unloaded {sum(len(gauge.topics) for gauge in self._gauges.values())} topics "
            f"in {(now_ms() - self._unloaded_ms) / 1000:.1f} s"
        )
        self._until("playing", tried.done, timeout_s=TRIAL_TIMEOUT_S)
        self._trial = tried.result()
        self._until("playing", self._all_finished)

    def result(self, began_s: float) -> Result:
        settings = self._settings
        self._sampler.stop()
        done = self._crew.results()
        rows = []
        for scheme, gauge in self._gauges.items():
            gauge.count_entries(self._admin)
            rows.append(measure(settings, scheme, self._start_ms(scheme), gauge, done[scheme]))
        assert self._trial is not None
        trial = self._trial
        return Result(
            settings=settings,
            broker=self._facts,
            rows=rows,
            checker_trial={
                "acknowledges before it publishes": trial.sabotaged,
                "publishes before it acknowledges": trial.honest,
            },
            verdict=judge(rows, limit=settings.limit, sabotaged=trial.sabotaged, honest=trial.honest),
            seconds=time.monotonic() - began_s,
            started_ms=self._began_ms,
            unloaded_ms=self._unloaded_ms,
            unloads_ms=self._unloads_ms,
            samples={scheme: gauge.samples for scheme, gauge in self._gauges.items()},
            entries={scheme: found.entries for scheme, found in done.items()},
        )

    # --------------------------------------------------------------------------------------------------------- steps

    def _prepare(self, scheme: SchemeName) -> None:
        """Create a scheme's topics, and make its player connect."""
        self._ensure(self._settings.plan(scheme), now_ms())
        self._crew[scheme].connect(self._facts.service_url, self._facts.admin_url)

    def _begin(self, scheme: SchemeName) -> None:
        """Start a scheme's player once it is connected; the first player at once, the others in their turn."""
        self._until("connecting", lambda: self._crew[scheme].ready, timeout_s=READY_TIMEOUT_S)
        plan = self._settings.plan(scheme)
        start_ms = max(now_ms(), self._began_ms + self._settings.start_offset_ms(scheme)) if self._gauges else now_ms()
        if not self._gauges:
            self._began_ms = start_ms
        moments_ms = [start_ms]
        if isinstance(plan.scheme, Calendar):  # its topics depend on the moment of sending, and days pass
            moments_ms.append(start_ms + self._settings.publish_ms(scheme) + CALENDAR_AHEAD_MS)
            for moment_ms in moments_ms:
                self._ensure(plan, moment_ms)
        gauge = Gauge(plan, moments_ms, self._settings.day_ms)
        self._gauges[scheme] = gauge
        self._sampler.add(gauge)
        self._crew[scheme].publish(start_ms)

    def _ensure(self, plan: Plan, at_ms: int) -> None:
        def make() -> None:
            ensure(self._admin, plan, now_ms=at_ms)
            if plan.intake:  # as `timewheel shadow start` does
                desired_for(self._admin, plan, ShadowState.SHADOWING, now_ms=now_ms())

        ensured = self._workers.submit(make)
        self._until(f"making the topics of {plan.due_topic.rsplit('/', 1)[-1]}", ensured.done)
        ensured.result()

    def _all_published(self) -> bool:
        first = self._settings.schemes[0]
        latest_ms = self._start_ms(first) + LATEST_UNLOAD * self._settings.scheme_ms(first)
        attempted = [self._crew[scheme].progress.attempted for scheme in self._settings.schemes]
        return min(attempted) == self._settings.messages or now_ms() > latest_ms

    def _unload_all(self) -> None:
        """Unload topic after topic; the first scheme last, since native's redeliveries keep the broker busy."""
        for scheme, gauge in reversed(self._gauges.items()):
            began_ms = now_ms()
            for name in gauge.topics:
                self._unload(gauge, name)
            self._unloads_ms[scheme] = (began_ms + now_ms()) // 2

    def _unload(self, gauge: Gauge, name: str) -> None:
        for _ in range(UNLOAD_ATTEMPTS - 1):
            with suppress(AdminError):
                gauge.unload(self._admin, name)
                return
        gauge.unload(self._admin, name)

    def _all_finished(self) -> bool:
        done = self._crew.results()
        for scheme in self._settings.schemes:
            if scheme not in done and self._is_over(scheme):
                self._ask_for_results(scheme)
        return len(done) == len(self._settings.schemes)

    def _ask_for_results(self, scheme: SchemeName) -> None:
        # Counted from the first request: a scheme that began long before the others was over before its results were
        # requested.
        asked_ms = self._asked_ms.setdefault(scheme, now_ms())
        if now_ms() > asked_ms + DONE_TIMEOUT_S * 1000:
            raise DemoFailed(f"the player of {scheme} does not hand over its results")
        self._crew[scheme].finish()

    def _is_over(self, scheme: SchemeName) -> bool:
        progress = self._crew[scheme].progress
        handled, moved_ms = self._moved.get(scheme, (-1, 0))
        if progress.handled > handled:
            # On a busy machine a scheme may be late by minutes: that is no loss.
            moved_ms = now_ms()
            self._moved[scheme] = progress.handled, moved_ms
        if now_ms() > max(progress.last_due_ms, moved_ms) + GRACE_MS:
            return True
        all_handled = progress.attempted == self._settings.messages and progress.handled >= progress.confirmed
        return all_handled and now_ms() > progress.last_due_ms + AFTER_LAST_DUE_MS

    # --------------------------------------------------------------------------------------------------------- waiting

    def _until(self, phase: str, condition: Callable[[], bool], timeout_s: float = 3_600.0) -> None:
        """Listen to the players and show the state until the condition holds."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise DemoFailed(f"{phase}: not done after {timeout_s:.0f} s")
            self._crew.listen(TURN_S)
            if self._sampler.error is not None:
                raise DemoFailed(f"sampling failed: {self._sampler.error!r}") from self._sampler.error
            self._screen.show(State(phase=phase, left_s=self._left_s(), gaps=self._gaps(), limit=self._settings.limit))

    def _left_s(self) -> float:
        settings = self._settings
        planned_ms = [max(now_ms(), self._began_ms + settings.start_offset_ms(one)) for one in settings.schemes]
        ends_ms = [
            (self._crew[scheme].start_ms or start_ms) + settings.scheme_ms(scheme)
            for scheme, start_ms in zip(settings.schemes, planned_ms, strict=True)
        ]
        return max(0.0, (max(ends_ms) + AFTER_LAST_DUE_MS - now_ms()) / 1000) + VERDICT_S + self._then_s

    def _gaps(self) -> dict[SchemeName, int]:
        return {name: gauge.samples[-1].due_gaps for name, gauge in list(self._gauges.items()) if gauge.samples}

    def _start_ms(self, scheme: SchemeName) -> int:
        start_ms = self._crew[scheme].start_ms
        assert start_ms is not None
        return start_ms


BROKER_START_S = 8.0  # estimated; the time left is corrected once the broker runs
WORKERS = 3  # threads for work that must not block the display
ADMIN_RETRY_S = 120.0  # a broker on a busy machine may not answer for a while


def expected_s(settings: Settings) -> float:
    """Estimate the time of a run from here to its verdict, if the broker's jars are already fetched."""
    return BROKER_START_S + (settings.play_ms + AFTER_LAST_DUE_MS) / 1000 + VERDICT_S


def run_demo(settings: Settings, screen: PlainScreen, *, began_s: float, then_s: float = 0) -> Result:
    settings.out.mkdir(parents=True, exist_ok=True)
    with Players(settings) as crew, ThreadPoolExecutor(WORKERS, thread_name_prefix="demo") as workers:
        crew.start()  # they import their modules while the broker starts
        broker = LocalPulsar(settings.version, config=settings.broker_config(), progress=screen.say)
        try:
            starting = workers.submit(broker.start)
            while not starting.done():
                screen.show(State(phase="starting Pulsar", left_s=_left_s(settings, began_s) + then_s))
                wait([starting], TURN_S)
            starting.result()
            with AdminClient(broker.admin_url, retry_for_s=ADMIN_RETRY_S) as admin:
                facts = _facts(broker, settings, profile_of(admin))
                _introduce(screen, facts, settings, time.monotonic() - began_s)
                with Stage(settings, screen, crew, admin, facts, workers, then_s) as stage:
                    stage.play()
                    result = stage.result(began_s)
        finally:
            broker.stop()
    save(result, Files.under(settings.out))
    return result


def _left_s(settings: Settings, began_s: float) -> float:
    return max(1.0, expected_s(settings) - (time.monotonic() - began_s))


def _facts(broker: LocalPulsar, settings: Settings, profile: BrokerProfile) -> BrokerFacts:
    assert broker.pid is not None
    return BrokerFacts(
        version=broker.version,
        pid=broker.pid,
        service_url=broker.service_url,
        admin_url=broker.admin_url,
        config=settings.broker_config(),
        profile=profile,
    )


def _introduce(screen: PlainScreen, facts: BrokerFacts, settings: Settings, seconds: float) -> None:
    lowered = ", ".join(f"{name}={value}" for name, value in facts.config.items())
    due_topic = next(spec.name for spec in topology(settings.plan(settings.schemes[0]), now_ms()).topics)
    stats = f"{facts.admin_url}/admin/v2/{partition_topic(due_topic, 0).replace('://', '/')}"
    fields = "nonContiguousDeletedMessagesRanges|delayedMessageIndexSizeInBytes|unackedMessages"
    screen.say(f"Pulsar {facts.version} pid {facts.pid} {facts.service_url} {facts.admin_url}   ({seconds:.1f} s)")
    screen.say(f"  lowered, to fit weeks into minutes: {lowered} (a default broker keeps {DEFAULT_LIMIT:,} ranges)")
    screen.say(f"  check me: curl -s {stats}/stats | grep -oE '\"({fields})\":[0-9]+'")
    screen.say(f"            curl -s {stats}/internalStats")
    screen.say(f"            curl -s {facts.admin_url}/admin/v2/persistent/public/default    (the other topics)")
