"""A pipeline as a section of the study's page. Every text is escaped; charts are drawn from JSON without any `<`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from scalewright.records.pipeline_report import PipelineShown, StageShown
from scalewright.report.hybrid.page import hybrid_section
from scalewright.report.pipeline.figures import (
    CURVE_TITLES,
    PART_COLOURS,
    colour_index,
    curve_groups,
    label,
    missing_rows,
    part_title,
    table_rows,
)

CHART_KEYS = (
    "name", "seed", "stage", "state", "seconds_by_part", "predicted_by_part", "accuracy", "num_problems",
    "energy_j", "roofline", "peak_flop_per_s", "memory_bytes_per_s", "took_s", "predicted_s",
)  # fmt: skip


def section(pipeline: PipelineShown) -> dict[str, Any]:
    """What the template of a pipeline shows."""
    stages = pipeline.stages
    return {
        "profile": pipeline.profile,
        "labels": [label(stage, pipeline) for stage in stages],
        "states": [stage.state for stage in stages],
        "rows": table_rows(pipeline),
        "missing": missing_rows(pipeline),
        "gates": [stage.gate for stage in stages if stage.gate],
        "notes": list(dict.fromkeys(note for stage in stages for note in stage.notes)),
        "has_energy": any(stage.energy_j for stage in stages),
        "has_curves": any(stage.curve for stage in stages),
        "hybrids": [
            {"label": label(stage, pipeline), "is_open": bool(stage.hybrid.settings.engine_ranks)
             or bool(stage.hybrid.settings.token_budget), "section": hybrid_section(stage.hybrid)}
            for stage in stages if stage.hybrid is not None
        ],
        "readings": [
            {"label": label(stage, pipeline), "answers": stage.answers, "steps": _steps(stage)}
            for stage in stages if stage.answers
        ],
    }  # fmt: skip


def _steps(stage: StageShown) -> str:
    steps = sorted({answer.step for answer in stage.answers})
    if len(steps) == 1:
        return f"step {steps[0] + 1}"
    return f"steps {', '.join(str(step + 1) for step in steps[:-1])} and {steps[-1] + 1}"


def chart_data(pipeline: PipelineShown) -> dict[str, Any]:
    """What the script of the page draws: bars, dots, roofs and curves."""
    stages = []
    for stage in pipeline.stages:
        body = asdict(stage)
        kept = {key: body[key] for key in CHART_KEYS}
        stages.append({**kept, "label": label(stage, pipeline), "energy_by_part": stage.energy_by_part})
    return {
        "parts": [{"name": name, "title": part_title(name), "colour": c} for name, c in PART_COLOURS.items()],
        "stages": stages,
        "groups": [
            {"title": title, "stages": [_curve(stage, pipeline, at) for stage, at in _coloured(members)]}
            for title, members in curve_groups(pipeline)
        ],
        "curves": CURVE_TITLES,
    }


def _coloured(stages: list[StageShown]) -> list[tuple[StageShown, int]]:
    return list(zip(stages, colour_index(stages), strict=True))


def _curve(stage: StageShown, pipeline: PipelineShown, colour: int) -> dict[str, Any]:
    return {"label": label(stage, pipeline), "colour": colour, "curve": stage.curve}
