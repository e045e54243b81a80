"""Gates between stages: whether a stage's accuracy is high enough, or rose enough, for the pipeline to go on."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scalewright.records.documents import document, write_document
from scalewright.records.reasoning import Rate, StageRecord
from scalewright.study.pipeline.tables import StageGate
from scalewright.workload.reasoning.accuracy import rise_of_marks

KIND = "stage-gate"
FILE = "gate.json"
POINTS = 100.0
"""Points of accuracy in a share of 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """The figure of a gate, and what the gate makes of it."""

    value_frac: float
    """The rise over the other stage, or the accuracy itself."""
    low_frac: float
    high_frac: float
    by_frac: float
    passes: bool
    sentence: str

    def document(self) -> dict[str, Any]:
        return document(KIND, asdict(self))


def key_of_gate(gate: StageGate) -> str:
    """The number of `gate.json` that a graph of jobs compares with the gate."""
    return "low_frac" if gate.bound == "low" else "value_frac"


def rise(after: Rate, before: Rate) -> Rate:
    """Difference of two accuracies with its 95 % interval.

    Equation  d = p - q;  low = d - sqrt((p - l)^2 + (v - q)^2),  high = d + sqrt((u - p)^2 + (q - m)^2)
              l and u are the ends of the interval of p, m and v those of q
    Source    newcombe1998, method 10
    Assumes   independent problems; both stages may answer the same ones: then `rise_of_marks` is narrower
    Checked   tests/study/test_pipeline_gates.py: examples (a), (d) and (g) of the source's Table II
    """
    p, q = after.value_frac, before.value_frac
    d = p - q
    low = d - math.hypot(p - after.low_frac, before.high_frac - q)
    high = d + math.hypot(after.high_frac - p, q - before.low_frac)
    return Rate(value_frac=d, low_frac=low, high_frac=high)


def figure_of(gate: StageGate, record: StageRecord) -> Rate | None:
    """The accuracy that a gate looks at; None: the stage did not measure it."""
    if record.accuracy is None:
        return None
    return record.accuracy.greedy if gate.figure == "greedy" else record.accuracy.pass_at_k.get(1)


def rise_between(gate: StageGate, after: StageRecord, before: StageRecord) -> Rate | None:
    """The rise problem by problem, whose interval is narrower; None: the two did not answer the same problems."""
    own, other = after.accuracy, before.accuracy
    if gate.figure != "greedy" or own is None or other is None:
        return None
    return rise_of_marks(own.marks, other.marks) if own.marks and len(own.marks) == len(other.marks) else None


def judge(gate: StageGate, name: str, own: StageRecord, over: StageRecord | None = None) -> GateResult:
    """Whether a stage passes its gate; `over` is the record of the stage that the gate compares with."""
    figure, other = figure_of(gate, own), None if over is None else figure_of(gate, over)
    if figure is None or (over is not None and other is None):
        lacking = name if figure is None else gate.over
        return GateResult(
            value_frac=math.nan, low_frac=math.nan, high_frac=math.nan, by_frac=gate.by, passes=False,
            sentence=f"{lacking} has no {gate.figure} accuracy, so the gate after {name} cannot be passed: evaluate it",
        )  # fmt: skip
    if other is not None:
        assert over is not None
        change = rise_between(gate, own, over) or rise(figure, other)
        what = f"{gate.figure} accuracy rose by {_points(change)} over {gate.over}"
    else:
        change = figure
        what = f"{gate.figure} accuracy is {_percent(change)}"
    reached = change.low_frac if gate.bound == "low" else change.value_frac
    passes = reached >= gate.by
    unit = "" if gate.over else " %"
    least = f"{'at least ' if gate.bound == 'value' else 'an interval from '}{gate.by * POINTS:.3g}{unit}"
    verdict = f"the gate asks for {least}" if passes else f"the gate asks for {least}, so the pipeline ends here"
    return GateResult(
        value_frac=change.value_frac, low_frac=change.low_frac, high_frac=change.high_frac, by_frac=gate.by,
        passes=passes, sentence=f"{name}: {what}; {verdict}",
    )  # fmt: skip


def _points(rate: Rate) -> str:
    value, low, high = (POINTS * share for share in (rate.value_frac, rate.low_frac, rate.high_frac))
    return f"{value:.1f} points ({low:.1f} to {high:.1f})"


def _percent(rate: Rate) -> str:
    value, low, high = (POINTS * share for share in (rate.value_frac, rate.low_frac, rate.high_frac))
    return f"{value:.1f} % ({low:.1f} to {high:.1f})"


def write_gate(folder: Path, result: GateResult) -> None:
    """Write the figure where a graph of jobs looks for it. Without a figure there is no number, and no gate passes."""
    folder.mkdir(parents=True, exist_ok=True)
    body = result.document()
    write_document(folder / FILE, {k: v for k, v in body.items() if not (isinstance(v, float) and math.isnan(v))})
