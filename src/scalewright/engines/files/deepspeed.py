"""DeepSpeed: its JSON file; what belongs to the training script is in the notes, as Megatron-DeepSpeed's arguments."""

from __future__ import annotations

import json
import shlex
from typing import Any

from scalewright.engines.types import Emitted, EngineRequest, refusal

NAME = "DeepSpeed"
VERSION = "0.19.8"
FILENAME = "ds_config.json"
SCRIPT_ARGUMENTS = "arguments of Megatron-DeepSpeed's pretrain_gpt.py (commit 207b2d5a): "
PRECISIONS = ("fp32", "fp16", "bf16", "bf16-lean", "bf16-pure")


def emit(request: EngineRequest) -> Emitted:
    refuse_what_it_lacks(request)
    text = json.dumps(config(request), indent=2) + "\n"
    return Emitted(framework="deepspeed", version=VERSION, filename=FILENAME, text=text, notes=_notes(request))


def needs_script(request: EngineRequest) -> bool:
    """A pipeline is built, and a sequence split, by the training script; the JSON has no key for either."""
    return int(request.layout.pp) > 1 or request.layout.sp


def refuse_what_it_lacks(request: EngineRequest) -> None:
    layout, recipe = request.layout, request.recipe
    if recipe.name not in PRECISIONS:
        raise refusal(NAME, f"precision {recipe.name}", "it trains in 16 or 32 bit", f"use {', '.join(PRECISIONS)}")
    if recipe.name in ("bf16", "bf16-pure") and layout.zero == 0:
        why = "without ZeRO it keeps 16-bit gradients and an fp32 master copy"
        raise refusal(NAME, f"precision {recipe.name} with zero=0", why, "use zero=1, or --precision bf16-lean")
    if int(layout.cp) > 1:
        why = "its sequence parallelism trades heads, not blocks of keys"
        raise refusal(NAME, f"cp={layout.cp}", why, "use cp=1, or --emit megatron")
    if request.mode.is_offload and layout.zero == 0:
        raise refusal(NAME, "optimizer offload with zero=0", "ZeRO moves the optimizer", "use zero=1, 2 or 3")
    if int(layout.vpp) > 1:
        raise refusal(NAME, f"vpp={layout.vpp}", "its pipeline is not interleaved", "use vpp=1, or --emit megatron")
    if layout.recompute not in ("none", "full"):
        why = "it checkpoints whole layers"
        raise refusal(NAME, f"recompute={layout.recompute}", why, "use recompute=none or full, or --emit megatron")
    if int(layout.pp) > 1 and layout.zero >= 2:
        why = "its pipeline accumulates whole gradients"
        raise refusal(NAME, f"zero={layout.zero} with pp={layout.pp}", why, "use zero=1, or pp=1")
    if request.shape.layers % int(layout.pp):
        why = f"Megatron-DeepSpeed deals {request.shape.layers} layers to stages in its own way"
        raise refusal(NAME, f"pp={layout.pp}", why, "use a divisor of the layers, or --emit megatron")
    if request.shape.moe is not None and needs_script(request):
        why = "it spreads experts of models without pipeline and sequence parallelism"
        raise refusal(NAME, f"pp={layout.pp},sp={int(layout.sp)} with experts", why, "use pp=1,sp=0 or --emit megatron")
    if request.shape.moe is not None and int(layout.tp) > 1 and int(layout.ep) == 1:
        why = "tensor parallelism beside experts needs expert parallelism"
        raise refusal(NAME, f"tp={layout.tp},ep=1 with experts", why, "use ep above 1, or tp=1")


def config(request: EngineRequest) -> dict[str, Any]:
    layout = request.layout
    sections: dict[str, Any] = {
        "train_batch_size": int(layout.gbs),
        "train_micro_batch_size_per_gpu": int(layout.mbs),
        "gradient_accumulation_steps": request.num_micro_batches,
        "zero_optimization": zero_section(request),
        "bf16": bf16_section(request.recipe.name),
        "fp16": {"enabled": request.recipe.name == "fp16"},
        "gradient_clipping": 1.0,
    }
    if request.recipe.name == "bf16":
        sections["data_types"] = {"grad_accum_dtype": "fp32"}
    if layout.recompute == "full":
        sections["activation_checkpointing"] = {"number_checkpoints": request.shape.layers}
    if int(layout.tp) > 1 and not needs_script(request):
        sections["tensor_parallel"] = {"autotp_size": int(layout.tp)}
    if request.shape.moe is not None and int(layout.ep) > 1:
        sections["expert_parallel"] = {"enabled": True, "autoep_size": int(layout.ep)}
    return sections


def bf16_section(precision: str) -> dict[str, bool]:
    if precision == "bf16-pure":
        return {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    return {"enabled": precision in ("bf16", "bf16-lean")}


def zero_section(request: EngineRequest) -> dict[str, Any]:
    section: dict[str, Any] = {"stage": request.layout.zero}
    if request.layout.zero >= 2:
        section["overlap_comm"] = True
    if request.mode.is_offload:
        section["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return section


def script_arguments(request: EngineRequest) -> list[str]:
    layout = request.layout
    arguments = ["--deepspeed", "--deepspeed_config", FILENAME, "--zero-stage", str(layout.zero)]
    arguments += ["--tensor-model-parallel-size", str(layout.tp), "--pipeline-model-parallel-size", str(layout.pp)]
    arguments += ["--micro-batch-size", str(layout.mbs), "--global-batch-size", str(layout.gbs)]
    arguments += ["--sequence-parallel"] if layout.sp else []
    arguments += ["--no-pipeline-parallel"] if int(layout.pp) == 1 else []
    if layout.recompute == "full":
        arguments += ["--checkpoint-activations", "--deepspeed-activation-checkpointing"]
    return arguments


def _notes(request: EngineRequest) -> tuple[str, ...]:
    layout = request.layout
    notes = [
        f"deepspeed --num_nodes {request.num_nodes} --num_gpus {request.num_local_gpus} train.py "
        f"--deepspeed_config {FILENAME}",
        "the model, data, optimizer and learning rate come from the training script",
    ]
    if needs_script(request):
        notes.append(SCRIPT_ARGUMENTS + shlex.join(script_arguments(request)))
    elif layout.recompute == "full":
        notes.append("turn on checkpointing of every layer in the model; the JSON only says how it is done")
    if request.mode.is_lora:
        notes.append(f"adapters of rank {request.mode.lora_rank} are added to the model by the training script")
    return tuple(notes)
