"""Published rates of generation beside our predictions, and what such ratios say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from scalewright.catalog.library import Catalog
from scalewright.catalog.stage_runs import GenerationRun, generation_runs
from scalewright.costs.machine import Machine, machine_from_hardware
from scalewright.planner.answer import answer
from scalewright.planner.question import Generation, Question
from scalewright.workload.layout import Layout
from scalewright.workload.model import ModelSpec, from_catalog, from_shape
from scalewright.workload.precision import recipe

TAILS = (0.05, 0.95)


class TimedRow(Protocol):
    """A published time beside ours, of some source."""

    @property
    def source(self) -> str: ...

    @property
    def time_ratio(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One published number and ours."""

    source: str
    what: str
    """The row in words: device, precision, batch."""
    metric: str
    published: float
    predicted: float
    assumed: str
    is_rate: bool
    """Images or tokens per second; false: seconds."""

    @property
    def time_ratio(self) -> float:
        """Measured over predicted time: what an interval of the predicted time has to cover."""
        ratio = self.published / self.predicted
        return 1.0 / ratio if self.is_rate else ratio


def generation_rows(catalog: Catalog) -> list[StageRow]:
    return [_generation_row(catalog, run) for run in generation_runs()]


def _generation_row(catalog: Catalog, run: GenerationRun) -> StageRow:
    prediction = answer(
        Question(
            spec=_spec(catalog, run.model), machine=_machine(catalog, run.gpu, 8, None),
            stack=catalog.stack("megatron-core"), recipe=recipe(run.precision),
            layout=Layout(tp=run.tp, gbs=run.batch),
            stage=Generation(prompt_len=run.prompt, response_len=run.response, cache_bytes=run.cache_bytes),
        )
    )  # fmt: skip
    name = run.model if "=" not in run.model else f"{run.model.split(',')[0]}, {run.model.split(',')[1]}"
    what = f"{name} on {run.tp} x {run.gpu}, {run.precision}, {run.batch} x {run.prompt} + {run.response}"
    counted = (run.prompt + run.response) / run.response if run.counts_prompts else 1.0
    if run.ttft_s is not None:
        metric, published, predicted = "first token, s", run.ttft_s, prediction.generation.ttft_s
    else:
        assert run.tokens_per_s is not None
        metric, published, predicted = "tokens/s", run.tokens_per_s, prediction.rate_per_s * counted
    return StageRow(
        source=run.source, what=what, metric=metric, published=published, predicted=predicted, assumed=run.assumed,
        is_rate=run.ttft_s is None,
    )  # fmt: skip


def _spec(catalog: Catalog, name: str) -> ModelSpec:
    return from_shape(name) if "=" in name else from_catalog(catalog.model(name))


def _machine(catalog: Catalog, gpu: str, gpus_per_node: int, network_bytes_per_s_per_gpu: float | None) -> Machine:
    return machine_from_hardware(
        catalog, gpu=gpu, gpus_per_node=gpus_per_node, scale_up_bytes_per_s=None,
        network_bytes_per_s_per_gpu=network_bytes_per_s_per_gpu,
    )  # fmt: skip


def quantiles(rows: Sequence[TimedRow]) -> tuple[float, float]:
    """5 and 95 % of measured over predicted time, each source weighing the same."""
    sources = [row.source for row in rows]
    order = np.argsort([row.time_ratio for row in rows])
    ratios = np.array([rows[i].time_ratio for i in order])
    weights = np.array([1.0 / sources.count(rows[i].source) for i in order])
    middle = (np.cumsum(weights) - weights / 2.0) / weights.sum()
    low, high = (float(np.interp(tail, middle, ratios)) for tail in TAILS)
    return low, high


def left_out_coverage_frac(rows: Sequence[TimedRow]) -> float:
    """Share of rows inside the quantiles of the other sources; each source weighs the same."""
    inside = []
    for source in dict.fromkeys(row.source for row in rows):
        low, high = quantiles([row for row in rows if row.source != source])
        own = [row.time_ratio for row in rows if row.source == source]
        inside.append(sum(low <= ratio <= high for ratio in own) / len(own))
    return sum(inside) / len(inside)
