"""Lists the public names of every package, and of the public modules beside them, a name a line: `timewheel.core Plan`.

As a program it prints them; `make api` writes them to the committed list.
"""

from __future__ import annotations

import importlib

from tests.support.checkout import package_folders

DOORS = ("timewheel.errors", "timewheel.events", "timewheel.hooks", "timewheel.serving", "timewheel.tokens")
"""Modules that are public like packages."""


def public_names() -> list[str]:
    """Return the names in each package's `__all__`; a package without `__all__` has no public names."""
    return [
        f"{package} {name}"
        for package in sorted((*package_folders(), *DOORS))
        for name in sorted(getattr(importlib.import_module(package), "__all__", ()))
    ]


if __name__ == "__main__":
    print("\n".join(public_names()))
