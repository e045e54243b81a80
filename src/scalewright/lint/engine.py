"""Run the rules on a script: which of them apply, what they find, and what the script's own comments switch off."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from scalewright.lint.rule import Context, Hit, LintRule, ModelNeeds, ScriptFix
from scalewright.lint.rules import all_rules
from scalewright.lint.script import Script
from scalewright.lint.settings import LintSettings, find_settings, load_settings
from scalewright.lint.suppressions import SUPPRESSION_RULES, Suppression, suppression_unused, suppressions
from scalewright.lint.written_scripts import written_scripts
from scalewright.records.types import Finding

_BOUND = re.compile(r"(>=|<=|<|>|==)\s*(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFinding(Finding):
    """A finding with its columns in the line, and perhaps a fix."""

    column: int = 1
    end_column: int = 0
    """One past the last character; 0: the end of the line."""
    fix: ScriptFix | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Linter:
    """The rules with their settings and context, for any number of scripts."""

    settings: LintSettings
    context: Context
    needs_of: Callable[[Script], ModelNeeds | None] = field(default=lambda script: None)
    """What the model needs according to the planner, for a script; None: no model is given."""

    def lint(self, script: Script) -> list[LintFinding]:
        """Findings in the order of their places."""
        context = replace(self.context, needs=self.needs_of(script))
        comments = suppressions(script)
        used: set[tuple[int, str]] = set()
        findings: list[LintFinding] = []
        rules = self._applicable_rules(script)
        for rule in rules.values():
            for hit in rule.check(script, context):
                cover = next((c for c in comments if c.covers(rule.id, hit.line)), None)
                if cover is not None:
                    used.add((cover.line, rule.id))
                    continue
                findings.append(self._finding(rule, hit, script))
        for written in written_scripts(script):
            findings += [_moved(finding, written.line) for finding in self.lint(written.script)]
        if suppression_unused.id in rules:
            findings += [self._finding(suppression_unused, hit, script) for hit in _unused(comments, used, rules)]
        return sorted(without_repeats(findings), key=lambda f: (f.line, f.column, f.rule))

    def _applicable_rules(self, script: Script) -> dict[str, LintRule]:
        rules = known_rules()
        selected = self.settings.selected_rules(rules, script.path)
        is_job = script.has_header or bool(script.overrides)
        return {
            name: rule
            for name, rule in rules.items()
            if name in selected and (is_job or not rule.needs_header) and self._applies(rule)
        }

    def _applies(self, rule: LintRule) -> bool:
        """Whether the rule is for this site and this version of Slurm."""
        site = self.context.site
        if rule.sites and (site is None or site.id not in rule.sites):
            return False
        return not rule.slurm or (self.context.slurm is not None and version_fits(self.context.slurm, rule.slurm))

    def _finding(self, rule: LintRule, hit: Hit, script: Script) -> LintFinding:
        origin = _origin(script, hit)
        return LintFinding(
            rule=rule.id,
            severity=self.settings.severity.get(rule.id, hit.severity or rule.severity),
            message=f"{hit.message} (in {origin})" if origin else hit.message,
            next_step=hit.next_step,
            source=rule.source,
            file=script.path,
            line=hit.line,
            column=hit.column,
            end_column=hit.end_column,
            fix=None if origin else hit.fix,
        )


def _moved(finding: LintFinding, first_line: int) -> LintFinding:
    """A finding in a job script that this script writes, at its line here. The text differs, so it has no fix."""
    return replace(
        finding,
        line=first_line + finding.line - 1,
        column=1,
        end_column=0,
        fix=None,
        message=f"{finding.message} (in the job script that is written here)",
    )


def _unused(comments: Iterable[Suppression], used: set[tuple[int, str]], rules: dict[str, LintRule]) -> Iterator[Hit]:
    """Suppressions of rules that do not fire there, or do not exist; `rules` are those that were checked."""
    for comment in comments:
        for name in comment.rules:
            exists = name in known_rules()
            if exists and (not comment.reason or (comment.line, name) in used or name not in rules):
                continue
            reason = "the rule finds nothing here" if exists else "there is no such rule"
            yield Hit(
                line=comment.line,
                column=comment.column,
                message=f"the suppression of {name} has no effect: {reason}",
                next_step=f"remove {name} from the comment",
            )


@cache
def known_rules() -> dict[str, LintRule]:
    """Every rule by id, including those about suppressions."""
    return dict(sorted((all_rules() | {rule.id: rule for rule in SUPPRESSION_RULES}).items()))


def resolve_settings(
    config: Path | None, *, site: str, slurm: str, fail_on: str | None, select: tuple[str, ...], ignore: tuple[str, ...]
) -> LintSettings:
    """The settings file, or the defaults, with the given options. Raises UnknownNameError for an unknown rule."""
    file_settings = load_settings(config) if config is not None else find_settings(Path.cwd())
    options: dict[str, object] = {"site": site, "slurm": slurm, "fail_on": fail_on, "select": select}
    changes = {name: value for name, value in options.items() if value}
    if ignore:
        changes["ignore"] = (*file_settings.ignore, *ignore)
    settings = file_settings.model_copy(update=changes)
    settings.check_names(known_rules())
    return settings


def without_repeats(findings: Iterable[LintFinding]) -> list[LintFinding]:
    """Each finding once: a rule may reach the same place in two ways."""
    seen: dict[tuple[str, int, int, str], LintFinding] = {}
    for finding in findings:
        seen.setdefault((finding.rule, finding.line, finding.column, finding.message), finding)
    return list(seen.values())


def _origin(script: Script, hit: Hit) -> str:
    """`FILE:LINE` of the command behind a hit, if the marked line only sources that file; else empty."""
    if not script.sourced:
        return ""
    offset = script.starts[hit.line - 1] + hit.column - 1
    places = [(command.origin, command.start) for command in script.commands]
    places += [(assignment.origin, assignment.start) for assignment in script.assignments]
    return next((origin for origin, start in places if origin and start == offset), "")


def version_fits(version: tuple[int, int], bounds: str) -> bool:
    """Whether a Slurm version lies within bounds such as ">=22.05,<23.11"."""
    compare: dict[str, Callable[[tuple[int, int]], bool]] = {
        ">=": lambda b: version >= b,
        "<=": lambda b: version <= b,
        ">": lambda b: version > b,
        "<": lambda b: version < b,
        "==": lambda b: version == b,
    }
    return all(compare[sign]((int(major), int(minor))) for sign, major, minor in _BOUND.findall(bounds))


def parse_version(text: str) -> tuple[int, int] | None:
    """Year and month of a Slurm version such as `23.11.4`; None: the text holds no version."""
    match = re.search(r"\b(\d{2})\.(\d{2})\b", text)
    return (int(match.group(1)), int(match.group(2))) if match else None
