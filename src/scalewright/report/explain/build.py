"""Make an explanation of paths: read them, check every rule, and say what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scalewright.errors import ConfigError
from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.findings.order import explain, missing
from scalewright.observe.findings.rule import Context
from scalewright.observe.readers.reading import read_evidence
from scalewright.report.explain.document import Explanation


def explained_paths(paths: Sequence[Path], context: Context | None = None) -> Explanation:
    """Explain everything that these files and folders say about one run."""
    evidence, title = evidence_of(paths)
    return explained_evidence(evidence, title=title, context=context)


def evidence_of(paths: Sequence[Path]) -> tuple[Evidence, str]:
    """What these files and folders say about one run, and a name for it."""
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path}: no such file, folder or job; check the path")
    title = paths[0].resolve().name + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
    return read_evidence(paths), title


def explained_evidence(evidence: Evidence, *, title: str, context: Context | None = None) -> Explanation:
    findings = explain(evidence, context)
    return Explanation(evidence=evidence, findings=findings, missing=missing(evidence), title=title)
