"""What a lint rule consists of: a documented check that yields hits, and helpers that build hits and fixes.

@rule(id="no-time", severity="info", title="...", why="...", source="...", before="...", after="...")
def no_time(script: Script, context: Context) -> Iterator[Hit]:
    if not script.has("time"):
        yield at_header(script, "...", next_step="...")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from scalewright.records.types import Rule, Severity

if TYPE_CHECKING:
    from scalewright.lint.header.directives import Directive
    from scalewright.lint.script import Script
    from scalewright.lint.shell.launches import Launch, LaunchOption
    from scalewright.lint.shell.syntax import Assignment, Command, Word
    from scalewright.sites.types import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Replace `text[start:end]`; start == end inserts."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFix:
    """Edits of a script that satisfy a rule."""

    edits: tuple[Edit, ...]
    title: str
    """What it does, in the imperative: "derive the port from the job's id"."""
    is_safe: bool
    """False: it may change what the job does. It is only applied with --unsafe-fixes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A place where a script breaks a rule."""

    line: int
    message: str
    next_step: str
    """What to type instead."""
    column: int = 1
    end_column: int = 0
    """One past the last character to mark; 0: the end of the line."""
    fix: ScriptFix | None = None
    severity: Severity | None = None
    """Severity of this hit; None: the rule's severity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNeeds:
    """GPUs and memory that the model needs, according to the planner."""

    model: str
    num_gpus: int
    """GPUs of the plan. Without a plan: the fewest GPUs on which full training fits."""
    device_bytes: float
    """Memory used on each of these GPUs."""
    host_bytes_per_node: float
    """Host memory; 0: unknown."""
    tp: int
    pp: int
    is_planned: bool = False
    """True: from a plan file. False: the fewest GPUs that fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a rule knows besides the script: site, Slurm version, model, pilot run."""

    site: Site | None = None
    slurm: tuple[int, int] | None = None
    """Version of Slurm; None: unknown."""
    needs: ModelNeeds | None = None
    pilot_s: float | None = None
    """Duration of a pilot run; None: there is none."""
    folder: Path = field(default_factory=Path)
    """Folder that the script's relative paths start from."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))


Check = Callable[["Script", Context], Iterator[Hit]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LintRule(Rule):
    """A rule with its check and the content of its documentation page."""

    check: Check
    before: str
    """A script on which the rule fires."""
    after: str
    """The corrected script, on which the rule is silent."""
    slurm: str = ""
    """Slurm versions that it applies to, such as ">=22.05,<23.11"; empty: all."""
    sites: tuple[str, ...] = ()
    """Site profiles that it applies to; empty: all, also when no site is given."""
    needs_header: bool = True
    """True: only checked in scripts with directives, so that helper scripts without a header get no findings."""

    @property
    def category(self) -> str:
        """Folder or module of `lint/rules` that holds the check, such as `network`."""
        room, _, module = self.check.__module__.partition(".rules.")
        return module.partition(".")[0] if module else room.rpartition(".")[2]

    @property
    def page(self) -> str:
        """Path of its page in the documentation."""
        return f"docs/lint/{self.category}/{self.id}.md"


def rule(
    *,
    id: str,
    severity: Severity,
    title: str,
    why: str,
    source: str,
    before: str,
    after: str,
    slurm: str = "",
    sites: tuple[str, ...] = (),
    needs_header: bool = True,
) -> Callable[[Check], LintRule]:
    """Turn a check into a rule. `rules.all_rules` finds it in its module."""

    def decorate(check: Check) -> LintRule:
        return LintRule(
            id=id,
            severity=severity,
            title=title,
            why=why,
            source=source,
            check=check,
            before=before,
            after=after,
            slurm=slurm,
            sites=sites,
            needs_header=needs_header,
        )

    return decorate


def at(
    script: Script,
    place: Command | Word | Directive | Assignment | Launch | LaunchOption,
    message: str,
    *,
    next_step: str,
    fix: ScriptFix | None = None,
    severity: Severity | None = None,
) -> Hit:
    """A hit that marks a command, a word, a directive, an assignment, a launcher or its option."""
    return at_span(script, place.start, place.end, message, next_step=next_step, fix=fix, severity=severity)


def at_span(
    script: Script,
    start: int,
    end: int | None,
    message: str,
    *,
    next_step: str,
    fix: ScriptFix | None = None,
    severity: Severity | None = None,
) -> Hit:
    """A hit that marks `text[start:end]`, or from `start` to the end of the line if `end` is None or further down."""
    line, column = script.place(start)
    end_line, end_column = script.place(end) if end is not None else (line, 0)
    return Hit(
        line=line,
        column=column,
        end_column=end_column if end_line == line else 0,
        message=message,
        next_step=next_step,
        fix=fix,
        severity=severity,
    )


def at_header(
    script: Script, message: str, *, next_step: str, fix: ScriptFix | None = None, severity: Severity | None = None
) -> Hit:
    """A hit about something that the header lacks. It marks the line after which the new directive goes."""
    line = header_line(script)
    return Hit(line=line, message=message, next_step=next_step, fix=fix, severity=severity)


def header_line(script: Script) -> int:
    """Line after which a new directive goes: the last directive of the first component of the job."""
    effective = [d for d in script.directives if d.is_effective or d.ignored == "overridden"]
    return max((d.line for d in effective if d.component == 0), default=1)


def add_directive(script: Script, text: str, *, title: str = "", is_safe: bool) -> ScriptFix | None:
    """A fix that adds `#SBATCH text` to the header; None: sbatch would not read it there."""
    if script.header.stray:
        return None
    place = script.line_end(header_line(script))
    lead = "" if script.text[:place].endswith("\n") or not place else script.newline
    line = f"{lead}#SBATCH {text}{script.newline}"
    return insert_text(place, line, title=title or f"add #SBATCH {text}", is_safe=is_safe)


def insert_before_body(script: Script, lines: str, *, title: str, is_safe: bool) -> ScriptFix:
    """A fix that inserts lines before the first command."""
    number = script.header.end_line
    place = script.starts[number - 1] if number <= len(script.starts) else len(script.text)
    lead = "" if script.text[:place].endswith("\n") or not place else script.newline
    text = lead + "".join(line + script.newline for line in lines.splitlines())
    return insert_text(place, text, title=title, is_safe=is_safe)


def replace_text(
    place: Command | Word | Directive | Assignment | LaunchOption, text: str, *, title: str, is_safe: bool
) -> ScriptFix:
    """A fix that replaces a word, a directive or the like by `text`."""
    return replace_span(place.start, place.end, text, title=title, is_safe=is_safe)


def replace_span(start: int, end: int, text: str, *, title: str, is_safe: bool) -> ScriptFix:
    """A fix that replaces `text[start:end]`."""
    return ScriptFix(edits=(Edit(start=start, end=end, text=text),), title=title, is_safe=is_safe)


def insert_text(offset: int, text: str, *, title: str, is_safe: bool) -> ScriptFix:
    """A fix that inserts `text`."""
    return replace_span(offset, offset, text, title=title, is_safe=is_safe)


def remove_line(script: Script, line: int, *, title: str, is_safe: bool) -> ScriptFix:
    """A fix that removes a whole line."""
    return replace_span(script.starts[line - 1], script.line_end(line), "", title=title, is_safe=is_safe)
