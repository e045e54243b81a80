"""PyTorch FSDP2: the YAML file of `accelerate launch`, which TRL, Axolotl and the Transformers trainer take as well."""

from __future__ import annotations

import json
from typing import Any

from scalewright.engines.types import Emitted, EngineRequest, refusal

NAME = "FSDP"
VERSION = "accelerate 1.15.0"
FILENAME = "accelerate_fsdp.yaml"
PRECISIONS = {"fp32": "no", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}


def emit(request: EngineRequest) -> Emitted:
    refuse_what_it_lacks(request)
    head = [f"# {line}" for line in (f"{VERSION} configuration for FSDP2.", *request.header)]
    text = "\n".join([*head, *yaml_lines(config(request))]) + "\n"
    return Emitted(framework="fsdp", version=VERSION, filename=FILENAME, text=text, notes=_notes(request))


def refuse_what_it_lacks(request: EngineRequest) -> None:
    layout, recipe = request.layout, request.recipe
    if layout.zero < 2:
        why = "it shards gradients and optimizer state at least"
        raise refusal(NAME, f"zero={layout.zero}", why, "use zero=2 or zero=3, or --emit deepspeed")
    if int(layout.pp) > 1:
        raise refusal(NAME, f"pp={layout.pp}", "it has no pipeline", "use pp=1, or --emit torchtitan")
    if int(layout.ep) > 1:
        why = "it gathers experts like every other weight"
        raise refusal(NAME, f"ep={layout.ep}", why, "use ep=1, or --emit torchtitan")
    if layout.sp:
        why = "tensor parallelism follows the model's own plan, which keeps whole sequences"
        raise refusal(NAME, "sp=1", why, "use sp=0, or --emit torchtitan")
    if layout.recompute not in ("none", "full"):
        why = "accelerate checkpoints whole layers"
        raise refusal(NAME, f"recompute={layout.recompute}", why, "use recompute=none or full, or --emit torchtitan")
    if request.mode.is_offload:
        why = "its offload takes weights and gradients to the host as well"
        raise refusal(NAME, "optimizer offload", why, "use mode full, or --emit deepspeed")
    if recipe.name not in PRECISIONS:
        raise refusal(NAME, f"precision {recipe.name}", "accelerate has no name for it", f"use {', '.join(PRECISIONS)}")


def config(request: EngineRequest) -> dict[str, Any]:
    layout = request.layout
    sections: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "num_machines": request.num_nodes,
        "num_processes": request.num_gpus,
        "mixed_precision": PRECISIONS[request.recipe.name],
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": layout.zero == 3,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_activation_checkpointing": layout.recompute == "full",
            "fsdp_offload_params": False,
            "fsdp_cpu_ram_efficient_loading": True,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        },
    }
    if int(layout.tp) > 1 or int(layout.cp) > 1:
        sections["parallelism_config"] = {
            "parallelism_config_dp_shard_size": int(layout.dp),
            "parallelism_config_tp_size": int(layout.tp),
            "parallelism_config_cp_size": int(layout.cp),
        }
    if request.recipe.name == "fp8":
        sections["fp8_config"] = {"fp8_backend": "ao"}
    return sections


def yaml_lines(keys: dict[str, Any], indent: str = "") -> list[str]:
    """YAML of nested mappings; JSON's scalars are YAML's."""
    lines = []
    for key, value in keys.items():
        if isinstance(value, dict):
            lines += [f"{indent}{key}:", *yaml_lines(value, indent + "  ")]
        else:
            lines.append(f"{indent}{key}: {json.dumps(value)}")
    return lines


def _notes(request: EngineRequest) -> tuple[str, ...]:
    layout, mode = request.layout, request.mode
    adapters = (f"adapters of rank {mode.lora_rank} are added to the model by the training script",)
    return (
        f"accelerate launch --config_file {FILENAME} --machine_rank RANK --main_process_ip HOST "
        "--main_process_port PORT train.py",
        f"batch sizes belong to the trainer: per_device_train_batch_size={layout.mbs}, "
        f"gradient_accumulation_steps={request.num_micro_batches}",
        f"sequences of {request.seq_len} tokens are the trainer's as well",
        *(adapters if mode.is_lora else ()),
    )
