"""Spark's daemon that forks its Python workers, with the imports of the planner's kernels already done.

A worker would spend most of a second of CPU on these imports. Workers forked after them also share their memory.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module

FOR_WORKERS = (
    "pandas",
    "pyarrow",
    "pyspark.worker",
    "timewheel.spark_planner.exact.replay",
    "timewheel.spark_planner.summary.statistic",
)

# A process may only be forked while it has a single thread; numpy's library and Arrow's allocator would start more.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # Arrow's own returns memory late


def _without_archives() -> None:
    """Remove Spark's archives from the path if it is installed as a folder too: workers would read them for long."""
    archives = {path for path in sys.path if path.endswith((".zip", ".jar"))}
    folders = [path for path in sys.path if path not in archives]
    if any(os.path.isdir(os.path.join(path, "pyspark")) for path in folders):  # noqa: PTH112, PTH118 - starts faster
        sys.path[:] = folders
        for archive in archives:
            sys.path_importer_cache.pop(archive, None)


def _threads() -> int:
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1  # noqa: PTH112, PTH208


if __name__ == "__main__":
    _without_archives()

    from pyspark.daemon import manager

    for name in FOR_WORKERS:
        import_module(name)
    if _threads() > 1:  # another library's: workers must not be forked from here, so each imports for itself
        os.execv(sys.executable, [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]])  # noqa: S606
    # A worker collects garbage after each task: frozen objects are excluded, and stay shared by all workers.
    gc.collect()
    gc.freeze()
    manager()
