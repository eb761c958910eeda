"""The libraries that draw a report: looked for before one is promised, imported only when one is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from timewheel.core.errors import TimewheelError

__all__ = ["ReportMissing", "need_libraries"]

LIBRARIES = ("altair", "jinja2", "vl_convert")
INSTALL = "pip install 'pulsar-timewheel[report]'"


class ReportMissing(TimewheelError, ImportError):
    """What draws a report is not installed; the message has the line that installs it.

    Args:
        missing: Modules that there are not.
    """

    def __init__(self, missing: Sequence[str]) -> None:
        self.missing = tuple(missing)
        super().__init__(f"a report needs {' and '.join(missing)}, which {INSTALL} installs")


def need_libraries() -> None:
    """Nothing, where a report can be drawn; `ReportMissing` where not."""
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise ReportMissing(missing)
