"""Figures of the stages of a pipeline as text: the rows of its table, the same in the page and in files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scalewright import units
from scalewright.records.pipeline_report import BoundedFigure, PipelineShown, StageShown

NONE = ""
PERCENT = 100.0
PART_COLOURS = {
    "data": "#F0E442",
    "generation": "#0072B2",
    "reward": "#E69F00",
    "log_probs": "#56B4E9",
    "training": "#009E73",
    "weight_sync": "#CC79A7",
    "evaluation": "#D55E00",
    "checkpoint": "#332288",
    "idle": "#BBBBBB",
}
"""Parts of a stage's time, in the order of a step; Okabe and Ito's colours, for any colour vision."""
CURVE_TITLES = {
    "reward_mean": "reward",
    "correct_frac": "right answers while sampling",
    "accuracy_frac": "greedy accuracy on the test set",
    "length_mean": "tokens of an answer",
    "entropy": "entropy (nats)",
    "kl_reference": "KL to the reference",
    "kl_engines": "KL between trainer and engine",
    "masked_frac": "masked share of tokens",
    "effective_sample_frac": "effective sample size",
    "grad_norm": "norm of the gradient",
    "loss": "loss",
}
"""Curves of a stage, in the order in which they are drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One figure of all stages."""

    title: str
    cells: tuple[str, ...]


def label(stage: StageShown, pipeline: PipelineShown) -> str:
    """Name of a stage; with its seed where there are several."""
    several = sum(other.name == stage.name for other in pipeline.stages) > 1
    return f"{stage.name}, seed {stage.seed}" if several else stage.name


def part_title(name: str) -> str:
    return {"log_probs": "log-probs", "weight_sync": "weight sync"}.get(name, name.replace("_", " "))


def percent(share: float | None) -> str:
    return NONE if share is None else f"{PERCENT * share:.3g} %"


def with_interval(estimate: BoundedFigure | None) -> str:
    """Accuracy in points of 100 with its interval."""
    if estimate is None:
        return NONE
    value, low, high = (PERCENT * one for one in (estimate.value, estimate.low, estimate.high))
    return f"{value:.1f} % ({low:.1f} to {high:.1f})"


def seconds(value: float | None) -> str:
    return NONE if value is None else units.format(value, units.SECONDS)


def _predicted(estimate: BoundedFigure | None) -> str:
    if estimate is None:
        return NONE
    ends = "" if estimate.low == estimate.high else f" ({seconds(estimate.low)} to {seconds(estimate.high)})"
    return f"{seconds(estimate.value)}{ends}"


def _amount(value: float | None, dimension: units.Dimension) -> str:
    return NONE if value is None else units.format(value, dimension)


def _count(value: float) -> str:
    return f"{value:,.0f}" if value else NONE


def _params(stage: StageShown) -> str:
    return units.format(stage.num_params, units.COUNT) if stage.num_params else NONE


def ratio(stage: StageShown) -> str:
    """Measured over predicted time of the steps."""
    own_s = steps_s(stage)
    return f"{own_s / stage.predicted_s.value:.2f}" if stage.predicted_s and own_s else NONE


def steps_s(stage: StageShown) -> float | None:
    """Time of the steps, which is what is predicted: without evaluation and checkpoints."""
    if stage.took_s is None:
        return None
    return sum(s for name, s in stage.seconds_by_part.items() if name not in ("evaluation", "checkpoint"))


def _pass_at_k(stage: StageShown) -> str:
    several = {k: estimate for k, estimate in stage.pass_at_k.items() if k > 1}
    if not several:
        return NONE
    k = max(several)
    return f"{with_interval(several[k])}, k = {k}"


ROWS: dict[str, Callable[[StageShown], str]] = {
    "does": lambda stage: stage.stage,
    "follows": lambda stage: ", ".join(stage.follows),
    "state": lambda stage: stage.state + (f": {stage.reason}" if stage.reason else ""),
    "model": lambda stage: stage.model,
    "parameters": _params,
    "ranks": lambda stage: _count(stage.num_ranks),
    "layout": lambda stage: ", ".join(part for part in stage.layout.split(",") if not part.endswith(("=1", "=0"))),
    "precision": lambda stage: stage.precision,
    "steps": lambda stage: _count(stage.num_steps),
    "samples": lambda stage: _count(stage.num_samples),
    "tokens": lambda stage: _count(stage.num_tokens),
    "greedy accuracy": lambda stage: with_interval(stage.accuracy),
    "sampled accuracy": lambda stage: with_interval(stage.pass_at_k.get(1)),
    "pass@k": _pass_at_k,
    "gate": lambda stage: NONE if stage.passes_gate is None else ("passed" if stage.passes_gate else "not passed"),
    "time": lambda stage: seconds(stage.took_s),
    "time of the steps": lambda stage: seconds(steps_s(stage)),
    "predicted, 90 % interval": lambda stage: _predicted(stage.predicted_s),
    "measured over predicted": ratio,
    "communication": lambda stage: percent(stage.communication_frac),
    "utilisation": lambda stage: percent(stage.utilisation_frac),
    "gap between ranks": lambda stage: percent(stage.rank_gap_frac),
    "KV cache in use": lambda stage: percent(stage.kv_occupancy_frac),
    "memory of the process": lambda stage: _amount(stage.host_bytes, units.BYTES),
    "memory of the device": lambda stage: _amount(stage.device_bytes, units.BYTES),
    "energy": lambda stage: _amount(stage.energy_j, units.JOULES),
    "cost": lambda stage: _amount(stage.cost_usd, units.USD),
    "cost of 1,000 samples": lambda stage: _amount(stage.cost_usd_per_thousand_samples, units.USD),
    "KL between engines": lambda stage: NONE if stage.kl_engines is None else f"{stage.kl_engines:.2g}",
    "masked tokens": lambda stage: percent(stage.masked_frac),
    "effective sample size": lambda stage: percent(stage.effective_sample_frac),
}
NEVER_MEASURED = {
    "utilisation": "the device does not say how busy it is",
    "energy": "no energy counter can be read",
    "cost": "the device has no price in the catalogue",
    "communication": "no step was profiled",
}
"""Why a row may be absent."""


def table_rows(pipeline: PipelineShown) -> list[TableRow]:
    """Every figure that some stage has."""
    rows = (
        TableRow(title=title, cells=tuple(cell(stage) for stage in pipeline.stages)) for title, cell in ROWS.items()
    )
    return [row for row in rows if any(row.cells)]


def missing_rows(pipeline: PipelineShown) -> list[str]:
    """Figures that no stage has, and why."""
    if not any(stage.took_s for stage in pipeline.stages):
        return []
    titles = {row.title for row in table_rows(pipeline)}
    return [f"{title}: {why}" for title, why in NEVER_MEASURED.items() if title not in titles]


def curve_groups(pipeline: PipelineShown) -> list[tuple[str, list[StageShown]]]:
    """Stages whose curves share a chart: they do the same from the same weights, such as with and without a mask."""
    groups: dict[tuple[str, tuple[str, ...]], list[StageShown]] = {}
    for stage in pipeline.stages:
        if stage.curve:
            groups.setdefault((stage.stage, stage.follows), []).append(stage)
    titles = []
    for (kind, follows), stages in groups.items():
        names = ", ".join(dict.fromkeys(stage.name for stage in stages))
        after = f", from {' and '.join(follows)}" if follows else ""
        titles.append((names if names == kind else f"{names} ({kind}{after})", stages))
    return titles


def colour_index(stages: list[StageShown]) -> list[int]:
    """A colour for each stage of a chart; seeds of a stage share it."""
    names = list(dict.fromkeys(stage.name for stage in stages))
    return [names.index(stage.name) for stage in stages]
