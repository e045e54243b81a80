"""How workers of this machine start: forked from this process, or from a server where this process has threads.

A forked worker has what this process has loaded, and starts in milliseconds. A process with threads must not be forked:
a lock that another thread holds would stay locked in the worker. Then a server without threads loads the modules once.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

ONE_THREAD = {
    "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}  # fmt: skip
"""Each worker is one core: threads of libraries get in each other's way. This memory pool gives memory back."""
FORK_SAFE_THREAD = "jemalloc_bg_thd"
"""Of the memory allocator of pyarrow, which prepares for a fork and starts it again in the child."""
LOADED_ONCE = ["scalewright.data.text.execution.tasks", "pyarrow.compute", "tokenizers"]
"""Modules of the server."""


def worker_context() -> BaseContext:
    """How workers start here and now."""
    if _num_threads() == 1:
        gc.freeze()  # what is loaded is not moved, so that workers share its pages
        return get_context("fork")
    context = get_context("forkserver")
    context.set_forkserver_preload(LOADED_ONCE)
    return context


def _num_threads() -> int:
    """Of this process, those of libraries too; 2 where the system does not say."""
    try:
        names = [(thread / "comm").read_text().strip() for thread in Path("/proc/self/task").iterdir()]
    except OSError:
        return 2
    return sum(name != FORK_SAFE_THREAD for name in names)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Workers that start meanwhile do not run the program's main module again, as multiprocessing has them do.

    They need none of it, and it would load the whole command line in each of them.
    """
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {name: vars(main)[name] for name in ("__file__", "__spec__") if name in vars(main)}
    try:
        main.__spec__ = None
        vars(main).pop("__file__", None)
        yield
    finally:
        vars(main).update(hidden)
