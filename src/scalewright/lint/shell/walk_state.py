"""The state of a walk over a script: the commands, assignments and variables that it has collected so far."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from scalewright.lint.shell.syntax import Assignment, Command, Comment, Heredoc, Word
from scalewright.lint.shell.words import resolve, split_words

MAX_EXPANDED = 512
"""Words that a variable may expand to. Longer values are not followed: such command lines do not occur."""
_MAX_VALUE = 16384


def no_file(name: str) -> str | None:
    return None


@dataclass(slots=True)
class WalkState:
    """What the walk has collected so far, over the script and all texts inside it."""

    starts: tuple[int, ...]
    commands: list[Command] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)
    heredocs: list[Heredoc] = field(default_factory=list)
    comments: list[Comment] = field(default_factory=list)
    functions: dict[str, int] = field(default_factory=dict)
    variables: dict[str, tuple[Word, ...] | None] = field(default_factory=dict)
    """Value of each variable as words; None: its value is unknown."""
    num_nested: int = 0
    """How many texts inside texts the walk is in."""
    read_file: Callable[[str], str | None] = no_file
    """Text of a file that the script sources; None: not available."""
    sourced: list[str] = field(default_factory=list)

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset."""
        line = bisect_right(self.starts, offset)
        return line, offset - self.starts[line - 1] + 1

    def assign(self, assignment: Assignment) -> None:
        """Record an assignment, and the value of its variable as far as it is certain."""
        self.assignments.append(assignment)
        self.variables[assignment.name] = self._new_value(assignment)

    def _new_value(self, assignment: Assignment) -> tuple[Word, ...] | None:
        within, value = assignment.within, assignment.value
        if within.loops or within.functions or within.is_branch or within.is_subshell or within.is_substitution:
            return None  # the assignment may not run, or not in this shell
        if assignment.is_array:
            words = assignment.items
        else:
            text = resolve(value.text, self.variables)
            if len(text) > _MAX_VALUE:
                return None
            parts = split_words(text)
            if len(parts) == 1 and text.startswith(("$(", "`")):
                return None
            words = tuple(
                Word(text=part, start=value.start, end=value.end, is_static="$" not in part and "`" not in part)
                for part in parts
            )
        if assignment.is_append:
            before = self.variables.get(assignment.name)
            if before is None:
                return None
            words = (*before, *words)
        is_too_long = len(words) > MAX_EXPANDED or sum(len(word.text) for word in words) > _MAX_VALUE
        return None if is_too_long else words

    def mark_exported(self, name: str) -> None:
        """`A=1; export A`: the last assignment of the variable is exported."""
        for index in range(len(self.assignments) - 1, -1, -1):
            if self.assignments[index].name == name:
                self.assignments[index] = replace(self.assignments[index], is_exported=True)
                return
