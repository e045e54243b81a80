"""Hugging Face Trainer: plain data parallelism, or FSDP2 for ZeRO 2 and 3, started through a program of ours."""

from __future__ import annotations

from typing import Any

from scalewright.engines.adapters.pieces import missing, program_job, refuse_modes, refuse_splits, with_settings
from scalewright.engines.hf_config import hf_config
from scalewright.engines.types import EngineJob, EngineRequest, refusal

NAME = "Hugging Face Trainer"
PRECISIONS = ("fp32", "fp16", "bf16")


def refuse_what_it_lacks(request: EngineRequest) -> None:
    refuse_trainer(NAME, request)


def refuse_trainer(name: str, request: EngineRequest) -> None:
    """What a trainer of the library cannot be told."""
    layout = request.layout
    refuse_splits(name, request)
    refuse_modes(name, request)
    if layout.zero == 1:
        why = "it replicates everything, or shards gradients too"
        raise refusal(name, "zero=1", why, "use zero=2 or 3, zero=0, or --engine deepspeed")
    if layout.recompute not in ("none", "full"):
        raise refusal(
            name, f"recompute={layout.recompute}", "it checkpoints whole layers", "use recompute=none or full"
        )
    if request.recipe.name not in PRECISIONS:
        raise refusal(name, f"precision {request.recipe.name}", "its trainer mixes 16 and 32 bit",
                      f"use {', '.join(PRECISIONS)}")  # fmt: skip
    if request.device == "cpu" and layout.zero:
        raise refusal(name, f"zero={layout.zero} on a CPU", "its FSDP needs a device", "use zero=0")
    hf_config(request)


def trainer_section(request: EngineRequest) -> dict[str, Any]:
    """Arguments of TrainingArguments beyond those that follow from the run's file."""
    layout = request.layout
    section: dict[str, Any] = {"fp16": request.recipe.name == "fp16"}
    if layout.zero >= 2:
        section["fsdp"] = True
        section["fsdp_config"] = {
            "version": 2,
            "reshard_after_forward": layout.zero == 3,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "state_dict_type": "SHARDED_STATE_DICT",
            "activation_checkpointing": layout.recompute == "full",
        }
        section["gradient_checkpointing"] = False  # FSDP wraps the layers itself
    return section


def render(request: EngineRequest) -> EngineJob:
    return program_job(
        "huggingface", "train_huggingface", request,
        placeholders=missing(request, *(("load",) if request.task == "sft" else ()), "data"),
        trainer=with_settings(trainer_section(request), request.settings),
    )  # fmt: skip
