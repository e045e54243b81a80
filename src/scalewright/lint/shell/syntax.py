"""The elements of a script's body: words, commands, assignments, traps, heredocs; and the parser, tree-sitter-bash.

Before parsing, non-ASCII characters, carriage returns and placeholders of a template are replaced by ASCII of the same
length. So byte offsets in the syntax tree are offsets in the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from scalewright.errors import MissingExtraError

if TYPE_CHECKING:
    from tree_sitter import Parser, Tree

Loop = Literal["for", "while", "until", "select"]
MAX_DEPTH = 100
"""Nesting that is followed. Nobody writes more, and thousands of parentheses must not overflow the stack."""
_MAX_ARITHMETIC = 2000
"""Characters of an arithmetic expression that begins with two brackets; longer ones stay as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word of a command."""

    text: str
    """Without quotes and escapes; what only the shell knows stays as written, such as `$HOME`."""
    start: int
    end: int
    is_static: bool
    """Whether the program gets exactly `text`."""
    is_quoted: bool = False
    is_expanded: bool = False
    """The word comes from a variable that the script sets; start and end are those of the reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enclosing:
    """What encloses a command: loops, functions, subshells, conditions."""

    loops: tuple[Loop, ...] = ()
    functions: tuple[str, ...] = ()
    is_background: bool = False
    is_subshell: bool = False
    is_substitution: bool = False
    is_pipeline: bool = False
    is_condition: bool = False
    """Its exit code is tested: condition of an if or a while, or left of && or ||."""
    is_branch: bool = False
    """In a branch of an if or a case, or right of && or ||: it may not run."""
    is_heredoc: bool = False
    """In text that another shell runs: `bash <<EOF`, or the argument of `bash -c`."""
    loop_starts: tuple[int, ...] = ()
    """Offset of each loop in `loops`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirect:
    """A redirection to or from a file."""

    operator: str
    target: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One simple command, with its words and redirections."""

    name: str
    """Base name of the program; empty if only the shell knows it."""
    words: tuple[Word, ...]
    """The program and its arguments."""
    environment: tuple[tuple[str, Word], ...]
    """Assignments before the program: `A=1 srun ...`."""
    start: int
    end: int
    line: int
    column: int
    within: Enclosing
    redirects: tuple[Redirect, ...] = ()
    parent: Command | None = None
    """The command that passes this text to a shell: `srun bash -c "..."` or `bash <<EOF`."""
    origin: str = ""
    """`FILE:LINE` if it comes from a file that the script sources; its place is then that of the `source` command."""

    @property
    def arguments(self) -> tuple[Word, ...]:
        return self.words[1:]

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(word.text for word in self.words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """`NAME=value`, also in export, declare and the like."""

    name: str
    value: Word
    is_exported: bool
    is_append: bool
    is_array: bool
    start: int
    end: int
    line: int
    column: int
    within: Enclosing
    items: tuple[Word, ...] = ()
    """Elements of an array."""
    origin: str = ""
    """`FILE:LINE` if it comes from a file that the script sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trap:
    """`trap ACTION SIGNAL...`"""

    action: str
    signals: tuple[str, ...]
    """Without SIG: `USR1`, `TERM`, `EXIT`."""
    command: Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Heredoc:
    """The text of a `<<EOF`."""

    text: str
    start: int
    end: int
    line: int
    is_quoted: bool
    """The shell expands nothing in it."""
    command: Command | None
    """The command that reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comment:
    """A comment of the shell, with its `#`."""

    text: str
    start: int
    end: int
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """Everything that the shell runs, in the order of the text."""

    commands: tuple[Command, ...]
    assignments: tuple[Assignment, ...]
    heredocs: tuple[Heredoc, ...]
    comments: tuple[Comment, ...]
    functions: dict[str, int]
    """Line of each function that the script defines."""
    variables: dict[str, tuple[Word, ...]]
    """Values at the end of the script, as words, where they are certain."""
    sourced: tuple[str, ...]
    """Files that the script sources and that were read."""
    error_at: int | None
    """Offset of the first syntax error; None: there is none."""
    error: str = ""
    """What is missing there."""


@cache
def _parser() -> Parser:
    try:
        import tree_sitter
        import tree_sitter_bash
    except ImportError as error:
        raise MissingExtraError("lint", error.name or "tree-sitter-bash") from error
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def parseable(masked: str) -> str:
    """ASCII of the same length: a CR becomes a blank (before the backslash of a continued line), other characters x."""
    code = masked
    if "\r" in code:
        code = code.replace("\\\r\n", " \\\n").replace("\r", " ")
    if not code.isascii():
        code = re.sub(r"[^\x00-\x7f]", "x", code.replace("\ufeff", " "))
    return _plain_arithmetic(code) if "$(((" in code else code


def _plain_arithmetic(code: str) -> str:
    """`$(((a) + b))` and `$(((a)) && b)` without the inner brackets, which the grammar cannot read; same length."""
    characters = list(code)
    for match in re.finditer(r"\$\(\(\(", code):
        start = match.start() + 3
        depth, place = 1, start + 1
        while place < len(code) and depth and place - start < _MAX_ARITHMETIC:
            depth += {"(": 1, ")": -1}.get(code[place], 0)
            place += 1
        if depth:
            continue
        end = place - 1
        if code[place : place + 1] == ")" and code[place : place + 2] != "))":
            # `$( ((a)) && b)`: a command that calculates; a colon stands for it.
            characters[start - 1], characters[start], characters[end], characters[place] = ":", " ", " ", " "
        else:
            characters[start], characters[end] = " ", " "
            for number in re.finditer(r"0x(?=\$)", code[start:end]):
                characters[start + number.start() : start + number.end()] = "  "
    return "".join(characters)


def parse(masked: str) -> Tree:
    return _parser().parse(parseable(masked).encode("ascii"))
