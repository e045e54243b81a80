"""The command line in this process: exit code and output, or the exception that a user would see as a traceback."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

import typer

from scalewright.cli.main import _check_numbers, app, describe_os_error
from scalewright.errors import ScalewrightError
from scalewright.records.terminal_text import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """What a command answered."""

    code: int
    out: str
    err: str


@cache
def _command() -> Any:
    return typer.main.get_command(app)


def _sentence(message: str) -> str:
    """As `main` prints it."""
    return f"error: {' '.join(printable(message).split())}\n"


def call(*arguments: str) -> Called:
    """Run a command as `main` does. An exception that `main` would not catch is raised."""
    out, err = io.StringIO(), io.StringIO()
    fixed = {"COLUMNS": "80", "NO_COLOR": "1"}
    with mock.patch.dict(os.environ, fixed), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            _check_numbers(list(arguments))
            code = _command().main(list(arguments), prog_name="scalewright", standalone_mode=False)
        except ScalewrightError as error:
            code = error.exit_code
            sys.stderr.write(_sentence(str(error)))
        except SystemExit as error:
            code = error.code
        except OSError as error:
            sentence, code = describe_os_error(error)
            sys.stderr.write(_sentence(sentence))
        except Exception as error:
            message = getattr(error, "format_message", None)
            if message is None:
                raise
            sys.stderr.write(_sentence(message()))
            code = 2
    return Called(code=code if isinstance(code, int) else 0, out=out.getvalue(), err=err.getvalue())
