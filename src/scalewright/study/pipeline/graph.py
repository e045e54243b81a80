"""A pipeline as a graph of jobs: a job for each stage, an item for each seed, and the gates of the stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scalewright.launch.graph.file import Gate, GraphJobTable, Relation
from scalewright.study.pipeline.gate import FILE, key_of_gate
from scalewright.study.pipeline.stages import StageRun
from scalewright.study.pipeline.tables import Pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class StageJob:
    """One seed of a stage that is still to run, as an item of its job."""

    run: StageRun
    repeat: int
    item: str


def pipeline_jobs(
    file: Pipeline, jobs: Mapping[str, Sequence[StageJob]], shapes: Mapping[str, tuple[int, int]], *,
    command: tuple[str, ...], width: int,
) -> dict[str, GraphJobTable]:  # fmt: skip
    """The jobs of a graph by the name of their stage. Each waits for the stage before it, and for those it needs."""
    stages = {stage.name: stage for stage in file.stages}
    tables: dict[str, GraphJobTable] = {}
    for name, members in jobs.items():
        nodes, ranks = shapes[name]
        gate, limit_s = stages[name].gate, stages[name].time
        table = GraphJobTable(
            command=command, items=tuple(member.item for member in members), width=width, nodes=nodes,
            gpus_per_node=ranks, after=_after(members, {up: jobs[up] for up in tables}), retries=file.retries,
            gate=None if gate is None else Gate(file=FILE, key=key_of_gate(gate), min=gate.by),
        )  # fmt: skip
        tables[name] = table if limit_s is None else table.model_copy(update={"time": limit_s})
    return tables


def _after(members: Sequence[StageJob], earlier: Mapping[str, Sequence[StageJob]]) -> dict[str, Relation]:
    """What a stage waits for: success of the stages it needs and of gated ones, and the end of the one before it."""
    after: dict[str, Relation] = {}
    for up, before in earlier.items():
        points = {job.run.point for job in before}
        if not any(points & {*member.run.needs, *member.run.gated_by} for member in members):
            continue
        is_pairwise = len(before) == len(members) and all(
            own.repeat == job.repeat and job.run.point in (*own.run.needs, *own.run.gated_by)
            for own, job in zip(members, before, strict=True)
        )
        after[up] = "corr" if is_pairwise and len(members) > 1 else "ok"
    if earlier:
        after.setdefault(list(earlier)[-1], "any")
    return after
