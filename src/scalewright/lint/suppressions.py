"""Comments that switch a rule off, with a reason: `# scalewright: ignore=fixed-port the port is ours by reservation`.

Behind code or on the line above it, the comment holds for that line; above the first command, for the whole script.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from scalewright.lint.rule import Context, Hit, LintRule, rule
from scalewright.lint.script import Script

_COMMENT = re.compile(
    r"#\s*scalewright:\s*ignore\s*=\s*(?P<rules>[A-Za-z0-9-]+(?:\s*,\s*[A-Za-z0-9-]+)*)(?P<reason>.*)$"
)
_ATTEMPT = re.compile(r"#\s*scalewright:\s*ignore\b(?!\s*=\s*[A-Za-z0-9])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppression:
    rules: tuple[str, ...]
    reason: str
    line: int
    """Of the comment."""
    column: int
    first: int
    last: int
    """Lines that it holds for."""

    def covers(self, rule_id: str, line: int) -> bool:
        return bool(self.reason) and rule_id in self.rules and self.first <= line <= self.last


def suppressions(script: Script) -> tuple[Suppression, ...]:
    return tuple(_found(script))


def _found(script: Script) -> Iterator[Suppression]:
    if "scalewright:" not in script.text:
        return
    for number, line in enumerate(script.lines, start=1):
        match = _COMMENT.search(line) if "scalewright:" in line else None
        if match is None or not _is_comment(script, number, match.start()):
            continue
        reason = match.group("reason").strip(" \t:-—")
        names = tuple(name.strip() for name in match.group("rules").split(","))
        first, last = _reach(script, number, line[: match.start()].strip())
        yield Suppression(rules=names, reason=reason, line=number, column=match.start() + 1, first=first, last=last)


def _is_comment(script: Script, number: int, column: int) -> bool:
    """Whether the shell takes it for a comment, or Slurm does, behind a directive."""
    if not script.is_shell or number < script.header.end_line:
        return True
    offset = script.starts[number - 1] + column
    return any(comment.start <= offset < comment.end for comment in script.comments)


def _reach(script: Script, number: int, before: str) -> tuple[int, int]:
    if before and not before.startswith("#"):
        return _statement(script, number)
    if before.startswith("#SBATCH"):
        return number, number
    if number < script.header.end_line:
        return 1, len(script.lines)
    following = number + 1
    while following <= len(script.lines) and script.lines[following - 1].lstrip().startswith("#"):
        following += 1
    return number + 1, _statement(script, following)[1]


def _statement(script: Script, number: int) -> tuple[int, int]:
    """Lines of the command that has a part on this line: continuations belong to it."""
    for command in script.commands:
        last = script.place(max(command.start, command.end - 1))[0]
        if command.line <= number <= last:
            return command.line, last
    return number, number


def _nothing(script: Script, context: Context) -> Iterator[Hit]:
    """The engine yields these itself, once it knows what all other rules found."""
    return iter(())


@rule(
    id="suppression-without-reason",
    severity="warning",
    title="A suppression without a reason",
    why="Whoever reads the script next must know why the rule does not hold here, or the comment outlives its cause.",
    source="our own convention",
    before="#!/bin/bash\n#SBATCH --nodes=1\n# scalewright: ignore=no-time\nhostname\n",
    after="#!/bin/bash\n#SBATCH --nodes=1\n# scalewright: ignore=no-time the partition's default fits\nhostname\n",
)
def without_reason(script: Script, context: Context) -> Iterator[Hit]:
    if "scalewright:" not in script.text:
        return
    for found in suppressions(script):
        if not found.reason:
            yield Hit(
                line=found.line,
                column=found.column,
                message="the suppression gives no reason, so it has no effect",
                next_step=f"write why after it: # scalewright: ignore={','.join(found.rules)} BECAUSE ...",
            )
    for number, line in enumerate(script.lines, start=1):
        match = _ATTEMPT.search(line)
        if match and _is_comment(script, number, match.start()):
            yield Hit(
                line=number,
                column=match.start() + 1,
                message="the suppression names no rule, so it has no effect",
                next_step="write # scalewright: ignore=RULE and a reason",
            )


suppression_unused: LintRule = rule(
    id="suppression-unused",
    severity="warning",
    title="A suppression that suppresses nothing",
    why="A comment that switches off a rule where it would find nothing, or a rule that does not exist, misleads.",
    source="our own convention",
    before="#!/bin/bash\n#SBATCH --time=01:00:00\n# scalewright: ignore=no-time nobody needs one\nhostname\n",
    after="#!/bin/bash\n#SBATCH --time=01:00:00\nhostname\n",
)(_nothing)

SUPPRESSION_RULES = (without_reason, suppression_unused)
