"""Doors to something heavy: a package whose names are loaded on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module

__all__ = ["names_on_first_use"]


def names_on_first_use(
    package: str,
    module_of: Mapping[str, str],
    missing: Callable[[str], Exception | None] = lambda _: None,
) -> Callable[[str], object]:
    """The ``__getattr__`` of such a package.

    Args:
        package: Its name, ``__name__``.
        module_of: By name the module that has it: of the package, as in ``.relay``, or a whole name.
        missing: The error for a library that is not installed, by its top-level name; None: it is none that an extra
            would bring, and Python's own error stands.
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
