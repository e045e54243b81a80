"""Make an explanation of paths and job ids: read them, check every rule, and say what is missing."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from scalewright.errors import ConfigError
from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.findings.order import explain, missing
from scalewright.observe.findings.rule import FindingContext
from scalewright.observe.readers.reading import read_evidence
from scalewright.report.explain.document import Explanation
from scalewright.report.explain.job_files import JOB_ID, job_files

LIVE_S = 300.0
"""A run without an end that wrote something so recently may still go on."""


def explained_paths(paths: Sequence[Path], context: FindingContext | None = None) -> Explanation:
    """Explain everything that these files and folders say about one run."""
    evidence, title = evidence_of(paths)
    return explained_evidence(evidence, title=title, context=context)


def evidence_of(paths: Sequence[Path]) -> tuple[Evidence, str]:
    """What these files, folders and jobs say about one run, and a name for it."""
    with tempfile.TemporaryDirectory(prefix="scalewright-job-") as folder:
        every: list[Path] = []
        for path in paths:
            if path.exists():
                every.append(path)
            elif JOB_ID.match(str(path)):
                every += job_files(str(path), Path(folder))
            else:
                raise ConfigError(f"{path}: no such file, folder or job; check the path")
        first = paths[0]
        name = first.resolve().name if first.exists() else f"job {first}"
        title = name + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
        return read_evidence(every), title


def explained_evidence(evidence: Evidence, *, title: str, context: FindingContext | None = None) -> Explanation:
    findings = explain(evidence, context or context_of(evidence))
    return Explanation(evidence=evidence, findings=findings, missing=missing(evidence), title=title)


def context_of(evidence: Evidence, *, now_s: float | None = None) -> FindingContext:
    """Whether the run still goes on: it has no end since its last start, and wrote something lately."""
    now_s = time.time() if now_s is None else now_s
    if has_ended(evidence):
        return FindingContext(ended=True, now_s=now_s)
    times_s = [one.at_s for one in evidence.steps] + [one.at_s for one in evidence.happenings]
    times_s += [one.at_s for one in evidence.device_samples]
    latest_s = max((at_s for at_s in times_s if at_s is not None), default=0.0)
    return FindingContext(ended=not 0.0 <= now_s - latest_s <= LIVE_S, now_s=now_s)


def has_ended(evidence: Evidence) -> bool:
    """Whether a run of ours wrote how its latest attempt ended."""
    started_s = max((one.at_s or 0.0 for one in evidence.happenings if one.kind == "started"), default=0.0)
    return any(
        one.kind in ("finished", "exited") and (one.at_s is None or one.at_s >= started_s)
        for one in evidence.happenings
    )
