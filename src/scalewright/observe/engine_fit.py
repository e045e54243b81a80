"""Factors of a training program's stack: what short runs of it show that stack and machine do not explain.

Host work and crossings of memory outside products are always fitted; a third factor, on the optimizer's crossings or on
attention, is the one under which the runs are more probable. Few short runs cannot say which of them is slow, so each
factor is held to what is usual for it. Each run is then predicted with factors that were fitted to the others only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np

from scalewright.catalog.calibration import Calibration, StackFactor, StackFactorName, Step
from scalewright.catalog.library import Catalog
from scalewright.catalog.types import Stack
from scalewright.costs.machine import Machine
from scalewright.costs.machine.calibrated import machine_from_calibration
from scalewright.costs.machine.stack_costs import EngineStack, StackFactors, shipped_factors
from scalewright.observe.collect import CollectedRun
from scalewright.observe.real_steps import median_interval, steady_runs
from scalewright.observe.residuals import FactorFit, FactorProblem, Floats, RealStep, bounded_factor, most_probable
from scalewright.planner.answer import answer
from scalewright.planner.question import ask
from scalewright.records import metric_names as names
from scalewright.records.run_directory import RunDirectory
from scalewright.workload import engine_run
from scalewright.workload.engine_run import EngineRun
from scalewright.workload.model import ModelSpec

CANDIDATES: tuple[StackFactorName, ...] = get_args(StackFactorName)
SETS: tuple[tuple[StackFactorName, ...], ...] = (
    (), ("host", "elementwise"), ("host", "elementwise", "update"), ("host", "elementwise", "attention"),
)  # fmt: skip
SPREADS: dict[StackFactorName, float] = {"host": 0.7, "elementwise": 0.6, "update": 0.8, "attention": 0.15}
"""How far from 1 a factor may be expected, as a deviation of its logarithm. Programs differ in their host code, in what
they fuse and in their optimizer; attention is one kernel, the same in most of them."""
KNOWN_SPREAD = 0.4
"""The same around the factor that the catalogue has of the program."""
NOISE_FRAC = 0.05
"""Error of a run that no factor can explain: our own trainer's are as far off on a calibrated GPU."""
FARTHEST = math.log(10.0)
MIN_RUNS = 2
"""Runs without which nothing can be left out of a fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedEngine:
    """Factors with the runs they come from."""

    factors: tuple[StackFactor, ...]
    steps: tuple[Step, ...]


def fit_engine(
    steps: Sequence[RealStep], *, engine: str, stack: str, machine_of: Callable[[int], Machine],
    usual: Mapping[StackFactorName, float] | None = None,
) -> FittedEngine:  # fmt: skip
    """The factors that these runs of an engine show, on the machine that so many ranks share.

    `usual` are the program's factors on other machines.
    """

    def predicted(factors: Mapping[StackFactorName, float]) -> Floats:
        return _predicted(steps, engine=engine, stack=stack, machine_of=machine_of, factors=factors)

    problem: FactorProblem[StackFactorName] = FactorProblem(
        measured=np.array([step.measured_s for step in steps]), candidates=CANDIDATES, predicted=predicted,
        spreads=SPREADS | dict.fromkeys(usual or {}, KNOWN_SPREAD), usual=usual or {}, noise_frac=NOISE_FRAC,
        farthest=FARTHEST,
    )  # fmt: skip
    chosen, fit = _fitted(problem)
    before, after = problem.predicted_s((), np.zeros(0)), problem.predicted_s(chosen, fit.logs)
    factors = tuple(
        _factor(name, float(log), float(dev)) for name, log, dev in zip(chosen, fit.logs, fit.deviations, strict=True)
    )
    rows = tuple(
        Step.model_validate({
            "run": s.run, "workload": "language", "label": s.label, "num_ranks": s.num_ranks, "num_steps": s.num_steps,
            "precision": s.precision, "size": s.size, "measured_s": s.measured_s, "low_s": s.low_s, "high_s": s.high_s,
            "before_s": float(before[i]), "after_s": float(after[i]), "left_out_s": _left_out_s(problem, i, before),
        })
        for i, s in enumerate(steps)
    )  # fmt: skip
    return FittedEngine(factors=factors, steps=rows)


def _fitted(problem: FactorProblem[StackFactorName]) -> tuple[tuple[StackFactorName, ...], FactorFit]:
    return most_probable(problem, SETS)


def usual_factors(stack: Stack, engine: str, *, device: str) -> dict[StackFactorName, float]:
    """A program's factors in the catalogue, which are of GPUs."""
    shipped = stack.engine_factors.get(engine)
    if shipped is None or device == "cpu":
        return {}
    factors = shipped_factors(shipped)
    return {"host": factors.host_factor, "elementwise": factors.elementwise_factor, "update": factors.update_factor}


def _factor(name: StackFactorName, log: float, deviation: float) -> StackFactor:
    return StackFactor(name=name, **bounded_factor(log, deviation, farthest=FARTHEST))


def _predicted(
    steps: Sequence[RealStep], *, engine: str, stack: str, machine_of: Callable[[int], Machine],
    factors: Mapping[StackFactorName, float],
) -> Floats:  # fmt: skip
    named = {f"{name}_factor": factor for name, factor in factors.items()}
    fitted = {engine: EngineStack(stack=stack, release="", factors=StackFactors(**named))}
    machines = {ranks: replace(machine_of(ranks), engine_stacks=fitted) for ranks in {step.num_ranks for step in steps}}
    return np.array([step.predicted_s(machines[step.num_ranks]) for step in steps])


def _left_out_s(problem: FactorProblem[StackFactorName], index: int, before: Floats) -> float:
    """A run as predicted from the others alone: their own choice of factors, too."""
    if len(problem.measured) < MIN_RUNS:
        return float(before[index])
    chosen, fit = _fitted(problem.without(index))
    return float(problem.predicted_s(chosen, fit.logs)[index])


def machines_of(catalog: Catalog, calibration: Calibration) -> Callable[[int], Machine]:
    """The calibrated machine by the number of ranks that share it, each made once."""
    made: dict[int, Machine] = {}

    def machine(num_ranks: int) -> Machine:
        if num_ranks not in made:
            made[num_ranks] = machine_from_calibration(catalog, calibration, num_ranks=num_ranks)
        return made[num_ranks]

    return machine


def read_engine_steps(catalog: Catalog, directories: Iterable[RunDirectory]) -> tuple[list[RealStep], list[str]]:
    """Steps of the runs of an engine that got far enough, and in words which did not."""
    runs, notes = steady_runs(directories)
    return [_real_step(catalog, run) for run in runs], notes


def _real_step(catalog: Catalog, run: CollectedRun) -> RealStep:
    config = engine_run.from_document(run.config, where=str(run.directory.config))
    times_s = run.series(names.STEP_TIME, slowest=True)
    low_s, high_s = median_interval(times_s)
    return RealStep(
        run=run.directory.path.name, workload="language", label=engine_label(config), num_ranks=config.num_ranks,
        num_steps=int(times_s.size), precision=config.precision, size=float(config.shape.hidden),
        measured_s=float(np.median(times_s)), low_s=low_s, high_s=high_s,
        predicted_s=lambda machine: engine_step_s(catalog, config, machine),
    )  # fmt: skip


def engine_step_s(catalog: Catalog, run: EngineRun, machine: Machine) -> float:
    """The predicted step of a run with the engine's stack as it is fitted on the machine."""
    spec = ModelSpec(id=run.model_id, name=run.model_id, shape=run.shape)
    question = ask(
        catalog, model=spec, system=machine, layout=run.layout, precision=run.precision, stack=run.engine
    )  # fmt: skip
    return float(answer(question).time_s)


def engine_label(run: EngineRun) -> str:
    shape = run.shape
    return f"{shape.layers} x {shape.hidden}, {shape.seq} tokens, batch {run.layout.mbs}, {run.precision}"
