"""Count what a stage of reasoning-model training will do, and predict its time on this machine or another."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.data.reasoning.task import Task, Trace, open_task
from scalewright.errors import ConfigError, NotExpressedError
from scalewright.here.devices import Here
from scalewright.here.place import Place, place_of
from scalewright.launch.prepare.language_setup import machine_of
from scalewright.planner.stages.reason_stage import RolloutLoad, StageLoad, StagePrediction, UpdateLoad, predict_stage
from scalewright.records.reasoning import read_stored_answers
from scalewright.workload.lengths import LengthDistribution, LogNormalLength, fixed
from scalewright.workload.model import ModelSpec
from scalewright.workload.reasoning.rows import longest_first, packed_rows, padded_groups, padded_width
from scalewright.workload.reasoning.stage_run import (
    DistillSettings,
    GenerateSettings,
    GrpoSettings,
    ReasonRun,
    SftSettings,
)

NUM_SAMPLED = 256
"""Traces whose lengths stand for those of all."""
LEAST_CV = 0.02
"""Lengths that spread less are as good as equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOutlook:
    """The prediction of a stage, or why there is none."""

    prediction: StagePrediction | None
    here: Here | None
    note: str = ""

    @property
    def forecast(self) -> str:
        """One sentence for people."""
        if self.prediction is None:
            return self.note
        whole = self.prediction.whole
        took, low, high = (units.format(s, units.SECONDS) for s in (whole.time_s, whole.low_s, whole.high_s))
        parts = self.prediction.step_parts
        largest = max(parts, key=lambda name: parts[name].time_s).replace("_", " ")
        share = max(part.time_s for part in parts.values()) / self.prediction.step.time_s
        return f"predicted {took} ({low} to {high}), {100 * share:.0f} % {largest} ({self.prediction.basis})"


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceLengths:
    """Lengths of the sequences that a stage trains on or writes, from a sample."""

    prompts: tuple[int, ...]
    answers: tuple[int, ...]
    reward_s: float = 0.0
    notes: tuple[str, ...] = ()

    def update(self, num: int) -> list[tuple[int, int]]:
        """Prompt and answer of so many sequences: the sample, again and again."""
        return [(self.prompts[i % len(self.prompts)], self.answers[i % len(self.answers)]) for i in range(num)]


def stage_outlook(catalog: Catalog, run: ReasonRun, *, system: str | None) -> StageOutlook:
    """Predict a stage before it starts."""
    here = _machine(catalog, run, system)
    if here is None:
        return StageOutlook(prediction=None, here=None, note="no prediction: name this machine with --system")
    place = Place(machine=here.machine, system="", basis=here.basis)
    if system is not None:  # with its grid and its price
        place = place_of(catalog, system, num_ranks=run.num_ranks, device=run.device)
    try:
        return StageOutlook(prediction=predict_stage(catalog, stage_load(run), place), here=here)
    except NotExpressedError as error:
        return StageOutlook(prediction=None, here=here, note=f"no prediction: {error}")


def _machine(catalog: Catalog, run: ReasonRun, system: str | None) -> Here | None:
    """The machine of a stage. The stages of a pipeline share one probe: it takes seconds, and some stages do not."""
    num_engine_ranks = run.roles.num_engine_ranks
    # Engines and a trainer that take turns can use the same cores.
    num_ranks = run.num_ranks + num_engine_ranks if run.roles.staleness else max(run.num_ranks, num_engine_ranks)
    key = ("machine", system, run.device, run.precision, num_ranks)
    return catalog.derived(key, lambda: machine_of(catalog, system, run, num_ranks))


def stage_load(run: ReasonRun, lengths: SequenceLengths | None = None) -> StageLoad:
    """What the stage does. Lengths come from the stage's own data, or from traces of the task."""
    lengths = lengths or sampled_lengths(run, open_task(run.task))
    is_blank = run.stage in ("grpo", "generate") and not run.start_from
    blank = ["the weights are random, so hardly an answer gets a reward: give --start-from"] if is_blank else []
    roles = run.roles
    blank += (
        ["engines have different sizes; all are taken for the smallest"] if len(set(roles.engine_ranks)) > 1 else []
    )
    base = StageLoad(
        stage=run.stage, spec=run.spec, layout=run.layout, precision=run.precision,
        engine_precision=run.engine.precision, engine_tp=min(roles.engine_ranks, default=run.engine.tp),
        num_steps=max(run.steps, 1), num_engines=roles.num_engines, has_overlap=roles.staleness > 0,
        reward_s=lengths.reward_s, lora_rank=run.lora_rank, notes=(*blank, *lengths.notes),
    )  # fmt: skip
    settings, gbs = run.settings, int(run.layout.gbs)
    if isinstance(settings, SftSettings):
        return _trained(base, run, lengths, packs=settings.packs)
    if isinstance(settings, GrpoSettings):
        written = _budgeted if settings.token_budget else _rewarded
        return written(base, run, settings, lengths)
    if isinstance(settings, GenerateSettings):
        return _generated(base, run, settings, lengths)
    if isinstance(settings, DistillSettings):
        if settings.mode == "data":
            return _trained(base, run, lengths, packs=settings.packs)
        return _distilled(base, run, settings, lengths, num_updates=settings.num_prompts // gbs)
    return _evaluated(base, run, lengths)


def _trained(base: StageLoad, run: ReasonRun, lengths: SequenceLengths, *, packs: bool) -> StageLoad:
    gbs = int(run.layout.gbs)
    num_tokens = sum(map(sum, lengths.update(gbs))) * base.num_steps
    return replace(
        base, update=update_load(run, lengths, packs=packs), num_updates=1, num_samples=gbs * base.num_steps,
        num_tokens=float(num_tokens),
    )  # fmt: skip


def _rewarded(base: StageLoad, run: ReasonRun, settings: GrpoSettings, lengths: SequenceLengths) -> StageLoad:
    each = settings.num_sequences // int(run.layout.gbs)
    old_frac = 1.0 if settings.num_epochs > 1 else (each - 1) / each  # the first update of a step needs none
    return replace(
        base,
        rollout=_rollout(run, lengths, num_prompts=settings.num_prompts, num_answers=settings.num_answers),
        update=update_load(run, lengths, packs=False),
        num_updates=each * settings.num_epochs,
        num_scorings=(old_frac + float(settings.loss.needs_reference)) / settings.num_epochs,
        has_sync=True,
        num_samples=settings.num_sequences * base.num_steps,
        num_tokens=settings.num_sequences * statistics.fmean(lengths.answers) * base.num_steps,
    )


def _budgeted(base: StageLoad, run: ReasonRun, settings: GrpoSettings, lengths: SequenceLengths) -> StageLoad:
    """A step writes its token budget, with as many answers open as there is room for until it ends.

    Each open answer gets an equal share of the budget. Before that its prefix is read again, unless keys stay. An
    answer that is open at some moment is longer than others, and half written. Answers that are given up are not
    counted.
    """
    copies, dp, gbs = run.num_ranks // run.engine.tp, int(run.layout.dp), int(run.layout.gbs)
    num_mean = statistics.fmean(lengths.answers)
    num_prefix = 0.0 if settings.stale_keys else statistics.fmean(n**2 for n in lengths.answers) / (2 * num_mean)
    num_open = min(settings.num_sequences, run.engine.max_running * copies)
    num_trained = max(settings.token_budget / num_mean, 1.0)
    each = max(round(num_trained / gbs), 1)
    update_size = max(round(num_trained / each / dp), 1) * dp
    sized = replace(run, layout=replace(run.layout, gbs=update_size, mbs=1))
    prompt_len = max(round(statistics.fmean(lengths.prompts) + num_prefix), 1)
    return replace(
        base,
        rollout=RolloutLoad(
            num_prompts=num_open, num_answers=1, prompts=fixed(prompt_len),
            answers=fixed(max(round(settings.token_budget / num_open), 1)), max_running=run.engine.max_running,
        ),
        update=update_load(sized, lengths, packs=False, num_rows=int(run.layout.mbs)),
        num_updates=each * settings.num_epochs,
        num_scorings=(
            (1.0 if settings.num_epochs > 1 else (each - 1) / each) + float(settings.loss.needs_reference)
        ) / settings.num_epochs,
        has_sync=True,
        num_samples=round(num_trained * base.num_steps),
        num_tokens=float(settings.token_budget * base.num_steps),
    )  # fmt: skip


def _generated(base: StageLoad, run: ReasonRun, settings: GenerateSettings, lengths: SequenceLengths) -> StageLoad:
    """Copies of the engine take shards by turns: a step is a shard of every copy."""
    copies = run.num_ranks // run.engine.tp
    num_samples = settings.num_problems * settings.num_answers
    shard = min(settings.shard_problems, settings.num_problems)
    return replace(
        base,
        num_steps=-(-settings.num_shards // copies),
        rollout=_rollout(run, lengths, num_prompts=shard * copies, num_answers=settings.num_answers),
        num_samples=num_samples,
        num_tokens=num_samples * statistics.fmean(lengths.answers),
    )


def _distilled(
    base: StageLoad, run: ReasonRun, settings: DistillSettings, lengths: SequenceLengths, *, num_updates: int
) -> StageLoad:
    """The student writes, the teacher scores: as many passes of the student's size as it has parameters more."""
    assert settings.teacher_shape is not None
    teacher = ModelSpec(id=settings.teacher_id, name=settings.teacher_id, shape=settings.teacher_shape)
    return replace(
        base,
        rollout=_rollout(run, lengths, num_prompts=settings.num_prompts, num_answers=1),
        update=update_load(run, lengths, packs=False),
        num_updates=num_updates,
        num_scorings=teacher.num_params / run.spec.num_params,
        has_sync=True,
        num_samples=settings.num_prompts * base.num_steps,
        num_tokens=settings.num_prompts * statistics.fmean(lengths.answers) * base.num_steps,
    )


def _evaluated(base: StageLoad, run: ReasonRun, lengths: SequenceLengths) -> StageLoad:
    """The greedy answer and the sampled ones, as if they were written together."""
    settings = run.evaluation
    num_answers = 1 + settings.num_answers
    num_samples = max(settings.num_problems, 1) * num_answers
    return replace(
        base, num_steps=1, is_evaluation=True, num_samples=num_samples,
        num_tokens=num_samples * statistics.fmean(lengths.answers),
        rollout=_rollout(run, lengths, num_prompts=max(settings.num_problems, 1), num_answers=num_answers),
    )  # fmt: skip


def _rollout(run: ReasonRun, lengths: SequenceLengths, *, num_prompts: int, num_answers: int) -> RolloutLoad:
    prompt_len = max(round(statistics.fmean(lengths.prompts)), 1)
    return RolloutLoad(
        num_prompts=num_prompts, num_answers=num_answers, prompts=fixed(prompt_len),
        answers=distribution(lengths.answers, longest=max(run.context - prompt_len, *lengths.answers)),
        max_running=run.engine.max_running,
    )  # fmt: skip


def distribution(lengths: Sequence[int], *, longest: int) -> LengthDistribution:
    """A distribution with the mean and the spread of a sample."""
    mean, spread = statistics.fmean(lengths), statistics.pstdev(lengths)
    if spread < LEAST_CV * mean or mean >= longest:
        return fixed(max(round(mean), 1))
    return LogNormalLength(num_mean=mean, cv=spread / mean, num_max=longest)


def update_load(run: ReasonRun, lengths: SequenceLengths, *, packs: bool, num_rows: int = 0) -> UpdateLoad:
    """Micro-batches of one update on one rank, made from sampled lengths as the trainer makes them.

    `num_rows` of a micro-batch are those of the layout where none is given.
    """
    dp, gbs, row_tokens = int(run.layout.dp), int(run.layout.gbs), run.row_tokens or run.context
    own = sorted(lengths.update(gbs), key=sum)[::dp]
    sizes = [min(prompt + reply - 1, row_tokens) for prompt, reply in own]
    num_rows, order = num_rows or int(run.layout.mbs), longest_first(sizes)
    if packs:
        rows = packed_rows(order, sizes, row_tokens)
        num_micro, num_all, num_tokens = -(-len(rows) // num_rows), len(rows), len(rows) * row_tokens
        # attention sees sequences, not rows
        width = round(sum(size**2 for size in sizes) / sum(sizes))
        num_all = -(-num_tokens // width)
    else:
        widths = [padded_width(size, row_tokens=row_tokens) for size in sizes]
        groups = padded_groups(order, widths, num_rows * row_tokens)
        num_tokens = sum(len(group) * widths[group[0]] for group in groups)
        num_micro, num_all = len(groups), len(sizes)
        width = max(round(num_tokens / num_all), 1)
    scored = sum(reply for _, reply in own)
    return UpdateLoad(
        num_micro_batches=num_micro, num_rows=max(round(num_all / num_micro), 1), row_len=width,
        num_tokens=float(num_tokens), num_sequences=len(own), scored_frac=min(scored / num_tokens, 1.0),
    )  # fmt: skip


def sampled_lengths(run: ReasonRun, task: Task) -> SequenceLengths:
    """Lengths of stored answers, else of traces of the task, and the time of a score where the task is our own."""
    if run.data_from:
        stored = read_stored_answers(Path(run.data_from))[:NUM_SAMPLED]
        if not stored:
            raise ConfigError(
                f"{run.data_from}: kept no answer: sample more answers, start from a better model, or keep all"
            )
        pairs = [(len(answer.prompt), len(answer.response)) for answer in stored]
        return _lengths_of(pairs)
    if run.task.kind == "files" and not run.task.traces and run.stage not in ("sft", "distill"):
        problems = task.problems("train", NUM_SAMPLED, seed=run.seed)
        pairs = [(len(problem.prompt), task.max_response) for problem in problems]
        note = "no traces to take lengths from: every answer is taken to have the longest length"
        return replace(_lengths_of(pairs), notes=(note,))
    traces = task.cold_start(NUM_SAMPLED, seed=run.seed)
    lengths = _lengths_of([(len(trace.problem.prompt), len(trace.response)) for trace in traces])
    if run.task.kind != "countdown":
        return replace(lengths, notes=("the time of the reward is not predicted",))
    return replace(lengths, reward_s=_score_s(task, traces))


def _lengths_of(pairs: Sequence[tuple[int, int]]) -> SequenceLengths:
    return SequenceLengths(prompts=tuple(p for p, _ in pairs), answers=tuple(a for _, a in pairs))


def _score_s(task: Task, traces: Sequence[Trace]) -> float:
    """Time of one score, measured now."""
    begun_s = time.process_time()
    task.score_many([(trace.problem, trace.response) for trace in traces])
    return (time.process_time() - begun_s) / len(traces)


def stage_machine(
    catalog: Catalog, here: Here, *, precision: str, num_ranks: int, system: str | None
) -> dict[str, Any]:
    """The devices of the run: peak and memory rate are the roofs of a stage's roofline, and what a second costs."""
    prices = catalog.prices(here.machine.accelerator.id, system)
    return here.as_document(precision) | {
        "memory_bytes_per_s": here.machine.hbm_bytes_per_s,
        "usd_per_s": prices[0].usd_per_s * num_ranks if prices else None,
    }
