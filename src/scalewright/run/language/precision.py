"""Which numbers a run computes with, and whether this device can."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from scalewright.errors import ConfigError
from scalewright.run.language.float8 import Float8Linear
from scalewright.workload.language_run import LanguageRun
from scalewright.workload.run_options import CompileMode

FP8_CAPABILITY = (8, 9)
"""Ada and Hopper are the first NVIDIA generations that multiply 8-bit floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Types of a run. Weights shorter than 32 bit have a master copy in fp32, which the optimizer updates."""

    compute: torch.dtype
    weights: torch.dtype
    """Of the weights a rank holds; FSDP's shards are fp32 and are cast as they are gathered."""
    linear: type[nn.Linear]
    freezes_base: bool = False
    """Only adapters of the linear layers are trained."""
    scales_loss: bool
    """fp16 has too few exponents for small gradients: the loss is multiplied before the backward pass."""

    @staticmethod
    def compile_options(mode: CompileMode) -> dict[str, Any]:
        """Products always go to the vendor's library, which beat every generated one on an H200; max-autotune searches
        the element-wise kernels, which takes minutes and gains about half a percent there."""
        if mode == "max-autotune":
            return {"options": {"max_autotune_pointwise": True, "coordinate_descent_tuning": True}}
        return {}


def numbers(run: LanguageRun, device: torch.device) -> Numbers:
    compute = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.bfloat16}.get(run.precision, torch.float32)
    if run.precision in ("tf32", "fp8") and device.type != "cuda":
        raise ConfigError(
            f"precision {run.precision} needs a GPU that has it, and this runs on the CPU: choose fp32 or bf16"
        )
    if run.precision == "fp8":
        if torch.cuda.get_device_capability(device) < FP8_CAPABILITY:
            name = torch.cuda.get_device_name(device)
            raise ConfigError(f"precision fp8: {name} has no 8-bit products; choose bf16")
        if int(run.layout.tp) > 1:
            raise ConfigError(
                f"precision fp8 with tp={run.layout.tp}: 8-bit products are not split; choose tp=1 or bf16"
            )
    sharded = run.layout.zero >= 1 and int(run.layout.dp) * int(run.layout.cp) > 1
    torch.set_float32_matmul_precision("high" if run.precision == "tf32" else "highest")
    return Numbers(
        compute=compute,
        weights=torch.float32 if sharded else compute,
        linear=Float8Linear if run.precision == "fp8" else nn.Linear,
        scales_loss=run.precision == "fp16",
    )
