"""Plan files that may change while a process lives: read whole, compared by what stands in them.

By that and not by their times: Kubernetes changes a mounted file by turning a link, and an editor may keep the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from timewheel.core.errors import PlanError
from timewheel.core.plan import Plan
from timewheel.core.planfile import parse_plan, read_plan_text

__all__ = ["PlanFiles", "PlanTexts"]


@dataclass(frozen=True, slots=True)
class PlanTexts:
    """What stood in the files at one moment.

    Args:
        texts: Path and text of each, in order.
    """

    texts: tuple[tuple[Path, str], ...]

    def plans(self) -> tuple[Plan, ...]:
        """All of them.

        Raises:
            PlanError: One is wrong; it names the file.
        """
        return tuple(_parsed(path, text) for path, text in self.texts)


class PlanFiles:
    """Files and folders that plans are read from; of a folder all files ``*.toml`` that stand in it.

    Args:
        paths: As they were given.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)

    def read(self) -> PlanTexts:
        """What stands there now.

        Raises:
            PlanError: A file cannot be read, or a folder has none: rather a slip than the wish to serve nothing.
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


def _parsed(path: Path, text: str) -> Plan:
    try:
        return parse_plan(text)
    except PlanError as error:
        told = PlanError(f"{path.name}: {error.field}", error.value, error.limit)
        raise told from error.__cause__
