"""Published RL steps beside our predictions: what each row says, what had to be assumed, and the scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.catalog.rl_runs import PublishedRlRun, RlFramework, RlFrameworks, rl_frameworks, rl_runs, whole_numbers
from scalewright.costs.machine import Machine, machine_from_hardware, machine_from_system
from scalewright.errors import NotExpressedError, ScalewrightError
from scalewright.planner.answer import Answer, answer
from scalewright.planner.question import Question, resolve_spec
from scalewright.planner.validation.scores import DIFFERENT_FRAC
from scalewright.records.documents import read_document
from scalewright.workload.layout import Layout
from scalewright.workload.precision import recipe
from scalewright.workload.rl import RlStep

NETWORK_BYTES_PER_S_PER_GPU = 50e9
"""400 Gbit/s a device, where a row names devices and no system."""
SYSTEMS = {"DGX-H100": "generic-h100", "GB200-NVL72": "generic-gb200-nvl72"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RlRow:
    """One published step and ours, or the reason why there is none."""

    run: PublishedRlRun
    model: str
    assumed: tuple[str, ...] = ()
    prediction: Answer | None = None
    reason: str = ""

    @property
    def experiment(self) -> tuple[object, ...]:
        """What the rows of one comparison share."""
        run = self.run
        return run.framework, run.version, run.file, self.model, run.system, run.max_response, run.engine

    @property
    def step_s(self) -> float:
        assert self.run.step_s is not None
        return self.run.step_s

    @property
    def predicted_s(self) -> float:
        assert self.prediction is not None
        return self.prediction.time_s

    @property
    def interval_s(self) -> tuple[float, float]:
        assert self.prediction is not None
        return self.prediction.interval_s

    @property
    def error_frac(self) -> float:
        return self.predicted_s / self.step_s - 1.0

    def as_dict(self) -> dict[str, Any]:
        body = {
            "source": " ".join(part for part in (self.run.source, self.run.file, self.run.version) if part),
            "what": self.what,
            "step_s": self.step_s,
            "is_consistent": self.run.consistent,
        }
        if self.prediction is None:
            return body | {"reason": self.reason}
        return body | {
            "predicted_s": self.predicted_s,
            "interval_s": list(self.interval_s),
            "error_frac": self.error_frac,
            "parts": [part.as_dict() for part in self.prediction.rl.parts],
            "assumed": list(self.assumed),
        }

    @property
    def step(self) -> RlStep:
        assert self.prediction is not None
        stage = self.prediction.question.stage
        assert isinstance(stage, RlStep)
        return stage

    @property
    def part_names(self) -> tuple[str, ...]:
        assert self.prediction is not None
        return tuple(part.name for part in self.prediction.rl.parts)

    @property
    def part_times_s(self) -> NDArray[np.float64]:
        """Whole times of the parts, what is hidden included."""
        assert self.prediction is not None
        return np.array([part.whole_s for part in self.prediction.rl.parts])

    @property
    def what(self) -> str:
        run = self.run
        where = run.system or run.gpu or ""
        return f"{self.model} on {run.gpus} x {where}, {run.policy or run.mode}, {run.precision}"


def rl_rows(
    catalog: Catalog, runs: Iterable[PublishedRlRun] | None = None, *, values: Mapping[str, float] | None = None
) -> list[RlRow]:
    """Every whole step with its prediction; default: the rows shipped. `values` are constants set otherwise."""
    frameworks = rl_frameworks()
    rows = rl_runs() if runs is None else runs
    return [_row(catalog, frameworks, run, values or {}) for run in rows if run.is_whole_step]


def _row(catalog: Catalog, frameworks: RlFrameworks, run: PublishedRlRun, values: Mapping[str, float]) -> RlRow:
    model = frameworks.model_of(run)
    try:
        question, assumed = rl_question(catalog, frameworks, run)
        return RlRow(run=run, model=model, assumed=assumed, prediction=answer(with_values(question, values)))
    except ScalewrightError as error:
        return RlRow(run=run, model=model, reason=str(error))


def with_values(question: Question, values: Mapping[str, float]) -> Question:
    """The question with some constants of its machine set otherwise."""
    constants = question.machine.constants
    changed = {name: getattr(constants, name).model_copy(update={"value": value}) for name, value in values.items()}
    return replace(question, machine=replace(question.machine, constants=constants.model_copy(update=changed)))


def rl_question(
    catalog: Catalog, frameworks: RlFrameworks, run: PublishedRlRun
) -> tuple[Question, tuple[str, ...]]:  # fmt: skip
    """A row in our terms. What it leaves open is its framework's habit, and is listed."""
    name, habit = frameworks.of(run)
    model, assumed = frameworks.model_of(run), list(run.assumed)
    if run.algorithm == "DAPO" and name == "nemo-rl":
        raise NotExpressedError("DAPO draws answers until enough are useful, and the row does not say how many it drew")
    if run.avg_seq is None:
        raise NotExpressedError("the row gives no mean length of its answers")
    num_rollout, num_trainer = _devices(run, habit, frameworks, model)
    layout = _layout(run, habit, model, num_trainer)
    num_sequences, num_samples = _sequences(run, habit)
    prompt = round(run.prompt_len or habit.prompt_len)
    longest = (run.max_response or 0) or (run.train_max_seq or 0) - prompt
    is_async = run.policy_kind == "asynchronous"
    step = RlStep(
        num_prompts=num_sequences // num_samples, num_responses=num_samples, prompt_len=prompt,
        response_len=round(run.avg_seq), longest_len=longest or None,
        rollout_tp=_rollout_tp(run, habit), rollout_pp=_rollout_pp(run), rollout_gpus=num_rollout,
        lag=_lag(run), staleness_frac=_staleness(run) if is_async else 0.0,
        num_chunks=_chunks(run, habit) if is_async else 1,
        rollout_memory_frac=habit.apart_memory_frac if num_rollout else habit.together_memory_frac,
        has_reference=habit.has_reference, loops_experts=habit.loops_experts,
        scores_old=habit.scores_old_async or not is_async if run.scores_old is None else run.scores_old,
        packs=habit.packs if run.packs is None else run.packs,
        pack_tokens=habit.pack_sequences * (prompt + longest),
    )  # fmt: skip
    assumed.append(f"recompute={layout.recompute}, prompts of {prompt} tokens: recipes of {name}")
    return Question(
        spec=resolve_spec(catalog, model), machine=machine_of(catalog, run), stack=catalog.stack(habit.stack),
        recipe=recipe(run.precision), layout=layout, stage=step, catalog=catalog,
    ), tuple(assumed)  # fmt: skip


def machine_of(catalog: Catalog, run: PublishedRlRun) -> Machine:
    if run.system is not None:
        return machine_from_system(catalog, SYSTEMS.get(run.system, run.system))
    return machine_from_hardware(
        catalog, gpu=run.gpu or "", gpus_per_node=8, scale_up_bytes_per_s=None,
        network_bytes_per_s_per_gpu=NETWORK_BYTES_PER_S_PER_GPU,
    )  # fmt: skip


def _devices(run: PublishedRlRun, habit: RlFramework, frameworks: RlFrameworks, model: str) -> tuple[int, int]:
    """Devices of a generator of its own, 0 where they take turns, and of the trainer."""
    assert run.gpus is not None
    if run.policy_kind == "on policy":
        return 0, run.gpus
    if run.alloc is not None and ":" in run.alloc:
        rollout, trainer = (int(part) for part in run.alloc.split(":"))
        return rollout, trainer
    rollout = frameworks.generator_gpus.get(f"{model}, {run.policy}, {run.gpus}", int(run.gpus * habit.generator_frac))
    return rollout, run.gpus - rollout


def _layout(run: PublishedRlRun, habit: RlFramework, model: str, num_trainer: int) -> Layout:
    tp, cp, ep, pp = habit.train_tp, habit.cp, 1, habit.train_pp
    if run.train_tp_cp_ep_pp_vpp is not None:
        degrees = whole_numbers(run.train_tp_cp_ep_pp_vpp)
        tp, cp, ep, pp = degrees[0], degrees[1], degrees[2], degrees[-1]
    gbs = run.train_gbs or (run.ppo_mini_batch or 0) * (run.rollout_n or habit.samples)
    recompute: Any = habit.recompute_of.get(model, habit.recompute)
    return Layout(
        tp=tp, cp=cp, ep=ep, pp=pp, dp=num_trainer // (tp * cp * pp), mbs=1, gbs=gbs, zero=habit.zero, sp=tp > 1,
        recompute=recompute,
    )  # fmt: skip


def _sequences(run: PublishedRlRun, habit: RlFramework) -> tuple[int, int]:
    """Answers of a step, and of a prompt."""
    samples = run.rollout_n or habit.samples
    if run.gen_gbs is not None:
        return run.gen_gbs, min(samples, run.gen_gbs)
    return (run.train_batch_size or 0) * samples, samples


def _rollout_tp(run: PublishedRlRun, habit: RlFramework) -> int:
    return habit.rollout_tp if run.gen_tp_pp is None else whole_numbers(run.gen_tp_pp)[0]


def _rollout_pp(run: PublishedRlRun) -> int:
    return 1 if run.gen_tp_pp is None else whole_numbers(run.gen_tp_pp)[1]


def _lag(run: PublishedRlRun) -> int:
    if run.policy_kind != "off policy":
        return 0
    digits = "".join(c for c in run.policy or "" if c.isdigit())
    return int(digits) if digits else 1


def _staleness(run: PublishedRlRun) -> float:
    return 0.5 if run.staleness_threshold is None else run.staleness_threshold


def _chunks(run: PublishedRlRun, habit: RlFramework) -> int:
    if run.require_batches is None or run.train_batch_size is None or run.ppo_mini_batch is None:
        return habit.num_chunks
    return max(run.train_batch_size // (run.require_batches * run.ppo_mini_batch), 1)


def ordered_pairs_frac(rows: Sequence[tuple[RlRow, float]]) -> float | None:
    """Share of pairs of one experiment in different modes that a prediction orders as measured.

    Pairs share framework, version, model, machine, limit and engine; measured times more than 2 % apart count.
    """
    right: list[bool] = []
    for index, (row, predicted_s) in enumerate(rows):
        for other, other_s in rows[:index]:
            is_pair = row.experiment == other.experiment and row.run.policy_kind != other.run.policy_kind
            if is_pair and abs(row.step_s / other.step_s - 1.0) > DIFFERENT_FRAC:
                right.append((predicted_s > other_s) == (row.step_s > other.step_s))
    return sum(right) / len(right) if right else None


def rl_left_out_path() -> Path:
    return packaged_data() / "published" / "rl_left_out.json"


def read_rl_left_out() -> dict[str, Any]:
    """What the other models say of each model, as `benchmarks/fit_rl.py` stored it."""
    return read_document(rl_left_out_path(), "rl-left-out")
