"""Published rates of generation beside our predictions: what each row says, what had to be assumed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from scalewright.catalog.generation_runs import (
    GenerationHabits,
    PublishedGeneration,
    generation_habits,
    generation_runs,
)
from scalewright.catalog.library import Catalog
from scalewright.catalog.types import ServingEngine
from scalewright.costs.generation import cached_bytes
from scalewright.costs.machine import Machine
from scalewright.errors import NotExpressedError, ScalewrightError, UnknownNameError
from scalewright.planner.answer import Answer, answer
from scalewright.planner.generation import Generation
from scalewright.planner.question import Question, check
from scalewright.planner.validation.published_rows import lacks_network, row_machine
from scalewright.planner.validation.validate import NotInScopeError, published_spec
from scalewright.units import SECONDS, parse
from scalewright.workload.layout import Layout
from scalewright.workload.precision import RECIPES, Recipe

RECIPE_OF = {
    "FP32": ("fp32", ""), "FP16": ("fp16", ""), "BF16": ("bf16", ""), "FP8": ("fp8", ""), "MXFP8": ("mxfp8", ""),
    "FP4": ("nvfp4", ""), "NVFP4": ("nvfp4", ""), "MXFP4": ("bf16", "mxfp4"), "INT8": ("fp16", "int8"),
    "INT4": ("fp16", "int4"), "W4A16": ("fp16", "int4"), "AWQ": ("fp16", "int4"), "GPTQ": ("fp16", "int4"),
}  # fmt: skip
"""Recipe and format of the weights, by the word that a row has for its precision."""
MANY_TURNS = 20
"""Requests of a row that states neither their number nor a batch, over those that run at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRow:
    """One published rate or latency and ours, or the reason there is none."""

    run: PublishedGeneration
    metric: str = ""
    """tokens/s, first token or next token."""
    measured_s: float | None = None
    predicted_s: float | None = None
    interval_s: tuple[float, float] | None = None
    assumed: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def source(self) -> str:
        return self.run.document

    @property
    def device(self) -> str:
        return self.run.hardware.gpu

    @property
    def time_ratio(self) -> float:
        """Measured over predicted time: what an interval of the predicted time has to cover."""
        assert self.measured_s is not None
        assert self.predicted_s is not None
        return self.measured_s / self.predicted_s

    def as_dict(self) -> dict[str, Any]:
        body: dict[str, Any] = {"id": self.run.id, "source": self.source}
        if self.reason is not None:
            return {**body, "reason": self.reason}
        return {
            **body, "metric": self.metric, "measured_s": self.measured_s, "predicted_s": self.predicted_s,
            "interval_s": None if self.interval_s is None else list(self.interval_s), "assumed": list(self.assumed),
        }  # fmt: skip


def generation_rows(catalog: Catalog, runs: Iterable[PublishedGeneration] | None = None) -> list[GenerationRow]:
    """Every row with its prediction; default: the rows shipped."""
    habits = generation_habits()
    return [_row(catalog, habits, run) for run in (generation_runs() if runs is None else runs)]


def _row(catalog: Catalog, habits: GenerationHabits, run: PublishedGeneration) -> GenerationRow:
    try:
        question, assumed = generation_question(catalog, habits, run)
        check(question)
        prediction = answer(question)
    except (NotInScopeError, ScalewrightError) as error:
        return GenerationRow(run=run, reason=str(error))
    if not prediction.fits:
        return GenerationRow(run=run, reason="by our memory model its weights leave no room for a sequence")
    return compared(run, prediction, assumed)


def compared(run: PublishedGeneration, prediction: Answer, assumed: tuple[str, ...]) -> GenerationRow:
    """A row beside its prediction, as times."""
    figures, measured = prediction.generation, run.measured
    if measured.ttft_ms is not None and measured.output_tokens_per_s_total is None:
        published = parse(f"{measured.ttft_ms} ms", SECONDS)
        loaded = figures.loaded_ttft_s
        predicted = figures.ttft_s if loaded is None else loaded
        low, high = figures.ttft_interval_s
        interval = low * predicted / figures.ttft_s, high * predicted / figures.ttft_s
        return GenerationRow(
            run=run, metric="first token", measured_s=published, predicted_s=predicted, interval_s=interval,
            assumed=assumed,
        )  # fmt: skip
    if measured.itl_ms is not None and measured.output_tokens_per_s_total is None:
        return GenerationRow(
            run=run, metric="next token", measured_s=parse(f"{measured.itl_ms} ms", SECONDS), predicted_s=figures.itl_s,
            interval_s=figures.itl_interval_s, assumed=assumed,
        )  # fmt: skip
    return GenerationRow(
        run=run, metric="tokens/s", measured_s=measured_time_s(run, prediction.question), predicted_s=prediction.time_s,
        interval_s=prediction.interval_s, assumed=assumed,
    )  # fmt: skip


def measured_time_s(run: PublishedGeneration, question: Question) -> float:
    """Time of all of a question's answers at the published rate."""
    measured, num = run.measured, int(question.layout.gbs)
    if measured.total_tokens_per_s is not None:
        return num * (run.isl + run.osl) / measured.total_tokens_per_s
    rate = measured.output_tokens_per_s_total
    if rate is None and measured.output_tokens_per_s_per_gpu is not None:
        rate = measured.output_tokens_per_s_per_gpu * run.hardware.gpus
    if rate is None:
        raise NotInScopeError("the row measures neither tokens per second nor a time")
    return num * run.osl / rate


def generation_question(
    catalog: Catalog, habits: GenerationHabits, run: PublishedGeneration
) -> tuple[Question, tuple[str, ...]]:
    """A row in our terms. What it leaves open is its engine's habit, and is listed."""
    recipe, weights = _recipe(run)
    engine = _engine(catalog, run)
    machine, assumed = _machine(catalog, run)
    layout = _layout(run)
    cache = _cache_bytes(run, recipe, weights)
    stage = Generation(
        prompt_len=run.isl, response_len=run.osl, weights=weights, cache_bytes=cache, engine=engine,
        max_running=_max_running(run, int(layout.dp)), requests_per_s=run.requests_per_s,
        has_parallel_blocks=run.model.name.lower().startswith(habits.parallel_blocks.families),
    )  # fmt: skip
    num, how = _num_requests(habits, run, engine)
    question = Question(
        spec=published_spec(run.model.model_copy(update={"seq": run.isl + run.osl})), machine=machine,
        stack=catalog.stack("megatron-core"), recipe=recipe, layout=replace(layout, gbs=num),
        stage=stage,
    )  # fmt: skip
    if engine is None:
        assumed = [*assumed, "an engine that only memory limits"]
    return question, (*run.assumed, *assumed, *how)


def _recipe(run: PublishedGeneration) -> tuple[Recipe, str]:
    word = run.precision.upper()
    if word not in RECIPE_OF:
        raise NotInScopeError(f"precision {run.precision!r} is not one of {', '.join(RECIPE_OF)}")
    name, weights = RECIPE_OF[word]
    return RECIPES[name], weights


def _cache_bytes(run: PublishedGeneration, recipe: Recipe, weights: str) -> float:
    if run.cache_precision is not None:
        return cached_bytes(run.cache_precision.lower())
    is_narrow = recipe.is_narrow or weights in ("mxfp4",)
    return cached_bytes("fp8") if is_narrow else recipe.activation_bytes


def _engine(catalog: Catalog, run: PublishedGeneration) -> ServingEngine | None:
    """The catalogued engine of a row, by the first word of what the row calls it."""
    name, _, release = run.engine.partition(" ")
    if not name:
        return None
    try:
        return catalog.engine(name).model_copy(update={"release": release.strip()})
    except UnknownNameError:
        return None


def _layout(run: PublishedGeneration) -> Layout:
    """How the row's devices share the model. Attention of each device for its own sequences is data parallelism."""
    tp, pp, ep, gpus = run.tp, run.pp or 1, run.ep or 1, run.hardware.gpus
    if gpus % (tp * pp):
        raise NotInScopeError(f"{gpus} GPUs are not whole copies of tp={tp} and pp={pp}")
    copies = gpus // (tp * pp)
    if run.attention_dp:
        return Layout(tp=1, pp=pp, dp=tp * copies, ep=ep if ep > 1 else (tp if run.model.moe else 1))
    return Layout(tp=tp, pp=pp, dp=copies, ep=ep)


def _max_running(run: PublishedGeneration, copies: int) -> int | None:
    return None if run.concurrency is None else max(run.concurrency // copies, 1)


def _num_requests(
    habits: GenerationHabits, run: PublishedGeneration, engine: ServingEngine | None
) -> tuple[int, tuple[str, ...]]:
    if run.batch is not None or run.requests is not None:
        return run.requests or run.batch or 1, ()
    for habit in habits.requests:
        if engine is not None and habit.engine == engine.id and run.concurrency is None:
            num = habit.num_requests_of(run.isl + run.osl)
            return num, (f"{num} requests, as its publisher sends",)
    num = MANY_TURNS * (run.concurrency or 256)
    return num, (f"{num} requests",)


def _machine(catalog: Catalog, run: PublishedGeneration) -> tuple[Machine, list[str]]:
    if lacks_network(run.hardware):
        raise NotExpressedError(f"the row gives no network between nodes of {run.hardware.gpu}")
    machine, assumed = row_machine(catalog, run.hardware)
    return machine, [*machine.assumptions, *assumed]
