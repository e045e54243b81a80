"""The process of a job: give up rights, run the code, write the result as one JSON document, end without clean-up.

Descriptors of a job are 0, 1 and 2, and RESULT for what the function returned. Nothing else of the worker is open.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

from scalewright.data.sandbox.answer_calls import run_tests, serve_answer
from scalewright.data.sandbox.confinement import Setup, confine_job

RESULT = 3
LAST_DESCRIPTOR = 1 << 16
MOST_DIGITS = 100_000
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
}  # fmt: skip
"""All that a job and its worker see of the environment, with the search path of libraries."""


class ValueRefusedError(Exception):
    """The function returned something that JSON does not know."""


def run_job(
    setup: Setup, job: Mapping[str, Any], part: str, descriptors: tuple[int, int, int, int],
    preloaded: Callable[..., Any] | None,
) -> None:  # fmt: skip
    """Never returns. `part` is the job's kind, or `answer` for the other process of a job with tests."""
    code = 1
    try:
        _take_descriptors(descriptors)
        try:
            confine_job(setup)
        except OSError as error:
            _write({"refused": str(error.strerror or error)})
            os._exit(1)
        if part == "command":
            _exec(list(job["command"]))
        elif part == "answer":
            sys.set_int_max_str_digits(MOST_DIGITS)
            serve_answer(job["source"], socket.socket(fileno=os.dup(RESULT)))
        else:
            result = _result(job, part, preloaded)
            with contextlib.suppress(Exception):  # the job may have closed or replaced them
                sys.stdout.flush()
                sys.stderr.flush()
            _write(result)
        code = 0
    except BaseException as error:  # nothing may reach the worker's own code
        os.write(2, f"{type(error).__name__}\n".encode())
    finally:
        os._exit(code)


def _take_descriptors(descriptors: tuple[int, int, int, int]) -> None:
    """Move them to 0..3, whatever their numbers are, and close all others."""
    high = [os.dup2(one, 512 + place) for place, one in enumerate(descriptors)]
    for place, one in enumerate(high):
        os.dup2(one, place)
    os.closerange(RESULT + 1, LAST_DESCRIPTOR)


def _exec(command: list[str]) -> None:
    os.set_inheritable(RESULT, False)
    try:
        os.execvpe(command[0], command, os.environ)
    except OSError as error:
        _write({"refused": f"{command[0]} does not start: {error.strerror}"})
        os._exit(1)


def _result(job: Mapping[str, Any], part: str, preloaded: Callable[..., Any] | None) -> dict[str, Any]:
    try:
        if part == "tests":
            sys.set_int_max_str_digits(MOST_DIGITS)
            return {"value": run_tests(job["tests"], socket.socket(fileno=0))}
        function = preloaded
        if part == "source":
            names: dict[str, Any] = {"__name__": "__sandbox__"}
            exec(compile(job["source"], "source", "exec"), names)
            if not job["function"]:
                return {"value": None}
            function = names.get(job["function"])
        if not callable(function):
            return {"status": "value", "why": f"there is no function {job['function'] or 'preloaded'}"}
        return {"value": plain(function(**job["arguments"]))}
    except ValueRefusedError as error:
        return {"status": "value", "why": str(error)}
    except BaseException as error:  # SystemExit and KeyboardInterrupt are exceptions of the job too
        return {"status": _status(error), "why": _phrase(error)}


def _status(error: BaseException) -> str:
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return "memory"
    if getattr(error, "errno", None) == errno.EAGAIN or "can't start new thread" in _text(error):
        return "processes"
    return "error"


def _phrase(error: BaseException) -> str:
    text = _text(error)
    return f"{type(error).__name__}{f': {text}' if text else ''}"[:300]


def _text(error: BaseException) -> str:
    try:
        return str(error)[:300]
    except BaseException:  # its __str__ is the job's code
        return ""


def plain(value: Any, depth: int = 0) -> Any:
    """A value that JSON knows; NumPy's and PyTorch's have `item`, and their arrays `tolist`."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if depth < 20:
        if hasattr(value, "tolist"):
            return plain(value.tolist(), depth + 1)
        if isinstance(value, dict):
            return {str(key): plain(inner, depth + 1) for key, inner in value.items()}
        if hasattr(value, "__iter__") and not isinstance(value, str | bytes):
            return [plain(inner, depth + 1) for inner in value]
        for kind in (bool, int, float, str):
            if isinstance(value, kind):
                return kind(value)
    raise ValueRefusedError(f"it returned {type(value).__name__}, which is no number, text, list or object")


def _write(result: Mapping[str, Any]) -> None:
    """The whole result. A reader that has enough ends this process."""
    try:
        left = memoryview(json.dumps(result).encode("utf-8", "replace"))
    except (ValueError, RecursionError, MemoryError) as error:
        left = memoryview(json.dumps({"status": "value", "why": type(error).__name__}).encode())
    while left:
        left = left[os.write(RESULT, left) :]
