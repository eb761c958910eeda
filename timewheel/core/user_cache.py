"""The user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return this project's folder in the user's cache: `$XDG_CACHE_HOME/timewheel`, else `~/.cache/timewheel`."""
    configured = os.environ.get("XDG_CACHE_HOME")
    return (Path(configured) if configured else Path.home() / ".cache") / "timewheel"
