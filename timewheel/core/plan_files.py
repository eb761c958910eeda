"""Plan files that may change while a process runs: read whole, and compared by their content and their plans.

File times are not compared: Kubernetes changes a mounted file by replacing a link, and an editor may keep the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from timewheel.core.errors import PlanError
from timewheel.core.plan import Plan
from timewheel.core.planfile import parse_plan, read_plan_text


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChanges:
    """Plans to begin and plans to end. End the removed and changed plans before beginning their replacements."""

    added: tuple[Plan, ...] = ()  # plans of due topics that had no plan
    removed: tuple[Plan, ...] = ()  # plans of due topics that have no plan any more
    changed: tuple[tuple[Plan, Plan], ...] = ()  # old and new plan of the same due topic
    unchanged: tuple[Plan, ...] = ()  # plans that are equal before and after

    @property
    def ends(self) -> tuple[Plan, ...]:
        """Plans that are no longer served in this form."""
        return (*self.removed, *(old for old, _ in self.changed))

    @property
    def begins(self) -> tuple[Plan, ...]:
        """Plans that are to be served from now on."""
        return (*self.added, *(new for _, new in self.changed))


def plan_changes(old: Iterable[Plan], new: Iterable[Plan]) -> PlanChanges:
    """Compare the served plans with the desired plans. Plans are matched by due topic; several of a topic, in order."""
    ended, unchanged = list(old), []
    begun = []
    for plan in new:
        if plan in ended:
            ended.remove(plan)
            unchanged.append(plan)
        else:
            begun.append(plan)
    added, changed = [], []
    for plan in begun:
        before = next((other for other in ended if other.due_topic == plan.due_topic), None)
        if before is None:
            added.append(plan)
        else:
            ended.remove(before)
            changed.append((before, plan))
    return PlanChanges(added=tuple(added), removed=tuple(ended), changed=tuple(changed), unchanged=tuple(unchanged))


@dataclass(frozen=True, slots=True)
class PlanTexts:
    """Content of the plan files at one moment."""

    texts: tuple[tuple[Path, str], ...]  # path and text of each file, in order

    def plans(self) -> tuple[Plan, ...]:
        return tuple(parse_plan(text, path) for path, text in self.texts)


class PlanFiles:
    """Files and folders with plans; a folder stands for all its files ``*.toml``."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)

    def read(self) -> PlanTexts:
        """Read the present content of all files. `PlanError`: a file cannot be read, or a folder has no plan, which is
        more likely a mistake than a wish to serve no plan.
        """
        files = [file for path in self._paths for file in _files_of(path)]
        return PlanTexts(tuple((file, read_plan_text(file)) for file in files))


def _files_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.glob("*.toml") if not file.name.startswith("."))
    if not found:
        raise PlanError("folder", str(path), "must have at least one plan, a file *.toml")
    return found
