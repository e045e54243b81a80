"""The device a rank runs on, the process group it joins, and the kernels that attention may use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, TCPStore
from torch.nn.attention import SDPBackend, sdpa_kernel

from scalewright.errors import ConfigError, EnvironmentFailedError
from scalewright.records.types import EnvName
from scalewright.run.world import World
from scalewright.workload.language_run import Attention
from scalewright.workload.run_options import DeviceKind

ISA_VARIABLE, SAFE_ISA = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE"
_TRIAL = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); print(float((a @ a).sum()))"
TRIAL_TIMEOUT_S = 120
GROUP_TIMEOUT = timedelta(minutes=30)


def choose_device(kind: DeviceKind, world: World) -> torch.device:
    """The GPU of this local rank, or the CPU. A requested GPU that is not there is an error."""
    if kind == "cpu" or (kind == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise EnvironmentFailedError(
            "device cuda: PyTorch sees no GPU here; choose --device cpu, or check the driver and PyTorch"
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
    """Join the process group of all ranks. A single rank opens no port."""
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    options: dict[str, Any] = {"device_id": device} if device.type == "cuda" else {}
    if world.world_size == 1:
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, **options)
        return
    try:
        meeting: dict[str, Any] = {"init_method": f"tcp://{world.master_addr}:{world.master_port}"}
        if world.launcher == "local":
            meeting = {"store": _local_store(world)}
        dist.init_process_group(
            backend,
            **meeting,
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


def _local_store(world: World) -> TCPStore:
    """Where ranks of our launcher meet. The first one listens at the socket that the launcher keeps for it."""
    handle = os.environ.get(EnvName.LISTENER, "") if world.is_first else ""
    listener: dict[str, Any] = {"master_listen_fd": int(handle)} if handle else {}
    return TCPStore(
        world.master_addr, world.master_port, world.world_size, world.is_first, timeout=GROUP_TIMEOUT, **listener
    )


def make_bf16_products_work(device: torch.device, precisions: Collection[str]) -> str | None:
    """Make 16-bit products work where a run uses them on a CPU. Some PyTorch builds choose instructions that a virtual
    CPU announces but does not have, and the process dies of SIGILL. A trial in another process shows that safely.

    Returns a note on what was changed; None where nothing was needed.
    """
    if device.type != "cpu" or not set(precisions) & {"bf16", "fp16"} or _trial({}) == 0:
        return None
    if os.environ.get(ISA_VARIABLE) is None and _trial({ISA_VARIABLE: SAFE_ISA}) == 0:
        os.environ[ISA_VARIABLE] = SAFE_ISA  # read by oneDNN at its first product, which has not happened yet
        return f"bf16 products end in an illegal instruction on this CPU: {ISA_VARIABLE}={SAFE_ISA} was set"
    raise EnvironmentFailedError(
        "bf16 products crash PyTorch on this CPU (illegal instruction): choose --precision fp32, or another machine"
    )


def _trial(extra: dict[str, str]) -> int:
    """-SIGILL if the product killed the process, else 0: the CPU is not the cause of another failure."""
    done = subprocess.run(
        [sys.executable, "-c", _TRIAL],
        env=os.environ | extra,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=TRIAL_TIMEOUT_S,
        check=False,
    )
    return done.returncode if done.returncode == -signal.SIGILL else 0


def allow_attention(kernel: Attention, device: torch.device) -> str:
    """Let SDPA use this attention kernel only; returns its name, for the record."""
    if device.type != "cuda":
        return "PyTorch's CPU kernel"
    chosen = _fastest(device) if kernel == "auto" else kernel
    torch.backends.cuda.enable_cudnn_sdp(chosen == "cudnn")
    torch.backends.cuda.enable_flash_sdp(chosen == "flash")
    torch.backends.cuda.enable_mem_efficient_sdp(
        chosen in ("efficient", "cudnn", "flash")
    )  # for head sizes that the chosen kernel lacks
    torch.backends.cuda.enable_math_sdp(chosen == "math")
    return chosen


@contextmanager
def attention_of_any_length(device: torch.device) -> Iterator[None]:
    """SDPA without cuDNN's kernel, which makes a plan for every new shape: 64 lengths of prompts took 8 s (H200)."""
    if device.type != "cuda":
        yield
        return
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH], set_priority=True):
        yield


def _fastest(device: torch.device) -> Attention:
    """cuDNN's kernel is the fastest on Hopper and later; on older GPUs and on AMD it is flash attention."""
    hopper = torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)
    return "cudnn" if hopper else "flash"
