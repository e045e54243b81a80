"""A pipeline in the terminal: its stages as the file has them, and what each reached, within 80 columns."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape

from scalewright.records.pipeline_report import PipelineShown, StageShown
from scalewright.report.console import plain_table
from scalewright.report.pipeline.figures import PERCENT, label, part_title, ratio, seconds

MAX_PARTS = 2
"""Largest parts of the time that are named."""
MIN_SHARE = 0.005
"""Smaller parts are not named."""


def print_stages(console: Console, pipeline: Any) -> None:
    """The stages of a file: what each does, what it follows and its gate."""
    profile = pipeline.profile_names[0]
    table = plain_table("stage", "does", "from", "data from", "gate", f"takes ({profile})", gap=1)
    for stage in pipeline.stages:
        takes = seconds(stage.takes.get(profile))
        cells = [stage.name, stage.stage, stage.from_, stage.data_from or stage.teacher, _gate(stage.gate), takes]
        table.add_row(*map(escape, cells))
    console.print(table)


def _gate(gate: Any) -> str:
    if gate is None:
        return ""
    least = f"{PERCENT * gate.by:+.3g}" if gate.over else f"{PERCENT * gate.by:.3g} %"
    over = f" over {gate.over}" if gate.over else ""
    return f"{least}{over}" + (", low end" if gate.bound == "low" else "")


def print_pipeline(console: Console, pipeline: PipelineShown) -> None:
    """What each stage reached and where its time went; then the gates."""
    table = plain_table(
        "stage", "accuracy", "95 %", "time", "over\npredicted", "most of the time", gap=1,
        right=("accuracy", "95 %", "time", "over\npredicted"),
    )  # fmt: skip
    for stage in pipeline.stages:
        table.add_row(*map(escape, _cells(stage, pipeline)))
    console.print()
    console.print(table)
    reasons: dict[str, list[str]] = {}
    for stage in pipeline.stages:
        if stage.gate:
            console.print(escape(f"gate: {stage.gate}"))
        if stage.reason:
            reasons.setdefault(f"{stage.state}: {stage.reason}", []).append(label(stage, pipeline))
    for reason, names in reasons.items():
        console.print(escape(f"{', '.join(names)} {reason}"))


def _cells(stage: StageShown, pipeline: PipelineShown) -> list[str]:
    name = label(stage, pipeline)
    if stage.took_s is None:
        return [name, "-", "-", "-", "-", stage.state]
    value, interval = "-", "-"
    if stage.accuracy is not None:
        value = f"{PERCENT * stage.accuracy.value:.1f} %"
        interval = f"{PERCENT * stage.accuracy.low:.1f}-{PERCENT * stage.accuracy.high:.1f}"
    return [name, value, interval, seconds(stage.took_s), ratio(stage) or "-", _largest(stage)]


def _largest(stage: StageShown) -> str:
    total_s = sum(stage.seconds_by_part.values())
    parts = sorted(stage.seconds_by_part.items(), key=lambda part: -part[1])[:MAX_PARTS]
    return ", ".join(
        f"{part_title(name)} {value / total_s:.0%}" for name, value in parts if value >= MIN_SHARE * total_s
    )
