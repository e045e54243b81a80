"""Peak memory of a rank so far."""

from __future__ import annotations

import resource

import torch

from scalewright import units


def peak_memory_bytes(device: torch.device) -> float:
    """Allocated on a GPU; resident in this process on a CPU."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * units.KIB
