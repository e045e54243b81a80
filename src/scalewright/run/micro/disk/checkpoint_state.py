"""State to save: tensors split over all ranks as in sharded training, whose content can be computed again."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from scalewright import units
from scalewright.errors import ConfigError
from scalewright.run.world import World
from scalewright.workload.storage_run import CheckpointRun

TENSOR_BYTES = 2**26
"""Of one tensor over all ranks: about a layer's weights."""
WIDTH = 1024
STATE_COPIES = 2
"""Of the state in host memory while it is saved beside training: itself (on a CPU) and the copy."""


def make_state(size_bytes: int, mesh: DeviceMesh, device: torch.device) -> dict[str, Tensor]:
    """Tensors split over all ranks, as in sharded training, whose content can be computed again."""
    num_ranks = mesh.size()
    num_tensors = max(1, size_bytes // TENSOR_BYTES)
    rows = max(1, size_bytes // num_tensors // num_ranks // (4 * WIDTH))
    tensors: dict[str, Tensor] = {}
    for number in range(num_tensors):
        name = f"layers.{number}.weight"
        own = state_values(name, rows, mesh.get_rank(), device)
        tensors[name] = DTensor.from_local(own, mesh, [Shard(0)], run_check=False)
    return tensors


def state_values(name: str, num_rows: int, rank: int, device: torch.device) -> Tensor:
    """Random numbers from a seed of name and rank. A disk cannot compress them."""
    number = int(name.split(".")[1])
    generator = torch.Generator(device=device).manual_seed(number * 100_003 + rank)
    return torch.randn((num_rows, WIDTH), generator=generator, device=device)


def is_state(name: str, tensor: Tensor, rank: int) -> bool:
    own = local(tensor)
    return torch.equal(own, state_values(name, own.shape[0], rank, own.device))


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def check_memory(config: CheckpointRun, device: torch.device, world: World) -> None:
    """Called before anything is allocated: a process that the kernel kills for lack of memory cannot report why."""
    per_rank = config.sizes_bytes[-1] / world.world_size
    copies = STATE_COPIES if device.type == "cpu" else 1
    checks: list[tuple[str, float, Callable[[], int]]] = [
        ("host", copies * per_rank * world.local_world_size, lambda: psutil.virtual_memory().available)
    ]
    if device.type == "cuda":
        checks.append(("device", per_rank, lambda: torch.cuda.mem_get_info(device)[0]))
    for where, needed, available in checks:
        free = available()
        if needed > 0.9 * free:
            needed_text, free_text = (units.format(n, units.BYTES) for n in (needed, free))
            raise ConfigError(
                f"a state of {units.format(config.sizes_bytes[-1], units.BYTES)} takes {needed_text} of {where} memory "
                f"and {free_text} is free: give smaller --sizes, or more ranks on other nodes"
            )
