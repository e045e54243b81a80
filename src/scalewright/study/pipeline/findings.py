"""Findings of a pipeline: how accuracy changed from stage to stage over all seeds, and which gates were not passed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, stdev

from scalewright.records.pipeline_report import BoundedFigure, PipelineShown, StageShown
from scalewright.records.reasoning import Rate
from scalewright.records.study_report import FindingShown
from scalewright.study.pipeline.gate import POINTS, rise
from scalewright.workload.reasoning.accuracy import rise_of_marks

T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Student's t at 97.5 %, by the number of seeds."""
NORMAL95 = 1.96


def pipeline_findings(pipeline: PipelineShown) -> Iterator[FindingShown]:
    """One sentence for each stage whose accuracy can be compared with that of the stage it follows."""
    if pipeline.sentence:
        yield FindingShown(text=pipeline.sentence)
    for name in pipeline.names:
        runs = [stage for stage in pipeline.stages if stage.name == name and stage.accuracy is not None]
        if runs:
            yield from _reached(pipeline, name, runs)
    for stage in pipeline.stages:
        compared_only_by_gate = stage.passes_gate is not None and _before(pipeline, stage) is None
        if stage.passes_gate is False or compared_only_by_gate:
            yield FindingShown(text=stage.gate, evidence=(stage.point,))


def _reached(pipeline: PipelineShown, name: str, runs: Sequence[StageShown]) -> Iterator[FindingShown]:
    mean_frac = fmean(stage.accuracy.value for stage in runs if stage.accuracy is not None)
    several = f" in the mean of {len(runs)} seeds" if len(runs) > 1 else ""
    text = f"{name} reaches {POINTS * mean_frac:.1f} % greedy accuracy{several}"
    pairs = [(stage, before) for stage in runs if (before := _before(pipeline, stage)) is not None]
    if pairs:
        change = mean_rise([_rise(stage, before) for stage, before in pairs])
        word = "above" if change.value_frac >= 0 else "below"
        interval = f"95 % interval {POINTS * change.low_frac:+.1f} to {POINTS * change.high_frac:+.1f}"
        sure = "" if change.low_frac > 0 or change.high_frac < 0 else ", which may be an accident"
        text += f", {abs(POINTS * change.value_frac):.1f} points {word} {pairs[0][1].name} ({interval}{sure})"
    yield FindingShown(text=text, evidence=tuple(stage.point for stage in runs))


def _before(pipeline: PipelineShown, stage: StageShown) -> StageShown | None:
    """The stage that it is compared with: the nearest before it, along what it follows, that has an accuracy."""
    for name in stage.follows:
        of_name = [other for other in pipeline.stages if other.name == name]
        before = next((other for other in of_name if other.seed == stage.seed), of_name[0])
        if before.model == stage.model and before.accuracy is not None:
            return before
        deeper = _before(pipeline, before)
        if deeper is not None and deeper.model == stage.model:
            return deeper
    return None


def _rise(stage: StageShown, before: StageShown) -> Rate:
    assert stage.accuracy is not None
    assert before.accuracy is not None
    if stage.marks and len(stage.marks) == len(before.marks):
        return rise_of_marks(stage.marks, before.marks)
    return rise(_rate(stage.accuracy), _rate(before.accuracy))


def _rate(estimate: BoundedFigure) -> Rate:
    return Rate(value_frac=estimate.value, low_frac=estimate.low, high_frac=estimate.high)


def mean_rise(rises: Sequence[Rate]) -> Rate:
    """Mean rise over seeds with its 95 % interval.

    Equation  m = mean(d_i);  half width = sqrt(mean(h_i)^2 + (t s / sqrt(n))^2)
              h_i: half width of seed i from the number of problems; s: standard deviation of the d_i; t: Student's
    Source    assumed: all seeds answer the same problems, so their share of the error does not shrink with n
    Assumes   the seeds' own spread is independent of the choice of problems
    Checked   tests/study/test_pipeline_gates.py: one seed gives its own interval, equal seeds do not shrink it
    """
    m, n = fmean(one.value_frac for one in rises), len(rises)
    if n == 1:
        return rises[0]
    t = T95.get(n, NORMAL95)
    spread = t * stdev(one.value_frac for one in rises) / math.sqrt(n)
    below = math.hypot(fmean(one.value_frac - one.low_frac for one in rises), spread)
    above = math.hypot(fmean(one.high_frac - one.value_frac for one in rises), spread)
    return Rate(value_frac=m, low_frac=m - below, high_frac=m + above)
