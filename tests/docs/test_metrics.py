"""The page on metrics: its block tells metrics as it says."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.pages import blocks
from tests.support.processes import ran
from tests.support.tables import PAGES
from timewheel.core.plan import Plan
from timewheel.core.planfile import save_plan

SCRAPED = """
import httpx
told = httpx.get("http://localhost:9000/metrics", trust_env=False).text
consumer.close()
producer.close()
client.close()
print("timewheel_producer_pending" in told, "timewheel_consumer_lateness_seconds_count" in told, "python_info" in told)
"""


def test_a_service_is_scraped_as_it_says(tmp_path: Path) -> None:
    """Neither producer nor consumer asks for a broker before it is used."""
    (block,) = blocks(PAGES["metrics"].page.read_text(encoding="utf-8"), "python")
    plan = Plan(due_topic="persistent://public/default/reminders", subscriptions=("billing",))
    save_plan(plan, tmp_path / "reminders.toml")
    done = ran([sys.executable, "-c", block.content + SCRAPED], cwd=tmp_path)
    assert done.stdout.splitlines()[-1:] == ["True True True"], done.stdout + done.stderr
