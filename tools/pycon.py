"""Python examples of the pages, run as they stand: the output inside a `pycon` block that follows `<!-- python -->`.

Statements start with `>>> ` and go on with `... `. Blocks of one page share their names, as a reader's session would.
"""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any

PYCON = re.compile(r"<!-- python -->\n```pycon\n(?P<body>.*?)```\n", re.S)
STATEMENT = re.compile(r"^>>> .*\n(?:^\.\.\. .*\n)*", re.M)


def fill_python(text: str) -> str:
    """A page with the output of its Python examples brought up to date."""
    names: dict[str, Any] = {}

    def filled(match: re.Match[str]) -> str:
        shown = "".join(statement + output_of(statement, names) for statement in STATEMENT.findall(match["body"]))
        return f"<!-- python -->\n```pycon\n{shown}```\n"

    return PYCON.sub(filled, text)


def output_of(statement: str, names: dict[str, Any]) -> str:
    source = re.sub(r"^(?:>>>|\.\.\.) ", "", statement, flags=re.M)
    printed, complaints = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complaints):
        exec(compile(source, "<example>", "single"), names)
    if complaints.getvalue():
        raise SystemExit(f"{source}: {complaints.getvalue()}")
    return printed.getvalue()
