"""Apply fixes to a script one by one; a fix is kept only if the script still parses and its rule finds less."""

from __future__ import annotations

import difflib
import itertools
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalewright.errors import ConfigError
from scalewright.lint.engine import Linter, LintFinding
from scalewright.lint.rule import ScriptFix
from scalewright.lint.script import Script
from scalewright.lint.settings import RANKS
from scalewright.records.documents import write_bytes

_MAX_FIXES = 200
"""Far more than any script needs. The limit ends the loop if a rule's fix never satisfies the rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedScript:
    """The text of a script after its fixes."""

    text: str
    applied: tuple[LintFinding, ...]
    """Findings that were fixed, in order."""
    open_findings: tuple[LintFinding, ...]
    """What the linter finds in the new text."""


def apply_edits(text: str, fix: ScriptFix) -> str:
    """`text` with all edits of a fix; edits must not overlap."""
    ordered = sorted(fix.edits, key=lambda edit: (edit.start, edit.end))
    for before, after in itertools.pairwise(ordered):
        if after.start < before.end:
            raise AssertionError(f"the edits of {fix.title!r} overlap")
    for edit in reversed(ordered):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def fix_script(script: Script, linter: Linter, read: Callable[[str], Script], *, unsafe: bool) -> FixedScript:
    """The script with every fix that can be applied; `read` parses a text in the same way as the script."""
    findings = linter.lint(script)
    applied: list[LintFinding] = []
    refused: set[tuple[str, str, str]] = set()
    while len(applied) < _MAX_FIXES:
        finding = next((f for f in findings if _is_fixable(f, unsafe=unsafe) and _key(f, script) not in refused), None)
        if finding is None:
            break
        improved = _improved(script, finding, findings, linter, read)
        if improved is None:
            refused.add(_key(finding, script))
            continue
        applied.append(finding)
        script, findings = improved
        refused.clear()  # a fix that did not help before may help now; a second call must find nothing more to do
    return FixedScript(text=script.text, applied=tuple(applied), open_findings=tuple(findings))


def _is_fixable(finding: LintFinding, *, unsafe: bool) -> bool:
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
    """The script with one fix and its findings; None: the fix breaks the script or does not help."""
    assert finding.fix is not None
    try:
        fixed_script = read(apply_edits(script.text, finding.fix))
    except ConfigError:
        return None
    if script.body.error_at is None and fixed_script.body.error_at is not None:
        return None
    after = linter.lint(fixed_script)
    if _count(after, finding.rule) >= _count(before, finding.rule):
        return None
    serious = {f.rule for f in after if RANKS[f.severity] >= RANKS["warning"]}
    if any(_count(after, rule) > _count(before, rule) for rule in serious):
        return None
    return fixed_script, after


def _count(findings: Sequence[LintFinding], rule: str) -> int:
    return sum(finding.rule == rule for finding in findings)


def unified_diff(path: str, before: str, after: str) -> str:
    """The difference of two texts, in the form that `patch -p1` reads."""
    name = path.lstrip("/")
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def write_script(path: Path, text: str) -> None:
    """Replace the content of a script in one step; permissions stay, and a link stays a link."""
    write_bytes(path, text.encode("utf-8"), mode=stat.S_IMODE(path.stat().st_mode))
