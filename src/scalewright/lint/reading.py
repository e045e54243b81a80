"""From a file to a script, or one sentence that says why not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from scalewright.errors import ConfigError
from scalewright.lint.script import SHELL_NAMES, Script, interpreter, parse_script

MAX_BYTES = 4 * 1024 * 1024
"""Slurm's own limit, max_script_size: sbatch refuses what is larger."""
MAX_LINE = 64 * 1024
"""Characters of a line; real scripts stay far below, and the grammar's time grows with the square of a bad line."""
MAX_OPERATORS = 2000
"""Pipes, brackets and the like of one line, for the same reason."""
_PROGRAMS = re.compile(r"^(python|perl|ruby|Rscript|julia|node|lua|pwsh)[\d.]*$")
"""Interpreters that sbatch runs as well; only the header of their scripts is read."""
_OPERATORS = re.compile(r"[|&(){}<`]")
_SYNTAX_S = 10.0


def read_source(path: Path) -> str:
    """The text of a script, line ends as they are. Raises ConfigError with one sentence."""
    try:
        if path.is_dir():
            raise ConfigError(f"{path}: is a folder; name the scripts in it, such as {path}/*.sh")
        if not path.is_file() and path.exists():
            raise ConfigError(f"{path}: is no ordinary file; name a script, or give - to read standard input")
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ConfigError(f"{path}: has {size:,} bytes; sbatch refuses scripts of more than 4 MiB, split it")
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file; check the path") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    return checked_text(content, str(path))


def read_standard_input() -> str:
    return checked_text(sys.stdin.buffer.read(MAX_BYTES + 1), "standard input")


def checked_text(content: bytes, where: str) -> str:
    """`content` as text, if it can be a script at all."""
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{where}: has more than 4 MiB, which sbatch refuses; split it")
    if not content.strip():
        raise ConfigError(f"{where}: is empty; sbatch refuses it, so name another file")
    if b"\0" in content:
        raise ConfigError(f"{where}: is a binary file (it holds a zero byte); name a text file")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        at = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{where}: is not UTF-8 text (line {at}, byte {error.start}); save it as UTF-8") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line) > MAX_LINE:
            raise ConfigError(
                f"{where}: line {number} has {len(line):,} characters, more than {MAX_LINE:,}; break it up"
            )
        if len(line) > MAX_OPERATORS and len(_OPERATORS.findall(line)) > MAX_OPERATORS:
            raise ConfigError(f"{where}: line {number} has over {MAX_OPERATORS:,} pipes and brackets; break it up")
    return text


def read_script(text: str, where: str, overrides: Mapping[str, str | None], folder: Path) -> Script:
    """The script in `text`, if a shell can read it."""
    program = interpreter(text.split("\n", 1)[0].rstrip("\r"))
    if program and program not in SHELL_NAMES and not _PROGRAMS.match(program):
        raise ConfigError(f"{where}: runs under {program}, whose syntax is not read here; lint reads sh and bash")
    script = parse_script(text, where, overrides, folder)
    if script.body.error_at is not None and not script.is_template:
        problem = syntax_problem(script)
        if problem:
            raise ConfigError(f"{where}: {problem}; correct it, then lint again")
    return script


def syntax_problem(script: Script) -> str:
    """Why a shell would not read the script; empty: it would. The shell decides: the grammar knows less than it."""
    assert script.body.error_at is not None
    line = script.place(min(script.body.error_at, len(script.text) - 1))[0]
    doubt = f"line {line}: the shell's syntax ends here: a quote, a bracket or a heredoc is not closed"
    bash = shutil.which("bash")
    if bash is None:
        return doubt
    try:
        done = subprocess.run(
            [bash, "--norc", "--noprofile", "-n"],
            input=script.masked.replace("\r", "").encode(),
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
            capture_output=True,
            timeout=_SYNTAX_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return doubt
    said = done.stderr.decode("utf-8", "replace")
    heredoc = re.search(
        r"line (\d+): warning: here-document at line (\d+) delimited by end-of-file \(wanted `(.*)'\)", said
    )
    if heredoc:
        return f"line {heredoc.group(2)}: the heredoc is never closed: {heredoc.group(3)!r} is not on a line of its own"
    if done.returncode == 0:
        return ""
    first = next((line for line in said.splitlines() if ": line " in line), "")
    reason = re.search(r"line (\d+): (.*)", first)
    return f"line {reason.group(1)}: {_one_sentence(reason.group(2))}" if reason else doubt


def _one_sentence(said: str) -> str:
    if "looking for matching" in said:
        mark = said.rpartition("matching ")[2]
        return f"a {mark} opens a quote or a bracket that is never closed"
    return said.replace("syntax error: ", "").replace("syntax error ", "")[:160]
