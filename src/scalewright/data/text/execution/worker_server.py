"""The process that all workers of this machine are forked from. Light to import: it is started before anything else.

It loads what workers need while the command itself loads NumPy, reads the pipeline file and looks for inputs.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerContext
from typing import Any

ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
"""Each worker is one core: threads of libraries get in each other's way. This memory pool gives memory back."""
LOADED_ONCE = ["scalewright.data.text.execution.tasks", "pyarrow.compute", "tokenizers"]
"""Modules of the server. It has no threads, so that forking it is safe."""


def start_worker_server() -> ForkServerContext:
    """Start the server if it does not run; does not wait for it."""
    context = get_context("forkserver")
    context.set_forkserver_preload(LOADED_ONCE)
    with one_thread():  # workers inherit it
        forkserver.ensure_running()
    return context


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
