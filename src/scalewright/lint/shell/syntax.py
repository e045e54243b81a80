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
MAX_DEPTH = 400
"""Nesting that is followed. Nobody writes more, and thousands of parentheses must not overflow the stack."""


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
    code = masked.replace("\\\r\n", " \\\n").replace("\r", " ")
    return code if code.isascii() else re.sub(r"[^\x00-\x7f]", "x", code)


def parse(masked: str) -> Tree:
    return _parser().parse(parseable(masked).encode("ascii"))
