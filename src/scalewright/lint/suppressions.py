"""Comments that switch a rule off, with a reason: `# scalewright: ignore=fixed-port the port is ours by reservation`.

At the end of a line or on the line above it, the comment covers that line. Above the first command, it covers the whole
script.
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
    """One comment that switches rules off, and the lines that it covers."""

    rules: tuple[str, ...]
    reason: str
    line: int
    """Of the comment."""
    column: int
    first: int
    """First line that it covers."""
    last: int
    """Last line that it covers."""

    def covers(self, rule_id: str, line: int) -> bool:
        return bool(self.reason) and rule_id in self.rules and self.first <= line <= self.last


def suppressions(script: Script) -> tuple[Suppression, ...]:
    """All suppressions of a script, also those without a reason."""
    return tuple(_suppressions(script))


def _suppressions(script: Script) -> Iterator[Suppression]:
    if "scalewright:" not in script.text:
        return
    for number, line in enumerate(script.lines, start=1):
        match = _COMMENT.search(line) if "scalewright:" in line else None
        if match is None or not _is_comment(script, number, match.start()):
            continue
        reason = match.group("reason").strip(" \t:-—")
        names = tuple(name.strip() for name in match.group("rules").split(","))
        first, last = _covered_lines(script, number, line[: match.start()].strip())
        yield Suppression(rules=names, reason=reason, line=number, column=match.start() + 1, first=first, last=last)


def _is_comment(script: Script, number: int, column: int) -> bool:
    """Whether the shell reads it as a comment, or Slurm does after a directive."""
    if not script.is_shell or number < script.header.end_line:
        return True
    offset = script.starts[number - 1] + column
    return any(comment.start <= offset < comment.end for comment in script.comments)


def _covered_lines(script: Script, number: int, before: str) -> tuple[int, int]:
    """First and last line that a comment on line `number` covers; `before` is the text to its left."""
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
    """First and last line of the command on this line, continuation lines included."""
    for command in script.commands:
        last = script.place(max(command.start, command.end - 1))[0]
        if command.line <= number <= last:
            return command.line, last
    return number, number


def _nothing(script: Script, context: Context) -> Iterator[Hit]:
    """The engine yields these hits itself, after all other rules."""
    return iter(())


@rule(
    id="suppression-without-reason",
    severity="warning",
    title="A suppression without a reason",
    why="The next reader must know why the rule does not apply here. Without a reason nobody dares to remove the "
    "comment later.",
    source="Scalewright's own convention",
    before="#!/bin/bash\n#SBATCH --nodes=1\n# scalewright: ignore=no-time\nhostname\n",
    after="#!/bin/bash\n#SBATCH --nodes=1\n# scalewright: ignore=no-time the partition's default fits\nhostname\n",
)
def without_reason(script: Script, context: Context) -> Iterator[Hit]:
    if "scalewright:" not in script.text:
        return
    for suppression in suppressions(script):
        if not suppression.reason:
            yield Hit(
                line=suppression.line,
                column=suppression.column,
                message="the suppression gives no reason, so it has no effect",
                next_step=f"add the reason: # scalewright: ignore={','.join(suppression.rules)} BECAUSE ...",
            )
    for number, line in enumerate(script.lines, start=1):
        match = _ATTEMPT.search(line)
        if match and _is_comment(script, number, match.start()):
            yield Hit(
                line=number,
                column=match.start() + 1,
                message="the suppression names no rule, so it has no effect",
                next_step="write # scalewright: ignore=RULE REASON",
            )


suppression_unused: LintRule = rule(
    id="suppression-unused",
    severity="warning",
    title="A suppression without effect",
    why="The comment names a rule that finds nothing there, or that does not exist. It misleads the reader.",
    source="Scalewright's own convention",
    before="#!/bin/bash\n#SBATCH --time=01:00:00\n# scalewright: ignore=no-time nobody needs one\nhostname\n",
    after="#!/bin/bash\n#SBATCH --time=01:00:00\nhostname\n",
)(_nothing)

SUPPRESSION_RULES = (without_reason, suppression_unused)
