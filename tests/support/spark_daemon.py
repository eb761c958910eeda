"""Spark's process that forks its Python workers, with what the planner's kernels need imported already.

A worker that imports it by itself spends a second of CPU on it, and the tests start some hundred workers: each task
that reads no further than it has to, as one does whose rows turn out not to be in order, ends its worker.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module

__all__: list[str] = []

FOR_WORKERS = (
    "pandas",
    "pyarrow",
    "pyspark.worker",
    "timewheel.spark_planner.exact.counting",
    "timewheel.spark_planner.summary.gather",
)

# A process may be forked while it has one thread only; numpy's library and Arrow's allocator would start further ones.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"

if __name__ == "__main__":
    # Spark's own archives, which are installed as folders too: a worker would read each one's directory, half a second.
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
    # A worker collects garbage after each task: what all of them share is left out of that, and stays shared.
    gc.collect()
    gc.freeze()
    manager()
