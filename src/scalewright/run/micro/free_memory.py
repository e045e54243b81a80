"""Free memory of a device or of the host."""

from __future__ import annotations

import torch

from scalewright import units


def free_bytes(device: torch.device) -> float:
    """Free memory, including what PyTorch keeps for reuse."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + kept)
    return float(available_bytes())


def available_bytes() -> int:
    """Host memory that is available without swapping (proc(5), MemAvailable)."""
    with open("/proc/meminfo") as file:  # noqa: PTH123  one line of it is enough
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * units.KIB
    return units.GIB
