"""What a service of shadows tells whoever asks: Prometheus, a probe; and what the exporter tells of its topics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pulsar
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.broker.due_topic import now_ms
from tests.broker.relay_service import RelayProcess
from tests.broker.relay_stage import plan_of
from tests.broker.shadow_stage import ShadowStage
from timewheel.core.names import JOURNAL_SUBSCRIPTION, RELAY_SUBSCRIPTION
from timewheel.metrics import Exporter
from timewheel.shadow.machine.states import State
from timewheel.testing import Broker, eventually

TIMERS = 50
AHEAD_MS = 600_000
PARTITIONS = 2


def scraped(text: str) -> dict[str, float]:
    """Without ``timewheel_``, with the labels that tell several of a name apart."""
    apart = ("decision", "state", "quantile", "topic", "subscription")
    return {
        " ".join(
            [sample.name.removeprefix("timewheel_"), *(sample.labels[one] for one in apart if one in sample.labels)]
        ): (sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_shadow_tells_what_it_has_lifted_and_why_it_may_not(pulsar_broker: Broker, tmp_path: Path) -> None:
    plan = plan_of(relay="service", readers="any", intake=True, partitions=PARTITIONS, max_delay_ms=2 * AHEAD_MS)
    with (
        ShadowStage(pulsar_broker, plan) as on,
        RelayProcess(pulsar_broker, plan, tmp_path, kind="shadow") as service,
    ):
        on.desired(State.SHADOWING)
        service.await_ready()

        def told() -> dict[str, float]:
            return scraped(service.ask("/metrics").text)

        def shadow() -> dict[str, Any]:
            found: dict[str, Any] = service.status()["relays"][0]["shadow"]
            return found

        eventually(lambda: told()["shadow_caught_up_partitions"] == PARTITIONS, 60)
        producer = on.plain_producer()
        due_ms = now_ms() + AHEAD_MS
        for number in range(TIMERS):
            producer.send_async(f"{number}".encode(), None, deliver_at=due_ms, partition_key=f"{number}")
        producer.send(b"now")
        producer.flush()
        eventually(lambda: told()["shadow_acked_total"] == told()["shadow_moved_total"] == TIMERS, 60)

        found = told()
        assert found["shadow_entries_total moved"] == TIMERS
        assert (found["shadow_entries_total undelayed"], found["shadow_entries_total near"]) == (1, 0)
        assert (found["shadow_partitions"], found["shadow_led_partitions"]) == (PARTITIONS, PARTITIONS)
        assert (found["shadow_state shadowing"], found["shadow_state paused"], found["shadow_refused"]) == (1, 0, 0)
        assert 0 <= found["shadow_lag_seconds 0.5"] <= found["shadow_lag_seconds 0.99"] < 30
        assert found["relay_ready"] == 1
        assert (shadow()["state"], shadow()["refusal"]) == ("shadowing", "")
        assert [mover["leads"] for mover in shadow()["movers"]] == [True] * PARTITIONS

        backlogs = of_exporter(on)
        assert backlogs[f"{JOURNAL_SUBSCRIPTION}"] > 0, "it keeps copies for a while"
        assert RELAY_SUBSCRIPTION in backlogs

        intruder = on.client.subscribe(plan.due_topic, "intruder", consumer_type=pulsar.ConsumerType.Exclusive)
        eventually(lambda: told()["shadow_refused"] == 1, 60)
        answer = service.ask("/readyz")
        assert (answer.status_code, "intruder" in shadow()["refusal"]) == (503, True), answer.text
        intruder.unsubscribe()
        eventually(lambda: service.ask("/readyz").status_code == 200, 60)
        assert told()["shadow_refused"] == 0


def of_exporter(on: ShadowStage) -> dict[str, float]:
    """Entries of the intake that are not acknowledged, by subscription."""
    exporter, registry = Exporter(on.admin, (), (on.plan,)), CollectorRegistry()
    registry.register(exporter)
    assert exporter.inspect()
    found: dict[str, float] = {}
    for name, value in scraped(generate_latest(registry).decode()).items():
        if name.startswith("backlog_entries ") and f" {on.names.journal} " in f"{name} ":
            subscription = name.rpartition(" ")[2]
            found[subscription] = found.get(subscription, 0) + value
    return found
