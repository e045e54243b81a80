"""DeepSpeed with a Hugging Face model: ZeRO 0 to 3, started through a program of ours."""

from __future__ import annotations

from scalewright.engines.adapters.pieces import missing, program_job, refuse_modes, refuse_splits, with_settings
from scalewright.engines.files import deepspeed as file
from scalewright.engines.hf_config import hf_config
from scalewright.engines.types import EngineJob, EngineRequest


def refuse_what_it_lacks(request: EngineRequest) -> None:
    refuse_splits(file.NAME, request)
    refuse_modes(file.NAME, request, "offload")
    file.refuse_what_it_lacks(request)
    hf_config(request)


def render(request: EngineRequest) -> EngineJob:
    sections = file.config(request) | {"gradient_clipping": request.optimizer.clip_norm, "steps_per_print": 1}
    if request.mode.is_offload:
        sections["zero_force_ds_cpu_optimizer"] = False  # the program gives PyTorch's Adam
    return program_job(
        "deepspeed", "train_deepspeed", request,
        placeholders=missing(request, *(("load",) if request.task == "sft" else ()), "data"),
        deepspeed=with_settings(sections, request.settings),
    )  # fmt: skip
