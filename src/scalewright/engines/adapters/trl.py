"""TRL: supervised fine-tuning and GRPO, started through a program of ours."""

from __future__ import annotations

from typing import Any

from scalewright.engines.adapters.huggingface import refuse_trainer, trainer_section
from scalewright.engines.adapters.pieces import missing, program_job, with_settings
from scalewright.engines.adapters.verl import refuse_rollout
from scalewright.engines.types import EngineJob, EngineRequest, refusal

NAME = "TRL"
OWN = "grpo."
"""Keys of `--set` that begin with it are those of the GRPO step: grpo.num_generations, grpo.beta."""


def refuse_what_it_lacks(request: EngineRequest) -> None:
    if request.task not in ("sft", "grpo"):
        why = "it fine-tunes and reinforces models that exist"
        raise refusal(NAME, f"task {request.task}", why, "use --task sft or grpo, or --engine huggingface")
    refuse_trainer(NAME, request)
    if request.task == "grpo":
        refuse_rollout(NAME, request)


def rollout_section(request: EngineRequest) -> dict[str, Any]:
    """Arguments of GRPOConfig that the plan gives. A split generator is vLLM's, on the devices of the trainer."""
    plan = request.rollout
    if plan is None:
        return {}
    section: dict[str, Any] = {"num_generations": plan.num_samples, "max_completion": plan.longest_len}
    if plan.tp > 1 and request.device == "cuda":
        section |= {"vllm_tensor_parallel_size": plan.tp}
    return section


def render(request: EngineRequest) -> EngineJob:
    own = {key.removeprefix(OWN): text for key, text in request.settings.items() if key.startswith(OWN)}
    rest = {key: text for key, text in request.settings.items() if not key.startswith(OWN)}
    needed = () if request.is_synthetic else ("load",)
    return program_job(
        "trl", "train_trl", request, placeholders=missing(request, *needed, "text", "tokenizer"),
        trainer=with_settings(trainer_section(request), rest), grpo=with_settings(rollout_section(request), own),
    )  # fmt: skip
