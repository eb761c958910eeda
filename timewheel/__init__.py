"""Long delays on Apache Pulsar that survive reloads of a topic.

There is no facade: import the names that you use from `timewheel.producers`, `timewheel.consumers` and
`timewheel.core`.
"""

from typing import TYPE_CHECKING

__all__ = ["__version__"]

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        # Read on demand: looking up a distribution's metadata walks sys.path, and importing should cost nothing.
        if name == "__version__":
            from importlib.metadata import version  # noqa: PLC0415 - see above

            return version("pulsar-timewheel")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
