"""Findings for programs: the JSON document, SARIF 2.1.0 for code scanning, and annotations for GitHub Actions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from scalewright import __version__
from scalewright.lint.engine import LintFinding, known_rules
from scalewright.lint.rule import Edit, LintRule
from scalewright.lint.script import line_table
from scalewright.lint.settings import RANKS
from scalewright.records.documents import document

SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {"info": "note", "warning": "warning", "error": "error"}
_ANNOTATIONS = {"info": "notice", "warning": "warning", "error": "error"}


def _place(starts: Sequence[int], offset: int) -> tuple[int, int]:
    line = bisect_right(starts, offset)
    return line, offset - starts[line - 1] + 1


@lru_cache(maxsize=4)
def _line_starts(text: str) -> tuple[int, ...]:
    return line_table(text)[0]


def _edit_row(edit: Edit, text: str) -> dict[str, Any]:
    starts = _line_starts(text)
    (line, column), (end_line, end_column) = _place(starts, edit.start), _place(starts, edit.end)
    return {"line": line, "column": column, "end_line": end_line, "end_column": end_column, "text": edit.text}


def lint_document(
    findings: Sequence[LintFinding],
    *,
    texts: Mapping[str, str],
    unreadable: Mapping[str, str],
    notes: Mapping[str, str],
    fixed: Mapping[str, int],
    fail_on: str,
) -> dict[str, Any]:
    """All findings as one document; `texts` holds the scripts by file, `fixed` the number of fixes by file."""
    return document(
        "findings",
        {
            "findings": [_finding_row(finding, texts[finding.file]) for finding in findings],
            "unreadable": [{"file": file, "message": message} for file, message in unreadable.items()],
            "notes": [{"file": file, "message": message} for file, message in notes.items()],
            "num_files": len(texts) + len(unreadable),
            "fixed": dict(fixed),
            "fail_on": fail_on,
        },
    )


def _finding_row(finding: LintFinding, text: str) -> dict[str, Any]:
    fix = finding.fix
    return {
        "file": finding.file,
        "line": finding.line,
        "column": finding.column,
        "end_column": finding.end_column,
        "rule": finding.rule,
        "severity": finding.severity,
        "message": finding.message,
        "next_step": finding.next_step,
        "source": finding.source,
        "page": known_rules()[finding.rule].page,
        "fix": None
        if fix is None
        else {"title": fix.title, "is_safe": fix.is_safe, "edits": [_edit_row(edit, text) for edit in fix.edits]},
    }


def rules_document(rules: Sequence[LintRule]) -> dict[str, Any]:
    """The description of rules as one document."""
    keys = ("id", "category", "severity", "title", "why", "source", "before", "after", "slurm", "page")
    rows = [{key: getattr(rule, key) for key in keys} | {"sites": list(rule.sites)} for rule in rules]
    return document("lint-rules", {"rules": rows})


def sarif_document(
    findings: Sequence[LintFinding],
    rules: Mapping[str, LintRule],
    texts: Mapping[str, str],
    unreadable: Mapping[str, str],
) -> dict[str, Any]:
    """A SARIF 2.1.0 log of all findings."""
    used = sorted({finding.rule for finding in findings})
    run: dict[str, Any] = {
        "tool": {
            "driver": {
                "name": "scalewright-lint",
                "version": __version__,
                "rules": [_sarif_rule(rules[name]) for name in used],
            }
        },
        "columnKind": "unicodeCodePoints",
        "results": [_sarif_result(finding, used.index(finding.rule), texts) for finding in findings],
        "invocations": [
            {
                "executionSuccessful": not unreadable,
                "toolExecutionNotifications": [
                    {"level": "error", "message": {"text": message}} for message in unreadable.values()
                ],
            }
        ],
    }
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}


def _sarif_rule(rule: LintRule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "help": {"text": f"{rule.why} Source: {rule.source}"},
        "helpUri": rule.page,
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _uri(file: str) -> str:
    return quote(PurePath(file).as_posix())


def _sarif_result(finding: LintFinding, index: int, texts: Mapping[str, str]) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": finding.line, "startColumn": finding.column}
    if finding.end_column > finding.column:
        region["endColumn"] = finding.end_column
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.message}; {finding.next_step}"},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": _uri(finding.file)}, "region": region}}],
    }
    if finding.fix is not None:
        replacements = [_replacement(edit, texts[finding.file]) for edit in finding.fix.edits]
        result["fixes"] = [
            {
                "description": {"text": finding.fix.title},
                "artifactChanges": [{"artifactLocation": {"uri": _uri(finding.file)}, "replacements": replacements}],
            }
        ]
    return result


def _replacement(edit: Edit, text: str) -> dict[str, Any]:
    place = _edit_row(edit, text)
    region = {
        "startLine": place["line"],
        "startColumn": place["column"],
        "endLine": place["end_line"],
        "endColumn": place["end_column"],
    }
    return {"deletedRegion": region, "insertedContent": {"text": edit.text}}


def github_lines(findings: Sequence[LintFinding], unreadable: Mapping[str, str]) -> Iterator[str]:
    """One workflow command per finding; characters that GitHub reads as syntax are escaped."""
    for finding in findings:
        properties = {
            "file": finding.file,
            "line": str(finding.line),
            "col": str(finding.column),
            "title": f"scalewright lint: {finding.rule}",
        }
        if finding.end_column > finding.column:
            properties["endColumn"] = str(finding.end_column)
        shown = ",".join(f"{key}={_escaped(value, is_property=True)}" for key, value in properties.items())
        yield f"::{_ANNOTATIONS[finding.severity]} {shown}::{_escaped(f'{finding.message}; {finding.next_step}')}"
    for file, message in unreadable.items():
        yield f"::error file={_escaped(file, is_property=True)},title=scalewright lint::{_escaped(message)}"


def _escaped(text: str, *, is_property: bool = False) -> str:
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return escaped.replace(":", "%3A").replace(",", "%2C") if is_property else escaped


def is_failing(findings: Sequence[LintFinding], fail_on: str) -> bool:
    return any(RANKS[finding.severity] >= RANKS[fail_on] for finding in findings)
