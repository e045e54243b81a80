"""Rewrite a script: one fix at a time, kept only if the script still parses and its rule finds less than before."""

from __future__ import annotations

import difflib
import itertools
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalewright.errors import ConfigError
from scalewright.lint.engine import Linter, LintFinding
from scalewright.lint.rule import Fix
from scalewright.lint.script import Script
from scalewright.lint.settings import RANKS
from scalewright.records.documents import write_bytes

_MAX_FIXES = 200
"""No script needs as many; a rule whose fix never satisfies it must not run for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    text: str
    applied: tuple[LintFinding, ...]
    """What was rewritten, in order."""
    left: tuple[LintFinding, ...]
    """What the linter finds in the new text."""


def apply_edits(text: str, fix: Fix) -> str:
    """`text` with all edits of a fix; they do not overlap."""
    ordered = sorted(fix.edits, key=lambda edit: (edit.start, edit.end))
    for before, after in itertools.pairwise(ordered):
        if after.start < before.end:
            raise AssertionError(f"the edits of {fix.title!r} overlap")
    for edit in reversed(ordered):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def fix_script(script: Script, linter: Linter, read: Callable[[str], Script], *, unsafe: bool) -> Fixed:
    """The script with every fix that can be applied; `read` parses a text as the script itself was."""
    findings = linter.lint(script)
    applied: list[LintFinding] = []
    refused: set[tuple[str, str, str]] = set()
    while len(applied) < _MAX_FIXES:
        chosen = next((f for f in findings if _is_wanted(f, unsafe=unsafe) and _key(f, script) not in refused), None)
        if chosen is None:
            break
        better = _improved(script, chosen, findings, linter, read)
        if better is None:
            refused.add(_key(chosen, script))
            continue
        applied.append(chosen)
        script, findings = better
        refused.clear()  # what did not help before may help now; else a second call would find more to do
    return Fixed(text=script.text, applied=tuple(applied), left=tuple(findings))


def _is_wanted(finding: LintFinding, *, unsafe: bool) -> bool:
    return finding.fix is not None and (finding.fix.is_safe or unsafe)


def _key(finding: LintFinding, script: Script) -> tuple[str, str, str]:
    return finding.rule, finding.message, script.lines[finding.line - 1]


def _improved(
    script: Script,
    finding: LintFinding,
    before: Sequence[LintFinding],
    linter: Linter,
    read: Callable[[str], Script],
) -> tuple[Script, list[LintFinding]] | None:
    """The script with one fix, and what is found then; None: the fix does not do what it should."""
    assert finding.fix is not None
    try:
        after = read(apply_edits(script.text, finding.fix))
    except ConfigError:
        return None
    if script.body.error_at is None and after.body.error_at is not None:
        return None
    found = linter.lint(after)
    if _count(found, finding.rule) >= _count(before, finding.rule):
        return None
    serious = {f.rule for f in found if RANKS[f.severity] >= RANKS["warning"]}
    if any(_count(found, rule) > _count(before, rule) for rule in serious):
        return None
    return after, found


def _count(findings: Sequence[LintFinding], rule: str) -> int:
    return sum(finding.rule == rule for finding in findings)


def unified_diff(path: str, before: str, after: str) -> str:
    """What changes, as `patch -p1` takes it."""
    name = path.lstrip("/")
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def write_script(path: Path, text: str) -> None:
    """Put the new text in the place of the old, as a whole, with the same permissions; a link stays a link."""
    write_bytes(path, text.encode("utf-8"), mode=stat.S_IMODE(path.stat().st_mode))
