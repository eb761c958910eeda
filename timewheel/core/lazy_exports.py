"""Lazy exports: packages whose names are loaded on first use, because their modules are heavy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def names_on_first_use(
    package: str,
    module_of: Mapping[str, str],
    missing: Callable[[str], Exception | None] = lambda _: None,
) -> Callable[[str], object]:
    """Return a ``__getattr__`` for a package whose names are loaded on first use.

    Args:
        package: Name of the package, ``__name__``.
        module_of: Module of each name: relative to the package, as in ``.relay``, or absolute.
        missing: Returns the error for a library that is not installed, by its top-level name; None: no extra installs
            this library, and Python's own error is raised.
    """

    def load(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(module_of[name], package)
        except ModuleNotFoundError as error:
            told = missing((error.name or "timewheel").partition(".")[0])
            if told is None:
                raise
            raise told from error
        value: object = getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return load
