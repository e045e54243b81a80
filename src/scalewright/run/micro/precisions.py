"""Which of the requested precisions a device has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch

from scalewright.errors import ConfigError
from scalewright.run.language.precision import FP8_CAPABILITY
from scalewright.run.micro.session import BenchSession

Name = TypeVar("Name", bound=str)


def available(precisions: Sequence[Name], session: BenchSession, *, skips_missing: bool) -> list[Name]:
    """Precisions in which the session's device multiplies. Others are noted and left out, or refused."""
    supported: list[Name] = []
    for precision in precisions:
        lack = _lacks(precision, session.device)
        if lack and not skips_missing:
            raise ConfigError(f"precision {precision}: {lack}; choose another with --precision")
        if lack:
            session.note(f"{precision} was left out: {lack}")
        else:
            supported.append(precision)
    if not supported:
        raise ConfigError("this device has none of the requested precisions: choose fp32 or bf16 with --precision")
    return supported


def _lacks(precision: str, device: torch.device) -> str:
    if device.type == "cpu":
        return "only GPUs have it" if precision in ("tf32", "fp8") else ""
    capability = torch.cuda.get_device_capability(device)
    name = torch.cuda.get_device_name(device)
    if torch.version.hip is None:
        if precision == "fp8" and capability < FP8_CAPABILITY:
            return f"{name} has no 8-bit products"
        if precision in ("tf32", "bf16") and capability < (8, 0):
            return f"{name} has no {precision} products"
        return ""
    if precision == "fp8" and capability < (9, 4):  # gfx942, the first that multiplies 8-bit floats
        return f"{name} has no 8-bit products"
    return "PyTorch has no tf32 on AMD" if precision == "tf32" else ""
