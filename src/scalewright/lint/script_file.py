"""Script files: read one from disk or standard input and check it; anything else raises ConfigError."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from scalewright import units
from scalewright.errors import ConfigError
from scalewright.lint.file_kind import document_kind
from scalewright.lint.script import SHELL_NAMES, Script, interpreter, parse_script

MAX_BYTES = 4 * units.MIB
"""Slurm's own limit, max_script_size: sbatch refuses larger scripts."""
MAX_LINE = 64 * units.KIB
"""Characters of a line. Real scripts stay far below; the parser's time grows with the square of a bad line."""
MAX_OPERATORS = 2000
"""Pipes, brackets and the like in one line, limited for the same reason."""
_PROGRAMS = re.compile(r"^(python|perl|ruby|Rscript|julia|node|lua|pwsh)[\d.]*$")
"""Other interpreters that sbatch scripts may have; only the header of such a script is read."""
_OPERATORS = re.compile(r"[|&(){}<`]")
_SYNTAX_S = 10.0


def read_source(path: Path) -> str:
    """The text of a script, with its line ends. Raises ConfigError if it cannot be a script."""
    try:
        if path.is_dir():
            raise ConfigError(f"{path}: is a folder; name the scripts in it, such as {path}/*.sh")
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{path}: is not an ordinary file; name a script, or write - to read standard input")
        if status.st_size > MAX_BYTES:
            raise ConfigError(f"{path}: has {status.st_size:,} bytes; sbatch refuses scripts over 4 MiB, so split it")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file; check the path") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{path}: cannot be read: {reason}; name another file") from error
    return checked_text(content, str(path))


def read_standard_input() -> str:
    return checked_text(sys.stdin.buffer.read(MAX_BYTES + 1), "standard input")


def checked_text(content: bytes, where: str) -> str:
    """`content` as text. Raises ConfigError if it cannot be a script."""
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{where}: is over 4 MiB, and sbatch refuses such scripts; split it")
    if not content.strip():
        raise ConfigError(f"{where}: is empty, and sbatch refuses an empty script; name another file")
    if b"\0" in content:
        raise ConfigError(f"{where}: is a binary file (it holds a zero byte); name a text file")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        at = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{where}: is not UTF-8 text (line {at}, byte {error.start}); save it as UTF-8") from error
    if len(text) <= MAX_OPERATORS:
        return text
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line) > MAX_LINE:
            raise ConfigError(
                f"{where}: line {number} has {len(line):,} characters, the limit is {MAX_LINE:,}; break it up"
            )
        if len(line) > MAX_OPERATORS and len(_OPERATORS.findall(line)) > MAX_OPERATORS:
            raise ConfigError(f"{where}: line {number} has over {MAX_OPERATORS:,} pipes and brackets; break it up")
    return text


def read_script(text: str, where: str, overrides: Mapping[str, str | None], folder: Path) -> Script:
    """The script in `text`. Raises ConfigError if lint cannot read its language or a shell finds a syntax error."""
    kind = document_kind(text, where)
    if kind:
        raise ConfigError(f"{where}: no #SBATCH lines that sbatch reads (this is {kind}); name a job script")
    program = interpreter(text.split("\n", 1)[0].rstrip("\r"))
    if program and program not in SHELL_NAMES and not _PROGRAMS.match(program):
        raise ConfigError(f"{where}: is a script for {program}; lint reads only sh and bash")
    script = parse_script(text, where, overrides, folder)
    if script.body.error_at is not None and not script.is_template:
        problem = syntax_problem(script)
        if problem:
            raise ConfigError(f"{where}: {problem}; correct it and run lint again")
    return script


def syntax_problem(script: Script) -> str:
    """The syntax error that bash reports; empty: none. bash decides, because the parser knows less than bash."""
    assert script.body.error_at is not None
    line = script.place(min(script.body.error_at, len(script.text) - 1))[0]
    parser_error = f"line {line}: syntax error: a quote, a bracket or a heredoc is not closed"
    bash = shutil.which("bash")
    if bash is None:
        return parser_error
    try:
        completed = subprocess.run(
            [bash, "--norc", "--noprofile", "-n"],
            input=script.masked.replace("\r", "").encode(),
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
            capture_output=True,
            timeout=_SYNTAX_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return parser_error
    errors = completed.stderr.decode("utf-8", "replace")
    heredoc = re.search(
        r"line (\d+): warning: here-document at line (\d+) delimited by end-of-file \(wanted `(.*)'\)", errors
    )
    if heredoc:
        return f"line {heredoc.group(2)}: the heredoc is never closed: no line consists of {heredoc.group(3)!r} alone"
    if completed.returncode == 0:
        return ""
    first = next((line for line in errors.splitlines() if ": line " in line), "")
    reason = re.search(r"line (\d+): (.*)", first)
    return f"line {reason.group(1)}: {_one_sentence(reason.group(2))}" if reason else parser_error


def _one_sentence(bash_error: str) -> str:
    if "looking for matching" in bash_error:
        mark = bash_error.rpartition("matching ")[2]
        return f"a quote or a bracket is never closed: {mark} is missing"
    return bash_error.replace("syntax error: ", "").replace("syntax error ", "")[:160]
