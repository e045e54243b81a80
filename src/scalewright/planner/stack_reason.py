"""Why a prediction takes a software stack that nobody named."""

from __future__ import annotations

from scalewright.costs.machine import Machine
from scalewright.workload.layout import Layout


def auto_stack_reason(layout: Layout, machine: Machine, *, is_vision: bool = False) -> str:
    """Why `auto` takes the stack that `question.resolve_stack` gives."""
    if is_vision:
        return "auto: vision models run compiled"
    if machine.calibration_id:
        return "auto: what the calibration measured"
    if machine.accelerator.kind == "cpu":
        return "auto: CPUs run eager PyTorch"
    if layout.zero >= 3:
        return "auto: zero=3 shards the weights, which megatron-core does not"
    return "auto"
