"""Which plans begin and end when plan files change; and what of the files counts."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timewheel.core.errors import PlanError
from timewheel.core.plan import Plan
from timewheel.core.planfile import PlanFiles, plan_changes, save_plan

A = Plan(due_topic="persistent://t/n/a", subscriptions=("s",))
B = replace(A, due_topic="persistent://t/n/b")
C = replace(A, due_topic="persistent://t/n/c")
A2, A3 = replace(A, revision=2), replace(A, revision=3)
B2 = replace(B, revision=2)

sets = st.lists(st.sampled_from([A, A2, A3, B, B2, C]), max_size=6)


def test_each_due_topic_begins_ends_changes_or_goes_on() -> None:
    found = plan_changes([A, B], [A2, C])
    assert (found.added, found.removed, found.changed, found.unchanged) == ((C,), (B,), ((A, A2),), ())
    assert found.ends == (B, A)
    assert found.begins == (C, A2)


@given(sets, sets)
def test_what_is_carried_out_leads_from_the_one_to_the_other(old: list[Plan], new: list[Plan]) -> None:
    found = plan_changes(old, new)
    served = Counter(old)
    served.subtract(found.ends)
    assert min(served.values(), default=0) >= 0, "nothing ends that was not there"
    served.update(found.begins)
    assert +served == Counter(new)


@given(sets, sets)
def test_what_is_equal_is_left_alone_and_what_is_changed_keeps_its_due_topic(old: list[Plan], new: list[Plan]) -> None:
    found = plan_changes(old, new)
    assert Counter(found.unchanged) == Counter(old) & Counter(new)
    assert all(before.due_topic == after.due_topic and before != after for before, after in found.changed)
    topics = {plan.due_topic for plan in found.added} & {plan.due_topic for plan in found.removed}
    assert not topics, "else it is a change"


@given(sets, st.randoms(use_true_random=False))
def test_another_order_is_no_change(old: list[Plan], rng: object) -> None:
    new = list(old)
    rng.shuffle(new)  # type: ignore[attr-defined]
    found = plan_changes(old, new)
    assert (found.begins, found.ends) == ((), ())


def test_a_folder_is_all_its_plans_and_a_hidden_file_is_none_of_them(tmp_path: Path) -> None:
    save_plan(B, tmp_path / "b.toml")
    save_plan(A, tmp_path / "a.toml")
    (tmp_path / ".a.toml.swp").write_text("half")
    (tmp_path / ".c.toml").write_text("half")
    (tmp_path / "README").write_text("not a plan")
    assert PlanFiles([tmp_path]).read().plans() == (A, B)


def test_a_mounted_folder_whose_link_is_turned_has_changed(tmp_path: Path) -> None:
    """As Kubernetes does it: the files' own times and names stay as they were."""
    for number, plan in enumerate((A, A2)):
        (tmp_path / f"..{number}").mkdir()
        save_plan(plan, tmp_path / f"..{number}" / "a.toml")
        os.utime(tmp_path / f"..{number}" / "a.toml", (1, 1))
    (tmp_path / "..data").symlink_to("..0")
    (tmp_path / "a.toml").symlink_to("..data/a.toml")
    files = PlanFiles([tmp_path])
    before = files.read()
    (tmp_path / "..new").symlink_to("..1")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert files.read() != before
    assert files.read().plans() == (A2,)


def test_a_file_that_was_only_touched_has_not_changed(tmp_path: Path) -> None:
    save_plan(A, tmp_path / "a.toml")
    before = PlanFiles([tmp_path]).read()
    os.utime(tmp_path / "a.toml", (1, 1))
    assert PlanFiles([tmp_path]).read() == before


def test_a_folder_without_a_plan_and_a_file_that_is_gone_are_slips(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="at least one plan"):
        PlanFiles([tmp_path]).read()
    with pytest.raises(PlanError, match="readable"):
        PlanFiles([tmp_path / "gone.toml"]).read()
