"""Workers are forked from a process without threads, and from a server where there are threads."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

BEGIN = """
import threading
from scalewright.data.text.execution.worker_start import one_thread, worker_context
with one_thread():
    import numpy
"""


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("", "fork"),
        ("import pyarrow", "fork"),
        ("threading.Thread(target=threading.Event().wait, daemon=True).start()", "forkserver"),
    ],
)
def test_a_process_with_threads_is_not_forked(code: str, expected: str) -> None:
    source = BEGIN + textwrap.dedent(f"{code}\nprint(worker_context().get_start_method())\n")
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


def test_the_main_module_is_hidden_and_comes_back() -> None:
    from scalewright.data.text.execution.worker_start import without_main

    main = sys.modules["__main__"]
    before = (main.__spec__, getattr(main, "__file__", None))
    with without_main():
        assert main.__spec__ is None
        assert not hasattr(main, "__file__")
    assert (main.__spec__, getattr(main, "__file__", None)) == before
