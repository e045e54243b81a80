"""The body of a script as commands, assignments, traps and heredocs: what tree-sitter-bash sees, flattened.

Code is parsed with every character that is not ASCII, every carriage return and every placeholder of a template
replaced by one of the same length: byte offsets of the tree are then offsets in the text.
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
"""Nesting beyond which we do not look: nobody writes it, and thousands of parentheses must not end in an exception."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word of a command."""

    text: str
    """Quotes and escapes resolved; what only the shell can know stays as it is written, such as `$HOME`."""
    start: int
    end: int
    is_static: bool
    """Whether `text` is what the program will see."""
    is_quoted: bool = False
    is_expanded: bool = False
    """The word came out of a variable that the script sets once; the span is that of the reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enclosing:
    """What a command stands in."""

    loops: tuple[Loop, ...] = ()
    functions: tuple[str, ...] = ()
    is_background: bool = False
    is_subshell: bool = False
    is_substitution: bool = False
    is_pipeline: bool = False
    is_condition: bool = False
    """Its exit status is tested: of an if or a while, or left of && or ||."""
    is_branch: bool = False
    """In a branch of an if or a case: it may not run."""
    is_heredoc: bool = False
    """In text that is fed to a shell: `bash <<EOF`, or the argument of `bash -c`."""
    loop_starts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirect:
    operator: str
    target: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    name: str
    """Base name of the program; empty where only the shell knows it."""
    words: tuple[Word, ...]
    """With the program as the first."""
    environment: tuple[tuple[str, Word], ...]
    """Assignments before the program: `A=1 srun ...`."""
    start: int
    end: int
    line: int
    column: int
    within: Enclosing
    redirects: tuple[Redirect, ...] = ()
    parent: Command | None = None
    """The command that gives this text to a shell: `srun bash -c "..."` or `bash <<EOF`."""
    origin: str = ""
    """`FILE:LINE` where it stands in a file that the script sources; spans are then those of the source command."""

    @property
    def arguments(self) -> tuple[Word, ...]:
        return self.words[1:]

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(word.text for word in self.words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
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
    """As of a command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trap:
    action: str
    signals: tuple[str, ...]
    """Without SIG: `USR1`, `TERM`, `EXIT`."""
    command: Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Heredoc:
    text: str
    start: int
    end: int
    line: int
    is_quoted: bool
    """Nothing in it is expanded."""
    command: Command | None
    """What reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comment:
    text: str
    start: int
    end: int
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    commands: tuple[Command, ...]
    assignments: tuple[Assignment, ...]
    heredocs: tuple[Heredoc, ...]
    comments: tuple[Comment, ...]
    functions: dict[str, int]
    """Line of each function that the script defines."""
    variables: dict[str, tuple[Word, ...]]
    """What the script sets for certain, as words, at its end."""
    sourced: tuple[str, ...]
    """Files that were read because the script sources them."""
    error_at: int | None
    """Offset of the first place that is not shell; None: everything is."""
    error: str = ""


@cache
def _parser() -> Parser:
    try:
        import tree_sitter
        import tree_sitter_bash
    except ImportError as error:
        raise MissingExtraError("lint", error.name or "tree-sitter-bash") from error
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def parseable(masked: str) -> str:
    """ASCII of the same length: what is left of a line's CR moves before a continuation, other characters become x."""
    code = masked.replace("\\\r\n", " \\\n").replace("\r", " ")
    return code if code.isascii() else re.sub(r"[^\x00-\x7f]", "x", code)


def parse(masked: str) -> Tree:
    return _parser().parse(parseable(masked).encode("ascii"))
