"""Extras: libraries that are imported only at their use, the line that installs missing ones, and packages whose names
are loaded on first use, because their modules are heavy.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from timewheel.core.errors import TimewheelError
from timewheel.core.escapes import shell_line

EXTRAS: Final[Mapping[str, Mapping[str, str]]] = {
    "cli": {
        "cramjam": "cramjam>=2.8",
        "google_crc32c": "google-crc32c>=1.5",
        "httpcore": "httpcore",
        "httpx": "httpx",
        "rich": "rich",
        "tenacity": "tenacity",
        "typer": "typer",
    },
    "metrics": {"prometheus_client": "prometheus-client>=0.20"},
    "otel": {"opentelemetry": "opentelemetry-api"},
    "planner": {"numpy": "numpy>=2", "pandas": "pandas>=2.2,<3", "pyarrow": "pyarrow>=15", "pyspark": "pyspark>=4.1"},
    "redis": {"redis": "redis>=5"},
    "report": {"altair": "altair>=6", "jinja2": "jinja2>=3.1", "vl_convert": "vl-convert-python>=1.9"},
}
"""Modules of each extra, each with its requirement as in pyproject.toml."""
JAVA = "Java 17 or newer on PATH or in JAVA_HOME (Debian: apt-get install openjdk-17-jre-headless)"


class ExtraMissing(TimewheelError, ImportError):
    """Libraries of an extra, or Java, are not installed.

    The message ends with the line that installs the libraries. The line names libraries instead of the extra, so
    that it works wherever timewheel came from: a clone, a wheel or an index.

    Attributes:
        purpose: Feature that needs them.
        missing: Their requirements, in pip's syntax.
        java: True if Java is missing.
    """

    def __init__(self, purpose: str, missing: Iterable[str], *, java: bool = False) -> None:
        self.purpose = purpose
        self.missing = tuple(missing)
        self.java = java
        names = ", ".join(re.split("[<>=]", requirement)[0] for requirement in self.missing)
        libraries = [f"{names}, which this line installs: {install_line(self.missing)}"] if self.missing else []
        super().__init__(f"{purpose} needs {', and '.join([*[JAVA] * java, *libraries])}")


def install_line(requirements: Iterable[str]) -> str:
    """Return the shell line that installs requirements into this environment."""
    return shell_line(sys.executable or "python3", "-m", "pip", "install", *requirements)


def need_extras(purpose: str, *extras: str, java: bool = False) -> None:
    """Raise one `ExtraMissing` for everything that is not installed: libraries of extras (names in pyproject.toml), and
    Java if needed. ``purpose``, the feature that needs them, is the subject of a sentence.
    """
    missing = [requirement for name, requirement in _modules_of(extras).items() if find_spec(name) is None]
    no_java = java and shutil.which("java") is None and "JAVA_HOME" not in os.environ
    if missing or no_java:
        raise ExtraMissing(purpose, missing, java=no_java)


def missing_extra(purpose: str, *extras: str) -> Callable[[str], ExtraMissing | None]:
    """Return a function that builds the error for a missing library, by its name; None: none of the extras has it."""
    modules = _modules_of(extras)

    def error_for(library: str) -> ExtraMissing | None:
        if library not in modules:
            return None
        return ExtraMissing(
            purpose, (each for name, each in modules.items() if name == library or find_spec(name) is None)
        )

    return error_for


def _modules_of(extras: Iterable[str]) -> Mapping[str, str]:
    return {name: requirement for extra in extras for name, requirement in EXTRAS[extra].items()}


def names_on_first_use(
    package: str, names_of: Mapping[str, str], missing: Callable[[str], Exception | None] = lambda _: None
) -> Callable[[str], object]:
    """Return a ``__getattr__`` for a package whose names are loaded on first use. ``names_of`` has the names of each
    module, which is relative to the package or absolute; ``missing`` builds the error for a library that is not
    installed, by its top-level name (None: Python's own error is raised).
    """
    module_of = {name: module for module, names in names_of.items() for name in names.split()}

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
