"""`sw.lint(path_or_text)`: what in a job script wastes GPU-hours or loses work."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewright.api.frames import Framed
from scalewright.api.keywords import checked, listed
from scalewright.lint.context import lint_context, needs_of
from scalewright.lint.engine import Linter, LintFinding, known_rules, resolve_settings
from scalewright.lint.file_kind import script_note
from scalewright.lint.fixes import fix_script, unified_diff
from scalewright.lint.formats import lint_document
from scalewright.lint.header.overrides import all_overrides
from scalewright.lint.script import Script, interpreter
from scalewright.lint.script_file import checked_text, read_script, read_source
from scalewright.report.notebook import html

TEXT_NAME = "script"
"""What a script that was given as text is called in findings."""


@dataclass(frozen=True, slots=True)
class LintReport(Framed, Sequence[LintFinding]):
    """The findings of one script, in the order of its lines."""

    script: Script
    findings: tuple[LintFinding, ...]
    linter: Linter
    overrides: dict[str, str | None]

    def __getitem__(self, index: Any) -> Any:
        return self.findings[index]

    def __len__(self) -> int:
        return len(self.findings)

    def __iter__(self) -> Iterator[LintFinding]:
        return iter(self.findings)

    @property
    def rules(self) -> list[str]:
        """Ids of the rules with findings, each once."""
        return list(dict.fromkeys(finding.rule for finding in self.findings))

    def fixed(self, *, unsafe: bool = False) -> str:
        """The script's text with what can be fixed safely; with `unsafe`, also what may change what the job does."""
        return fix_script(self.script, self.linter, self._reread, unsafe=unsafe).text

    def diff(self, *, unsafe: bool = False) -> str:
        """What `fixed` would change, as a unified diff."""
        return unified_diff(self.script.path, self.script.text, self.fixed(unsafe=unsafe))

    def _reread(self, text: str) -> Script:
        return read_script(text, self.script.path, self.overrides, _folder(self.script.path))

    def document(self) -> dict[str, Any]:
        """What `scalewright lint --json` prints."""
        note = script_note(self.script.text, interpreter(self.script.lines[0]))
        return lint_document(
            list(self.findings),
            texts={self.script.path: self.script.text},
            unreadable={},
            notes={self.script.path: note}
            if (note := script_note(self.script.text, interpreter(self.script.lines[0])))
            else {},
            fixed={},
            fail_on=self.linter.settings.fail_on,
        )

    def columns(self) -> dict[str, list[Any]]:
        return {
            "line": [finding.line for finding in self.findings],
            "severity": [finding.severity for finding in self.findings],
            "rule": [finding.rule for finding in self.findings],
            "message": [finding.message for finding in self.findings],
            "next_step": [finding.next_step for finding in self.findings],
        }

    def __repr__(self) -> str:
        lines = [f"{f.file}:{f.line}: {f.severity} {f.rule}: {f.message}; {f.next_step}" for f in self.findings]
        return "\n".join(lines) if lines else f"{self.script.path}: no findings of {len(known_rules())} rules"

    def _repr_html_(self) -> str:
        if not self.findings:
            return html.paragraph(repr(self))
        rows = [(str(f.line), f.severity, f.rule, f.message, f.next_step) for f in self.findings]
        headers = ["line", "severity", "rule", "what is wrong", "what to do"]
        return html.table(headers, rows, caption=f"{self.script.path}: {len(rows)} findings", right=("line",))


@checked()
def lint(
    script: str | Path,
    *,
    site: str = "",
    slurm: str = "",
    model: str = "",
    plan: str | Path | None = None,
    pilot: str | Path | None = None,
    sbatch: str = "",
    select: str | Sequence[str] = (),
    ignore: str | Sequence[str] = (),
    catalog: str | Path | None = None,
) -> LintReport:
    """Lint a job script, given as a path or as its text (a string with a line break).

    The options are those of `scalewright lint`: `site` names the cluster's profile, `model` or `plan` say what is
    trained, `pilot` is an earlier run, `sbatch` the options of the command line.
    """
    folder = None if catalog is None else Path(catalog)
    is_text = isinstance(script, str) and "\n" in script
    where = TEXT_NAME if is_text else str(script)
    text = checked_text(str(script).encode(), where) if is_text else read_source(Path(script))
    settings = resolve_settings(
        None, site=site, slurm=slurm, fail_on=None, select=tuple(listed(select)), ignore=tuple(listed(ignore))
    )  # fmt: skip
    context = lint_context(settings, None if pilot is None else Path(pilot), folder)
    needs = needs_of(context, model, None if plan is None else Path(plan), folder)
    linter = Linter(settings=settings, context=context, needs_of=needs)
    overrides = all_overrides(os.environ, sbatch)
    parsed = read_script(text, where, overrides, _folder(where))
    return LintReport(parsed, tuple(linter.lint(parsed)), linter, overrides)


def _folder(where: str) -> Path:
    """Where scripts that this one sources are looked for."""
    return Path.cwd() if where == TEXT_NAME else Path(os.path.realpath(where)).parent
