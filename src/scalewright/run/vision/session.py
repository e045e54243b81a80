"""VisionSession: one rank's network, optimizer and step. Runs, benchmarks and tests build it with one function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from scalewright.errors import ConfigError
from scalewright.run.graphs import GraphedStep
from scalewright.run.vision.model import ResNet, build
from scalewright.run.vision.optimizer import Momentum
from scalewright.run.vision.step import MeanLoss, VisionStep, VisionStepResult
from scalewright.workload.vision_run import VisionRun


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSession:
    run: VisionRun
    device: torch.device
    model: ResNet
    optimizer: Momentum
    train_step: VisionStep
    step: Callable[[Tensor, Tensor], VisionStepResult]
    """What to call: the step, or its replay as a graph."""

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint holds: weights, momenta, and the norms' running statistics of the first rank."""
        return self.optimizer.state() | {f"running.{name}": value for name, value in self._running().items()}

    def take_first_ranks_statistics(self) -> None:
        """Each rank's norms average over its own images. Validation scores the first rank's network, on every rank."""
        if dist.get_world_size() == 1:
            return
        flat = torch.cat([value.float().reshape(-1) for value in self._running().values()])
        dist.broadcast(flat, src=0)
        first = 0
        for value in self._running().values():
            value.copy_(flat[first : first + value.numel()].view_as(value))
            first += value.numel()

    def _running(self) -> dict[str, Tensor]:
        return {
            name: value for name, value in self.model.named_buffers() if name.rpartition(".")[2] in _RUNNING_STATISTICS
        }


_RUNNING_STATISTICS = ("running_mean", "running_var")
NUM_CANDIDATES, NUM_CANDIDATES_FP32 = 10, 4
"""Kernels that are tried for each convolution; 10 is PyTorch's own number."""


def open_vision_session(run: VisionRun, device: torch.device) -> VisionSession:
    """Build this rank's copy. The process group must exist, and every rank must call this."""
    if run.precision == "tf32" and device.type != "cuda":
        raise ConfigError("precision tf32 needs a GPU that has it, and this runs on the CPU: choose fp32 or bf16")
    if run.compile == "graphs" and (device.type != "cuda" or run.num_ranks > 1):
        raise ConfigError("compile=graphs works on one GPU only: choose compile=default for several ranks or the CPU")
    allow_tf32(run.precision == "tf32")
    search_kernels(run.precision, device)
    model = build(
        run.shape, channels_last=run.channels_last, folds=is_folded(run, device),
        multiplies=multiplies_pointwise(run.precision, device, channels_last=run.channels_last), device=device,
        seed=run.seed,
    )  # fmt: skip
    optimizer = Momentum(run, model)
    train_step = VisionStep(run, _loss_of(run, model, device), optimizer)
    return VisionSession(
        run=run,
        device=device,
        model=model,
        optimizer=optimizer,
        train_step=train_step,
        step=GraphedStep(train_step) if run.compile == "graphs" else train_step,
    )


def is_folded(run: VisionRun, device: torch.device) -> bool:
    """True where matrix units compute the products and a compiler fuses the folding with its neighbours."""
    return device.type == "cuda" and run.precision != "fp32" and run.channels_last and run.compile != "off"


def multiplies_pointwise(precision: str, device: torch.device, *, channels_last: bool) -> bool:
    """True where 1x1 convolutions are faster as matrix products: in 32 bit on a GPU's vector units."""
    return device.type == "cuda" and precision == "fp32" and channels_last


def _loss_of(run: VisionRun, model: ResNet, device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
    module: torch.nn.Module = MeanLoss(model, run, device)
    if run.num_ranks > 1:
        module = DistributedDataParallel(
            module,
            device_ids=[device.index] if device.type == "cuda" else None,
            broadcast_buffers=False,  # each rank's norms count for themselves (goyal2017, section 2.3)
            gradient_as_bucket_view=True,
        )
    if run.compile == "off":
        return module
    return cast(Callable[[Tensor, Tensor], Tensor], torch.compile(module, dynamic=False, **_compile_options(run)))


def _compile_options(run: VisionRun) -> dict[str, Any]:
    """As for language: max-autotune searches the element-wise kernels; convolutions go to the vendor's library."""
    if run.compile == "max-autotune":
        return {"options": {"max_autotune_pointwise": True, "coordinate_descent_tuning": True}}
    return {}


def search_kernels(precision: str, device: torch.device) -> None:
    """Let cuDNN search for the fastest convolutions: it pays off because shapes never change. In 32 bit there are many
    slow candidates (160 s for 512 images on an H200), so only those that cuDNN ranks first are tried."""
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.benchmark_limit = NUM_CANDIDATES_FP32 if precision == "fp32" else NUM_CANDIDATES


def allow_tf32(allowed: bool) -> None:
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed
