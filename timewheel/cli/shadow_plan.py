"""Makes a plan for a shadow of a topic that has none: its delays are looked at, and the planner chooses."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from timewheel.admin.client import AdminClient
    from timewheel.binary_protocol.dialing import Dialer
    from timewheel.core.broker_profile import BrokerProfile
    from timewheel.core.plan import Plan
    from timewheel.spark_planner import History, Planned, Tell

__all__ = ["plan_of_topic", "planned_shadow"]


def plan_of_topic(
    admin: AdminClient, dialer: Dialer, topic: str, console: Console, *, samples: int, memory: str, as_json: bool
) -> Planned:
    """Plans a shadow with the topic's own numbers.

    Args:
        admin: Of any broker.
        dialer: Of the binary protocol.
        topic: Full name.
        console: For what the planner says.
        samples: Entries to look at.
        memory: Heap of Spark's Java process.
        as_json: The answer goes to stdout as JSON, so only progress is shown.

    Raises:
        NothingToSample: There is no such topic, or nothing in it.
        ExtraMissing: Spark or Java is not there.
    """
    from timewheel.cli.plan import show_planned
    from timewheel.cli.planning import mapping_of, progress_on, session, surveyed
    from timewheel.cli.shadow_looks import reading_entries
    from timewheel.core.names import parts_of
    from timewheel.core.plan import Plan
    from timewheel.ops.profile import profile_of
    from timewheel.ops.sample_figures import figures_of
    from timewheel.ops.sample_file import write_sample
    from timewheel.shadow.facts import is_users
    from timewheel.shadow.sampling import sample_of

    with reading_entries(console, "looking at delays") as tell:
        taken = sample_of(admin, dialer, topic, samples=samples, tell=tell)
    profile = profile_of(admin)
    every = [admin.topics.stats(part).subscriptions for part in parts_of(topic, taken.partitions)]
    names = {name for found in every for name, one in found.items() if one.is_durable and is_users(name)}
    base = Plan(
        due_topic=topic,
        subscriptions=tuple(sorted(names)) or ("timers",),
        partitions=taken.partitions,
        tick_ms=profile.tick_ms,
        relay="service",
        readers="any",
    )
    with TemporaryDirectory() as folder, session(None, memory) as spark:
        from timewheel.spark_planner import Prices

        file = Path(folder) / "sample.parquet"
        write_sample(taken, figures_of(taken), file)
        mapping = mapping_of(time_unit="auto", delay_unit="auto")
        with progress_on(console) as told:
            seen = surveyed(spark, str(file), "auto", mapping, None, told)
            planned = planned_shadow(seen, base, profile, growth=taken.scale, tell=told)
        if not as_json:
            show_planned(console, planned, "", Prices())
    return planned


def planned_shadow(history: History, base: Plan, profile: BrokerProfile, *, growth: float, tell: Tell) -> Planned:
    """Chooses among shadows, each counted as a shadow, on the partitions that the topic has.

    Args:
        history: Of one topic.
        base: The topic's names, subscriptions and partitions.
        profile: The broker.
        growth: As many times the history's volume.
        tell: Receives the progress.
    """
    from timewheel.spark_planner import Constraints, as_shadow, plan_for

    limits = Constraints(partitions_min=base.own_partitions, partitions_max=base.own_partitions)
    return plan_for(history, history.topic(None), as_shadow(base), profile, limits, growth=growth, tell=tell)
