"""How much memory a benchmark may take."""

from __future__ import annotations

import torch

from scalewright import units


def free_bytes(device: torch.device) -> float:
    """Memory that can be had, what PyTorch keeps for reuse included."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + kept)
    return float(available_bytes())


def available_bytes() -> int:
    """Memory of this host that can be had without swapping (proc(5), MemAvailable)."""
    with open("/proc/meminfo") as file:  # noqa: PTH123  one line of it is enough
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * units.KIB
    return 2**30
