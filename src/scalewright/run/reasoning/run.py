"""Run one stage of reasoning-model training on this rank."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist

from scalewright.records import metric_names as names
from scalewright.records.documents import read_document
from scalewright.records.types import ExitCode
from scalewright.run.device import allow_attention, choose_device, join_group, make_bf16_products_work
from scalewright.run.language.mesh_position import check_world_size
from scalewright.run.rank_context import RankContext
from scalewright.run.reasoning.training_stage import TrainingStage
from scalewright.workload.reasoning import stage_run
from scalewright.workload.reasoning.stage_run import DistillSettings, ReasonRun

SMALL_PARAMS = 10_000_000
"""On CPUs, a model below this many parameters runs on one thread: its products are too small to share."""


def run(rank: RankContext) -> ExitCode:
    """Do the stage; 75 when stopped by a signal, with all that is needed to resume."""
    where = rank.directory.config
    config = stage_run.from_document(read_document(where, stage_run.KIND), where=str(where))
    check_world_size(config.layout, rank.world.world_size)
    device = choose_device(config.device, rank.world)
    if device.type == "cpu" and config.spec.num_params < SMALL_PARAMS:
        torch.set_num_threads(1)
    note = make_bf16_products_work(device, [_products_of(config.precision), _products_of(config.engine.precision)])
    kernel = allow_attention("auto", device)
    detail = f"attention: {kernel}; torch {torch.__version__}{f'; {note}' if note else ''}"
    rank.metrics.event(step=-1, name=names.EVENT_KERNELS, detail=detail)
    join_group(rank.world, device)
    try:
        return run_stage(config, rank, device)
    finally:
        dist.destroy_process_group()


def _products_of(precision: str) -> str:
    """fp8 weights are multiplied as bf16."""
    return "bf16" if precision == "fp8" else precision


def run_stage(config: ReasonRun, rank: RankContext, device: torch.device) -> ExitCode:
    """Do the stage. The process group must exist."""
    if config.stage == "evaluate":
        from scalewright.run.reasoning.evaluate import run_evaluation
        from scalewright.run.reasoning.session import StageSession

        return run_evaluation(StageSession(config, rank, device))
    if config.stage == "generate":
        from scalewright.run.reasoning.sample import SampleStage
        from scalewright.run.reasoning.session import StageSession

        return SampleStage(StageSession(config, rank, device)).run()
    with contextlib.closing(_training_stage(config)(config, rank, device)) as stage:
        return stage.run()


def _training_stage(config: ReasonRun) -> type[TrainingStage]:
    if config.stage == "sft" or (isinstance(config.settings, DistillSettings) and config.settings.mode == "data"):
        from scalewright.run.reasoning.sft import SftStage

        return SftStage
    if config.roles.are_separate:
        from scalewright.run.hybrid.trainer_role import SeparateGrpoStage

        return SeparateGrpoStage
    if config.stage == "grpo":
        from scalewright.run.reasoning.grpo import GrpoStage

        return GrpoStage
    from scalewright.run.reasoning.distill import OnPolicyDistillStage

    return OnPolicyDistillStage
