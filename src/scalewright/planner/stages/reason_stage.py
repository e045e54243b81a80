"""Predict a stage of reasoning-model training as our own trainer and engine run it: time by part, memory, energy.

The models are those of a training step and of generation. What frameworks of others add to an RL step is not in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from scalewright import __version__
from scalewright.catalog.library import Catalog
from scalewright.costs import stage as stage_costs
from scalewright.costs.machine import Machine
from scalewright.here.place import Place
from scalewright.planner.answer import Answer, answer
from scalewright.planner.generation import GenerateRequest
from scalewright.planner.question import ask
from scalewright.planner.stages.rl_times import scoring_s
from scalewright.records.documents import digest, document
from scalewright.records.types import Confidence
from scalewright.workload.layout import Layout
from scalewright.workload.lengths import LengthDistribution
from scalewright.workload.model import ModelSpec

OWN_ENGINE = "scalewright"
"""Our engine in the catalogue of engines."""
HEAD = "head_and_loss"
ENGINE_PARTS = ("generation", "reward")
"""What engines do on ranks of their own."""
CALLS_PER_SEQUENCE = 16
"""Calls of the tensor library that put one sequence into a micro-batch (run/reasoning/batches.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateLoad:
    """One update of the weights on the rank with the most work."""

    num_micro_batches: int
    num_rows: int
    """Of a micro-batch, on average."""
    row_len: int
    """Tokens of a row with its padding, on average."""
    num_tokens: float
    """Of all micro-batches, with padding."""
    num_sequences: int
    scored_frac: float
    """Of these, tokens of answers: the head works on them alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLoad:
    """Answers that are written at once."""

    num_prompts: int
    num_answers: int
    """To each prompt."""
    prompts: LengthDistribution
    answers: LengthDistribution
    max_running: int

    @property
    def num_sequences(self) -> int:
        return self.num_prompts * self.num_answers


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLoad:
    """What a stage does, counted: nothing of it depends on the machine."""

    stage: str
    spec: ModelSpec
    layout: Layout
    precision: str
    engine_precision: str
    engine_tp: int
    num_steps: int
    rollout: RolloutLoad | None = None
    """Of one step; None: nothing is generated."""
    is_evaluation: bool = False
    """The rollout answers test problems."""
    update: UpdateLoad | None = None
    num_updates: int = 0
    """Of one step."""
    num_scorings: float = 0.0
    """Forward passes over the sequences of an update: by the policy before it, by a reference or a teacher, each in
    passes of the policy."""
    has_sync: bool = False
    reward_s: float = 0.0
    """Of one answer, on one process."""
    num_samples: int = 0
    """Of the whole stage."""
    num_tokens: float = 0.0
    lora_rank: int = 0
    num_engines: int = 0
    """On ranks of their own, with `engine_tp` each; 0: the trainer's ranks write."""
    has_overlap: bool = False
    """Engines on ranks of their own write the next answers while the trainer works."""
    notes: tuple[str, ...] = ()

    @property
    def num_copies(self) -> int:
        """Copies of the model that write."""
        return self.num_engines or int(self.layout.num_gpus) // self.engine_tp


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedTime:
    """A time with its 90 % interval."""

    time_s: float
    low_s: float
    high_s: float

    def scaled(self, factor: float) -> BoundedTime:
        return BoundedTime(time_s=self.time_s * factor, low_s=self.low_s * factor, high_s=self.high_s * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePrediction:
    """What a stage takes."""

    load: StageLoad
    machine: Machine
    basis: str
    step_parts: dict[str, BoundedTime]
    """Of one step, by the names that a stage's record has."""
    memory_bytes: float
    fits: bool
    energy_j: float | None
    cost_usd: float | None
    warnings: tuple[str, ...]

    @property
    def step(self) -> BoundedTime:
        """Parts run one after the other; their errors are taken to go the same way."""
        parts = self.step_parts.values()
        return BoundedTime(
            time_s=sum(part.time_s for part in parts), low_s=sum(part.low_s for part in parts),
            high_s=sum(part.high_s for part in parts),
        )  # fmt: skip

    @property
    def whole(self) -> BoundedTime:
        """All steps, without the evaluation at the end and checkpoints."""
        return self.step.scaled(self.load.num_steps)

    @property
    def confidence(self) -> Confidence:
        return self.machine.confidence if self.load.rollout is None else self.machine.generation_confidence

    def document(self) -> dict[str, Any]:
        """The `prediction/1` document of the stage's run directory."""
        load, step, whole = self.load, self.step, self.whole
        num_gpus = int(load.layout.num_gpus)
        rate = load.num_tokens / whole.time_s
        body = {
            "id": digest({"load": repr(load), "machine": self.machine.as_input()}),
            "scalewright": __version__,
            "stage": load.stage,
            "model": load.spec.id,
            "system": self.machine.name,
            "basis": self.basis,
            "num_gpus": num_gpus,
            "training_time_s": whole.time_s,
            "training_time_interval_s": [whole.low_s, whole.high_s],
            "step_time_s": step.time_s,
            "step_time_interval_s": [step.low_s, step.high_s],
            "seconds_by_part": {name: part.scaled(load.num_steps).time_s for name, part in self.step_parts.items()},
            "tokens_per_s": rate,
            "tokens_per_s_interval": [load.num_tokens / whole.high_s, load.num_tokens / whole.low_s],
            "num_samples": load.num_samples,
            "num_tokens": load.num_tokens,
            "memory_bytes": self.memory_bytes,
            "fits": self.fits,
            "confidence": self.confidence,
            "warnings": list(self.warnings),
            **({} if self.energy_j is None else {"energy_j": self.energy_j}),
            **({} if self.cost_usd is None else {"cost_usd": self.cost_usd}),
        }
        return document("prediction", body)


def predict_stage(catalog: Catalog, load: StageLoad, place: Place) -> StagePrediction:
    """A stage on a machine, part by part."""
    written = None if load.rollout is None else _written(catalog, load, load.rollout, place)
    trained = None if load.update is None else _trained(catalog, load, load.update, place)
    parts: dict[str, BoundedTime] = {}
    if written is not None and load.rollout is not None:
        name = "evaluation" if load.is_evaluation else "generation"
        parts[name] = _part(written)
        reward_s = load.reward_s * load.rollout.num_sequences / load.num_copies
        parts["reward"] = BoundedTime(time_s=reward_s, low_s=reward_s, high_s=reward_s)
    if trained is not None and load.update is not None:
        scoring = _scored(load, load.update, trained)
        if scoring.time_s > 0.0:
            parts["log_probs"] = scoring
        parts["training"] = _update(load.update, trained).scaled(load.num_updates)
        data_s = load.update.num_sequences * load.num_updates * _call_s(place.machine) * CALLS_PER_SEQUENCE
        parts["data"] = BoundedTime(time_s=data_s, low_s=data_s, high_s=data_s)
    if load.has_sync and written is not None:
        sync_s = _sync_s(load, written)
        parts["weight_sync"] = BoundedTime(time_s=sync_s, low_s=sync_s, high_s=sync_s)
    if load.num_engines:
        parts = _beside_engines(parts, has_overlap=load.has_overlap)
    answers = [each for each in (written, trained) if each is not None]
    return StagePrediction(
        load=load, machine=place.machine, basis=place.basis, step_parts=parts,
        memory_bytes=sum(each.memory_bytes for each in answers), fits=all(each.fits for each in answers),
        energy_j=_footprint_sum(load, parts, written, trained, "energy"),
        cost_usd=_footprint_sum(load, parts, written, trained, "money"),
        warnings=tuple(dict.fromkeys([*load.notes, *(text for each in answers for text in each.warnings)])),
    )  # fmt: skip


def _beside_engines(parts: dict[str, BoundedTime], *, has_overlap: bool) -> dict[str, BoundedTime]:
    """A step as the trainer sees it: it waits for answers, or for what its own work does not hide of them.

    Equation  synchronous: idle = g;  with overlap: idle = max(g - w, 0),  g answers and rewards, w the trainer's work
    Source    noukhovitch2024 (Asynchronous RLHF, arXiv:2410.18252), figure 2
    Assumes   engines always have the next prompts; steps are alike
    Checked   tests/planner/test_reason_stage.py: the longer of both, and their sum
    """
    engine = [part for name, part in parts.items() if name in ENGINE_PARTS]
    own = {name: part for name, part in parts.items() if name not in ENGINE_PARTS}
    waits = [
        max(sum(getattr(part, bound) for part in engine)
            - (sum(getattr(part, bound) for part in own.values()) if has_overlap else 0.0), 0.0)
        for bound in ("time_s", "low_s", "high_s")
    ]  # fmt: skip
    return {"idle": BoundedTime(time_s=waits[0], low_s=min(waits), high_s=max(waits)), **own}


def _part(prediction: Answer) -> BoundedTime:
    low_s, high_s = prediction.interval_s
    return BoundedTime(time_s=prediction.time_s, low_s=low_s, high_s=high_s)


def _written(catalog: Catalog, load: StageLoad, rollout: RolloutLoad, place: Place) -> Answer:
    """The answers of a step, by all copies of the engine."""
    is_narrow = load.engine_precision == "fp8"
    request = GenerateRequest(
        prompt=rollout.prompts, response=rollout.answers, answers=rollout.num_answers, running=rollout.max_running,
        weights="fp8" if is_narrow else None, engine=OWN_ENGINE,
    )  # fmt: skip
    layout = Layout(tp=load.engine_tp, dp=load.num_copies, gbs=rollout.num_sequences)
    precision = "bf16" if is_narrow else load.engine_precision
    if precision.startswith("int"):  # rounded, but stored and multiplied in the device's usual type
        precision = "fp32" if place.machine.accelerator.kind == "cpu" else "bf16"
    return answer(
        ask(catalog, model=load.spec, system=place, layout=layout, precision=precision, generate=request)
    )  # fmt: skip


def _trained(catalog: Catalog, load: StageLoad, update: UpdateLoad, place: Place) -> Answer:
    """One update as a training step of rows of equal length."""
    dp, is_cpu = int(load.layout.dp), place.machine.accelerator.kind == "cpu"
    layout = replace(load.layout, mbs=update.num_rows, gbs=update.num_rows * update.num_micro_batches * dp)
    return answer(
        ask(
            catalog, model=load.spec, system=place, layout=layout, precision=load.precision, seq=update.row_len,
            stack=catalog.stack_of_own_run("off" if is_cpu else "default").id,
            mode="lora" if load.lora_rank else "full", lora_rank=load.lora_rank or None,
        )
    )  # fmt: skip


def _update(update: UpdateLoad, trained: Answer) -> BoundedTime:
    """The step without the head's work on prompts and padding, for the tokens that there are."""
    unscored_s = float(trained.time.part(HEAD).total) * (1.0 - update.scored_frac)
    shorter = (trained.time_s - unscored_s) / trained.time_s
    return _part(trained).scaled(shorter * _tokens_frac(update))


def _scored(load: StageLoad, update: UpdateLoad, trained: Answer) -> BoundedTime:
    """Forward passes of a step, with the relative interval of the updates."""
    if not load.num_scorings:
        return BoundedTime(time_s=0.0, low_s=0.0, high_s=0.0)
    setting = trained.transformer.setting
    once_s = scoring_s(setting, num_updates=load.num_updates, scored_frac=update.scored_frac) * _tokens_frac(update)
    return _part(trained).scaled(load.num_scorings * once_s / trained.time_s)


def _tokens_frac(update: UpdateLoad) -> float:
    """Tokens that there are over those of the whole rows that the step is predicted with."""
    return update.num_tokens / (update.num_micro_batches * update.num_rows * update.row_len)


def _sync_s(load: StageLoad, written: Answer) -> float:
    """New weights in the engine: a copy on one device, gathered over several.

    Equation  one device: t = (b_train + b_engine) P / B + n t_launch;  several: as `stage.gather_broadcast_time_s`
    Source    run/generate/weights.py: each tensor is read once and written once
    Assumes   a launch for each tensor; without a calibration none is counted
    Checked   tests/planner/test_reason_stage.py: proportional to the parameters
    """
    serving, machine = written.generation.serving, written.question.machine
    tensors, params = stage_costs.num_synced_tensors(serving.shape), load.spec.num_params
    if int(load.layout.num_gpus) > 1:
        return stage_costs.gather_broadcast_time_s(
            weights_bytes=params * serving.weight_bytes, num_tensors=tensors, num_devices=int(load.layout.num_gpus),
            machine=machine,
        )  # fmt: skip
    read_bytes = float(written.question.recipe.weight_bytes)
    return params * (read_bytes + serving.weight_bytes) / machine.hbm_bytes_per_s + tensors * _call_s(machine)


def _call_s(machine: Machine) -> float:
    """One call of the tensor library on the host; 0 where no calibration measured it."""
    launches = machine.launches
    return 0.0 if launches is None else launches.launch_s.get("eager", 0.0) * launches.host_factor


def _footprint_sum(
    load: StageLoad, parts: dict[str, BoundedTime], written: Answer | None, trained: Answer | None, what: str
) -> float | None:
    """Energy or money of all steps: each part at the power of its kind of work, the others at that of generation."""
    total = 0.0
    for name, part in parts.items():
        source = trained if name in ("training", "log_probs") else written
        source = source or trained or written
        used = None if source is None or source.footprint is None else getattr(source.footprint, what)
        if source is None or used is None:
            return None
        total += float(used.total) / source.time_s * part.time_s
    return total * load.num_steps
