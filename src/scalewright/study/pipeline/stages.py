"""The stages of a pipeline as points of a study. A stage that starts from another one names that stage's point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard

from scalewright.records.documents import digest
from scalewright.study.expressions import Value, shown
from scalewright.study.matrix import Combination
from scalewright.study.pipeline.setting import PipelineSetting, SizedPipeline, sized
from scalewright.study.pipeline.tables import OPTIONS, Pipeline, PipelineStage, StageGate

KIND = "reason"
POINT = "point:"
"""Start of an option that names the run directory of another point. The executor puts the folder in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRun:
    """One seed of one stage."""

    name: str
    seed: int
    point: str
    needs: tuple[str, ...]
    """Points whose files it reads."""
    gated_by: tuple[str, ...]
    """Earlier points whose gates it waits for: those of its seed, and those that it needs."""
    gate: StageGate | None = None
    over: str = ""
    """Point that the gate compares with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPipeline:
    """The stages of a pipeline in the order in which they run, one for each point of the study."""

    setting: PipelineSetting
    sentence: str
    """What a budget made smaller; empty without one."""
    runs: tuple[StageRun, ...]

    def run_of(self, point: str) -> StageRun:
        return next(run for run in self.runs if run.point == point)

    def runs_of(self, name: str) -> list[StageRun]:
        return [run for run in self.runs if run.name == name]

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(run.name for run in self.runs))


def expand_pipeline(pipeline: Pipeline, setting: PipelineSetting) -> tuple[PlannedPipeline, list[Combination]]:
    """Every seed of every stage, in order, with the options of its point."""
    sizes = sized(pipeline, setting)
    has_seeds = any(len(own) > 1 for own in sizes.seeds.values())
    runs: list[StageRun] = []
    combinations: list[Combination] = []
    for stage in sizes.stages:
        for seed in sizes.seeds[stage.name]:
            options = _options(pipeline, sizes, stage, seed, runs)
            run = _run(stage, seed, digest({"kind": KIND, **options}), runs)
            labels = {"stage": stage.name} | ({"seed": shown(seed)} if has_seeds else {})
            values = {**options, "stage": stage.name, "seed": seed}
            runs.append(run)
            combinations.append(Combination(labels=labels, values=values, options=options, kind=KIND))
    return PlannedPipeline(setting=setting, sentence=sizes.sentence, runs=tuple(runs)), combinations


def _options(
    pipeline: Pipeline, sizes: SizedPipeline, stage: PipelineStage, seed: int, runs: list[StageRun]
) -> dict[str, Value]:
    references = {OPTIONS[key]: f"{POINT}{_matching(runs, name, seed).point}" for key, name in stage.needs}
    return {"stage": stage.stage, "seed": seed, **sizes.options(pipeline, stage), **references}


def _run(stage: PipelineStage, seed: int, point: str, runs: list[StageRun]) -> StageRun:
    earlier = dict.fromkeys(run.name for run in runs if run.gate is not None and run.name != stage.name)
    gated_by = tuple(_matching(runs, name, seed).point for name in earlier)
    over = _matching(runs, stage.gate.over, seed).point if stage.gate is not None and stage.gate.over else ""
    needs = dict.fromkeys(_matching(runs, name, seed).point for _, name in stage.needs)
    return StageRun(
        name=stage.name, seed=seed, point=point, needs=tuple(needs), gated_by=gated_by, gate=stage.gate, over=over
    )  # fmt: skip


def _matching(runs: list[StageRun], name: str, seed: int) -> StageRun:
    """The run of a stage with the same seed, or else with its first seed."""
    of_stage = [run for run in runs if run.name == name]
    return next((run for run in of_stage if run.seed == seed), of_stage[0])


def with_folders(options: Mapping[str, Value], folders: Mapping[str, str]) -> dict[str, Value]:
    """Options with the run directory in place of every point that they name."""
    return {name: folders[value[len(POINT) :]] if is_reference(value) else value for name, value in options.items()}


def references(options: Mapping[str, Value]) -> list[str]:
    """Points that the options name."""
    return [value[len(POINT) :] for value in options.values() if is_reference(value)]


def is_reference(value: Value) -> TypeGuard[str]:
    return isinstance(value, str) and value.startswith(POINT)
