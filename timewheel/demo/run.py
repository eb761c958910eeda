"""A run of the demo, from the broker's start to the verdict."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, wait

from timewheel.broker.admin.client import AdminClient
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.names import partition_topic
from timewheel.core.topology import topology
from timewheel.demo.files import Files, save
from timewheel.demo.live import Screen, State
from timewheel.demo.players import Players
from timewheel.demo.results import BrokerFacts, Result
from timewheel.demo.settings import DEFAULT_LIMIT, Settings
from timewheel.demo.stage import AFTER_LAST_DUE_MS, TURN_S, VERDICT_S, Stage
from timewheel.inspect.profile import profile_of
from timewheel.testing import LocalPulsar
from timewheel.testing.evidence.journal import now_ms

BROKER_START_S = 8.0
"""Estimated; the time left is corrected once the broker runs."""
WORKERS = 3
"""Threads for work that must not block the display."""
ADMIN_RETRY_S = 120.0
"""A broker on a busy machine may not answer for a while."""


def expected_s(settings: Settings) -> float:
    """Estimate the time of a run from here to its verdict, if the broker's jars are already fetched."""
    return BROKER_START_S + (settings.play_ms + AFTER_LAST_DUE_MS) / 1000 + VERDICT_S


def run_demo(settings: Settings, screen: Screen, *, began_s: float, then_s: float = 0) -> Result:
    """Play everything and save the results under ``settings.out``.

    Args:
        settings: Settings of the run.
        screen: Output of the progress.
        began_s: ``time.monotonic()`` of the command's start.
        then_s: Time from the end of the play to the verdict.

    Raises:
        DemoFailed: A step took too long.
        PlayerFailed: A scheme's process ended.
        BrokerUnavailable, BrokerFailed: There is no broker.
    """
    settings.out.mkdir(parents=True, exist_ok=True)
    with Players(settings) as crew, ThreadPoolExecutor(WORKERS, thread_name_prefix="demo") as workers:
        crew.start(settings.schemes)  # they import their modules while the broker starts
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


def _introduce(screen: Screen, facts: BrokerFacts, settings: Settings, seconds: float) -> None:
    lowered = ", ".join(f"{name}={value}" for name, value in facts.config.items())
    due_topic = next(spec.name for spec in topology(settings.plan(settings.schemes[0]), now_ms()).topics)
    stats = f"{facts.admin_url}/admin/v2/{partition_topic(due_topic, 0).replace('://', '/')}"
    fields = "nonContiguousDeletedMessagesRanges|delayedMessageIndexSizeInBytes|unackedMessages"
    screen.say(f"Pulsar {facts.version} pid {facts.pid} {facts.service_url} {facts.admin_url}   ({seconds:.1f} s)")
    screen.say(f"  lowered, to fit weeks into minutes: {lowered} (a default broker keeps {DEFAULT_LIMIT:,} ranges)")
    screen.say(f"  check me: curl -s {stats}/stats | grep -oE '\"({fields})\":[0-9]+'")
    screen.say(f"            curl -s {stats}/internalStats")
    screen.say(f"            curl -s {facts.admin_url}/admin/v2/persistent/public/default    (the other topics)")
