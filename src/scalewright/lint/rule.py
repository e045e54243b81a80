"""What a lint rule is: a documented check of a script that yields hits, each perhaps with a fix.

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
    from scalewright.lint.directives import Directive
    from scalewright.lint.launches import Launch, LaunchOption
    from scalewright.lint.script import Script
    from scalewright.lint.shell import Assignment, Command, Word
    from scalewright.sites.types import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Replace `text[start:end]`; start == end inserts."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    edits: tuple[Edit, ...]
    title: str
    """What it does, in the imperative: "derive the port from the job's id"."""
    is_safe: bool
    """False: it may change what the job does; only applied with --unsafe-fixes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A place where a rule does not hold."""

    line: int
    message: str
    next_step: str
    """What to write instead."""
    column: int = 1
    end_column: int = 0
    """One past the last character to mark; 0: the end of the line."""
    fix: Fix | None = None
    severity: Severity | None = None
    """Where it is not the rule's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNeeds:
    """What the planner says of the model that the script trains."""

    model: str
    num_gpus: int
    """GPUs of the plan; without one, the fewest on which training with the full state fits."""
    device_bytes: float
    """Taken on each of these GPUs."""
    host_bytes_per_node: float
    """Host memory; 0: not known."""
    tp: int
    pp: int
    is_planned: bool = False
    """From a plan, and not the fewest that fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What is known besides the script."""

    site: Site | None = None
    slurm: tuple[int, int] | None = None
    """Version of Slurm; None: unknown."""
    needs: ModelNeeds | None = None
    pilot_s: float | None = None
    """How long a pilot run took, start to end."""
    folder: Path = field(default_factory=Path)
    """Where relative paths of the script are looked for."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    def slurm_between(self, first: tuple[int, int], last: tuple[int, int]) -> bool:
        """Whether Slurm's version is known and lies in the range, ends included."""
        return self.slurm is not None and first <= self.slurm <= last


Check = Callable[["Script", Context], Iterator[Hit]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LintRule(Rule):
    """A rule with its check and what its page says."""

    check: Check
    before: str
    """A script, or the lines of one, that the rule finds fault with."""
    after: str
    """The same, written better: the rule finds nothing."""
    slurm: str = ""
    """Versions of Slurm that it holds for, such as ">=22.05,<23.11"; empty: all."""
    sites: tuple[str, ...] = ()
    """Profiles that it holds for; empty: all, and none."""
    needs_header: bool = True
    """Only asked of scripts with directives: a helper script is not blamed for having none."""


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
    """Make a rule of a check. `rules.all_rules` finds it in its module."""

    def made(check: Check) -> LintRule:
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

    return made


def at(
    script: Script,
    place: Command | Word | Directive | Assignment | Launch | LaunchOption,
    message: str,
    *,
    next_step: str,
    fix: Fix | None = None,
    severity: Severity | None = None,
) -> Hit:
    """A hit that marks a command, a word, a directive, an assignment, a launcher or its option."""
    line, column = script.place(place.start)
    end_line, end_column = script.place(place.end)
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
    script: Script, message: str, *, next_step: str, fix: Fix | None = None, severity: Severity | None = None
) -> Hit:
    """A hit about what the header lacks: it marks the last directive that counts, after which a new one goes."""
    line = header_line(script)
    return Hit(line=line, message=message, next_step=next_step, fix=fix, severity=severity)


def header_line(script: Script) -> int:
    """Line after which a new directive goes: in a job of several parts the last one of the first."""
    read = [d for d in script.directives if d.is_effective or d.ignored == "overridden"]
    return max((d.line for d in read if d.component == 0), default=1)


def add_directive(script: Script, text: str, *, title: str = "", is_safe: bool) -> Fix | None:
    """A fix that puts `#SBATCH text` after the last directive that counts; None: sbatch would not read it there."""
    if script.header.stray:
        return None
    place = script.line_end(header_line(script))
    lead = "" if script.text[:place].endswith("\n") or not place else script.newline
    edit = Edit(start=place, end=place, text=f"{lead}#SBATCH {text}{script.newline}")
    return Fix(edits=(edit,), title=title or f"add #SBATCH {text}", is_safe=is_safe)


def insert_before_body(script: Script, lines: str, *, title: str, is_safe: bool) -> Fix:
    """A fix that puts lines before the first command."""
    number = script.header.end_line
    place = script.starts[number - 1] if number <= len(script.starts) else len(script.text)
    lead = "" if script.text[:place].endswith("\n") or not place else script.newline
    text = lead + "".join(line + script.newline for line in lines.splitlines())
    return Fix(edits=(Edit(start=place, end=place, text=text),), title=title, is_safe=is_safe)


def replace_text(
    place: Command | Word | Directive | Assignment | LaunchOption, text: str, *, title: str, is_safe: bool
) -> Fix:
    """A fix that puts `text` in the place of what is marked."""
    return Fix(edits=(Edit(start=place.start, end=place.end, text=text),), title=title, is_safe=is_safe)


def remove_line(script: Script, line: int, *, title: str, is_safe: bool) -> Fix:
    edit = Edit(start=script.starts[line - 1], end=script.line_end(line), text="")
    return Fix(edits=(edit,), title=title, is_safe=is_safe)
