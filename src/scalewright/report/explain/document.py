"""The document of an explanation (explanation/1): findings, what was read, and what is missing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scalewright.observe.breakdown.summary import BreakdownSummary, breakdown_summary
from scalewright.observe.evidence.evidence import Evidence, SourceFact
from scalewright.observe.evidence.series import step_series
from scalewright.observe.findings.rule import Explained
from scalewright.records.documents import document
from scalewright.records.redaction import visible_variables

KIND = "explanation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything that is shown of one run."""

    evidence: Evidence
    findings: Sequence[Explained]
    missing: Sequence[str]
    title: str

    @property
    def is_alarming(self) -> bool:
        """Whether any finding is a warning or an error."""
        return any(one.severity != "info" for one in self.findings)

    @property
    def breakdown(self) -> BreakdownSummary | None:
        """Where the time of a step goes; None where nothing tells it."""
        return breakdown_summary(self.evidence)

    @property
    def kinds(self) -> dict[str, list[SourceFact]]:
        """Sources by what they are."""
        kinds: dict[str, list[SourceFact]] = {}
        for source in self.evidence.sources:
            kinds.setdefault(source.kind, []).append(source)
        return kinds

    def document(self) -> dict[str, Any]:
        series = step_series(self.evidence)
        body = {
            "title": self.title,
            "run_dir": self.evidence.run_dir,
            "num_steps": len(series.numbers),
            "num_ranks": len(series.ranks),
            "step_time_s": series.median_s,
            "findings": [_finding(one) for one in self.findings],
            "breakdown": None if self.breakdown is None else self.breakdown.as_document(),
            "missing": list(self.missing),
            "sources": [asdict(source) for source in self.evidence.sources],
            "settings": visible_variables({name: value for name, (value, _) in self.evidence.settings.items()}),
            "versions": dict(sorted(self.evidence.versions.items())),
            "notes": list(self.evidence.notes),
        }
        return document(KIND, body)


def _finding(one: Explained) -> dict[str, Any]:
    seen, rule = one.seen, one.rule
    return {
        "rule": rule.id, "severity": one.severity, "role": rule.role, "title": rule.title, "message": seen.message,
        "certainty": seen.certainty, "score": seen.score, "because_of": one.because_of,
        "numbers": {name: _finite(value) for name, value in seen.numbers.items()}, "ranks": list(seen.ranks),
        "next_step": seen.next_step,
        "expected_gain": None if seen.gain is None else asdict(seen.gain),
        "evidence": [asdict(spot) for spot in seen.spots],
        "source": rule.source, "page": rule.page,
    }  # fmt: skip


def _finite(value: float | str) -> float | str:
    """JSON has no NaN: it becomes a word."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
