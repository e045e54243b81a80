"""The device a rank runs on, the process group it joins, and the kernels that attention may use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from scalewright.errors import ConfigError, EnvironmentFailedError
from scalewright.records.types import EnvName
from scalewright.run.world import World
from scalewright.workload.language_run import Attention, DeviceKind

ISA_VARIABLE, SAFE_ISA = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE"
_PROBE = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); print(float((a @ a).sum()))"
PROBE_TIMEOUT_S = 120
GROUP_TIMEOUT = timedelta(minutes=30)


def choose_device(kind: DeviceKind, world: World) -> torch.device:
    """The GPU of this local rank, or the CPU; a GPU that was asked for and is not there is an error."""
    if kind == "cpu" or (kind == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise EnvironmentFailedError(
            "device cuda was asked for, but PyTorch sees no GPU here: choose --device cpu, or check driver and PyTorch"
        )
    index = int(os.environ.get(EnvName.DEVICE, world.local_rank))
    if index >= torch.cuda.device_count():
        raise ConfigError(
            f"local rank {world.local_rank} has no GPU: {world.local_world_size} ranks were started on a node with "
            f"{torch.cuda.device_count()}; start one rank per GPU"
        )
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


def join_group(world: World, device: torch.device) -> None:
    """Join the other ranks; alone, no port is opened."""
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    options: dict[str, Any] = {"device_id": device} if device.type == "cuda" else {}
    if world.world_size == 1:
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, **options)
        return
    try:
        dist.init_process_group(
            backend,
            init_method=f"tcp://{world.master_addr}:{world.master_port}",
            rank=world.rank,
            world_size=world.world_size,
            timeout=GROUP_TIMEOUT,
            **options,
        )
    except (RuntimeError, ValueError) as error:
        raise EnvironmentFailedError(
            f"rank {world.rank} could not join {world.world_size} ranks at {world.master_addr}:{world.master_port}: "
            f"{str(error).splitlines()[0]}; check the address and that every rank was started"
        ) from error


def settle_cpu_products() -> str | None:
    """Make bf16 products work on this CPU. Some PyTorch builds choose instructions that a virtual CPU announces but
    does not have, and die of SIGILL; a trial in another process shows it before this one is lost.

    Returns what was done, for the record; None where nothing was needed.
    """
    if _probe({}) == 0:
        return None
    if os.environ.get(ISA_VARIABLE) is None and _probe({ISA_VARIABLE: SAFE_ISA}) == 0:
        os.environ[ISA_VARIABLE] = SAFE_ISA  # read by oneDNN at its first product, which has not happened yet
        return f"bf16 products end in an illegal instruction on this CPU: {ISA_VARIABLE}={SAFE_ISA} was set"
    raise EnvironmentFailedError(
        "bf16 products crash PyTorch on this CPU (illegal instruction): choose --precision fp32, or another machine"
    )


def _probe(extra: dict[str, str]) -> int:
    """0: the product came out; -SIGILL: it killed the process. Any other failure is not the CPU's."""
    done = subprocess.run(
        [sys.executable, "-c", _PROBE],
        env=os.environ | extra,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=PROBE_TIMEOUT_S,
        check=False,
    )
    return done.returncode if done.returncode == -signal.SIGILL else 0


def allow_attention(kernel: Attention, device: torch.device) -> str:
    """Let SDPA choose among these kernels only; returns which, for the record."""
    if device.type != "cuda":
        return "PyTorch's CPU kernel"
    wanted = _fastest(device) if kernel == "auto" else kernel
    torch.backends.cuda.enable_cudnn_sdp(wanted == "cudnn")
    torch.backends.cuda.enable_flash_sdp(wanted == "flash")
    torch.backends.cuda.enable_mem_efficient_sdp(wanted in ("efficient", "cudnn", "flash"))  # for head sizes they lack
    torch.backends.cuda.enable_math_sdp(wanted == "math")
    return wanted


def _fastest(device: torch.device) -> Attention:
    """cuDNN's kernel is made for Hopper and later; before, and on AMD, it is flash attention."""
    hopper = torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)
    return "cudnn" if hopper else "flash"
