"""What a walk over a script's commands has found so far, over all texts that make it up."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from scalewright.lint.shell import Assignment, Command, Comment, Enclosing, Heredoc, Word
from scalewright.lint.words import resolve, split_words

MAX_EXPANDED = 512
"""Words that a variable may expand to; more is no command line that somebody reads."""
_MAX_VALUE = 16384


def no_file(name: str) -> str | None:
    return None


@dataclass(slots=True)
class Found:
    """What the walk has found so far, over all units of a script."""

    starts: tuple[int, ...]
    commands: list[Command] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)
    heredocs: list[Heredoc] = field(default_factory=list)
    comments: list[Comment] = field(default_factory=list)
    functions: dict[str, int] = field(default_factory=dict)
    variables: dict[str, tuple[Word, ...] | None] = field(default_factory=dict)
    """Value of each variable as words; None: not known here."""
    num_nested: int = 0
    read_file: Callable[[str], str | None] = no_file
    """Text of a file that the script sources, if there is one."""
    sourced: list[str] = field(default_factory=list)

    def place(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self.starts, offset)
        return line, offset - self.starts[line - 1] + 1


def remember(
    found: Found,
    name: str,
    value: Word,
    items: tuple[Word, ...],
    within: Enclosing,
    *,
    is_array: bool,
    is_append: bool,
) -> None:
    if within.loops or within.functions or within.is_branch or within.is_subshell or within.is_substitution:
        found.variables[name] = None
        return
    if is_array:
        words = items
    else:
        text = resolve(value.text, found.variables)
        if text.startswith(("$(", "`")) or len(text) > _MAX_VALUE:
            found.variables[name] = None
            return
        words = tuple(
            Word(text=part, start=value.start, end=value.end, is_static="$" not in part and "`" not in part)
            for part in split_words(text)
        )
    if is_append:
        before = found.variables.get(name)
        if before is None:
            found.variables[name] = None
            return
        words = (*before, *words)
    too_long = len(words) > MAX_EXPANDED or sum(len(word.text) for word in words) > _MAX_VALUE
    found.variables[name] = None if too_long else words


def export_later(found: Found, name: str) -> None:
    """`A=1; export A`: the assignment was of an exported variable."""
    for index in range(len(found.assignments) - 1, -1, -1):
        if found.assignments[index].name == name:
            found.assignments[index] = replace(found.assignments[index], is_exported=True)
            return
