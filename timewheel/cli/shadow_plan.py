"""Makes a plan for a shadow of a topic that has none: its delays are looked at, and the planner chooses."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from timewheel.admin.client import AdminClient
    from timewheel.binary_protocol.dialing import Dialer
    from timewheel.core.plan import Plan

__all__ = ["plan_of_topic"]


def plan_of_topic(
    admin: AdminClient, dialer: Dialer, topic: str, console: Console, *, samples: int, memory: str, as_json: bool
) -> Plan:
    """The plan that the planner recommends among those that a shadow can have, with the topic's own numbers.

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
    from dataclasses import replace

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
        from timewheel.spark_planner import Prices, plan_for
        from timewheel.spark_planner.choice.candidates import candidate_plans

        file = Path(folder) / "sample.parquet"
        write_sample(taken, figures_of(taken), file)
        mapping = mapping_of(time_unit="auto", delay_unit="auto")
        with progress_on(console) as told:
            seen = surveyed(spark, str(file), "auto", mapping, None, told)
            wanted = seen.topic(None)
            longest_ms = int(seen.cells(wanted).delay_max_ms.max())
            # With an intake only afterwards: the planner compares with plans that can have none.
            shadows = [one for one in candidate_plans(base, longest_ms) if one.holds_in_relay]
            planned = plan_for(seen, wanted, base, profile, candidates=shadows, growth=taken.scale, tell=told)
        if not as_json:
            show_planned(console, planned, "", Prices())
    # The topic has the partitions that it has.
    return replace(planned.plan, partitions=taken.partitions, intake=True)
