"""What `gaps` says of a topic that is shadowed: originals are told apart, and no command names an invented file."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from tests.inspect.test_gap_looks import PROFILE, Cluster, gap_status, internal, stats
from timewheel.cli.gaps import _show, show_snapshot
from timewheel.inspect.gaps import inspect_gaps
from timewheel.inspect.gaps.advice import advice_on
from timewheel.inspect.gaps.explain import Cause, Explained, Share
from timewheel.inspect.gaps.facts import snapshot_facts
from timewheel.inspect.gaps.gap_status import FIRST_AID, FOR_GOOD, by_subscription
from timewheel.inspect.gaps.log import GapHistory
from timewheel.inspect.profile import Limit


def test_what_a_shadow_has_lifted_is_not_called_delayed() -> None:
    """The broker counts 4,202 as delayed, and all but 196 entries are acknowledged."""
    consumers = [{"consumerName": "mine"}]
    own = stats(3, msgBacklog=196, msgDelayed=4_202, consumers=consumers)
    cluster = Cluster({"/persistent/a/b/t/stats": own, "/persistent/a/b/t/internalStats": internal()})
    with cluster.client() as admin:
        snapshot = inspect_gaps(admin, ["persistent://a/b/t"], PROFILE)
    text = StringIO()
    limit = Limit(profile=PROFILE, source="given")
    show_snapshot(Console(file=text, width=300), snapshot, limit, GapHistory(), {}, top=1, reached_by=())
    (line,) = (line for line in text.getvalue().splitlines() if line.startswith("backlog"))
    assert "196 entries: at most 196 delayed, 0 in consumers' hands, 0 ready; beside them it counts 4,006" in line
    assert "4,202" not in text.getvalue()
    (found,) = snapshot.subscriptions
    assert (found.delayed, found.stale_entries, found.ready) == (196, 4_006, 0)
    (facts,) = snapshot_facts(snapshot, limit, GapHistory(), {})["subscriptions"]
    assert (facts["delayed"], facts["stale_at_least"]) == (196, 4_006)


@pytest.mark.parametrize("shadow", ["shadowing", "paused", None])
def test_the_cure_of_delays_beside_a_shadow_names_no_file_that_nobody_has(shadow: str | None) -> None:
    gaps = by_subscription([gap_status(12, delayed=6, stale_entries=70, backlog=6)])[0]
    found = Explained(
        at_ms=0, whole="persistent://a/b/t", shadow=shadow, gaps=gaps, holes=3, inspected=3, unreadable=0,
        shares=(Share(cause=Cause.DELAYS, share=1.0, error=0.0),), hottest_key="", hottest_share=0.0, oldest_ms=None,
        delayed=3, first_due_ms=9_000, holders=(), figures=None,
    )  # fmt: skip
    (advice,) = advice_on(found, PROFILE)
    assert any("at most 6 delayed messages" in one and "70 as delayed that are" in one for one in advice.evidence)
    said = " ".join((*advice.helps, *advice.commands))
    assert (".toml" in said) is (shadow is None)
    assert [one.when for one in advice.tries] == ([FIRST_AID, FOR_GOOD] if shadow is None else [])
    text = StringIO()
    _show(Console(file=text, width=300), found, [advice], "10")
    lines = [line.strip() for line in text.getvalue().splitlines()]
    for one in advice.tries:
        at = lines.index(f"{one.when}:")
        assert lines[at + 1 : at + 1 + len(one.commands)] == [f"try   {command}" for command in one.commands]
    assert ("timewheel shadow status PLAN" in said) is (shadow is not None)
