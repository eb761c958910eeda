"""Spark's daemon that forks its Python workers, with the imports of the planner's kernels already done.

A worker would spend a second of CPU on these imports, and the tests start some hundred workers: each task that stops
reading its input early, for example when its rows are not in order, ends its worker.
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

if __name__ == "__main__":
    # Remove Spark's archives, which are also installed as folders: a worker would read their directories for half a
    # second.
    archives = {path for path in sys.path if path.endswith((".zip", ".jar"))}
    sys.path[:] = [path for path in sys.path if path not in archives]
    for archive in archives:
        sys.path_importer_cache.pop(archive, None)

    from pyspark.daemon import manager

    for name in FOR_WORKERS:
        import_module(name)

    threads = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1  # noqa: PTH112, PTH208
    if threads > 1:
        raise SystemExit(f"{threads} threads were started by imports: workers must not be forked from here")
    # A worker collects garbage after each task: frozen objects are excluded, and stay shared by all workers.
    gc.collect()
    gc.freeze()
    manager()
