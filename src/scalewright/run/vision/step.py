"""One training step of images: forward, backward, the sum over ranks, update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from scalewright.run.loss_scale import LossScale
from scalewright.run.vision.optimizer import Momentum
from scalewright.workload.vision_run import VisionRun

SHORT = {"fp16": torch.float16, "bf16": torch.bfloat16}


class MeanLoss(nn.Module):
    """The network and its loss in one module, which is compiled and wrapped in DDP as a whole."""

    def __init__(self, model: nn.Module, run: VisionRun, device: torch.device) -> None:
        super().__init__()
        self.model, self._smoothing = model, run.recipe.label_smoothing
        self._short, self._device = SHORT.get(run.precision), device.type

    def forward(self, images_BHWC: Tensor, labels_B: Tensor) -> Tensor:
        """Mean cross-entropy in 32 bit, over this rank's images."""
        with torch.autocast(self._device, self._short, enabled=self._short is not None):
            scores = self.model(images_BHWC)
        return functional.cross_entropy(scores.float(), labels_B, label_smoothing=self._smoothing)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionStepResult:
    """What a step returns, still on the device."""

    loss: Tensor
    """Mean over this rank's images."""


class VisionStep:
    """Calls the network on a batch and updates it. Every rank calls it with its own images."""

    def __init__(self, run: VisionRun, loss_of: Callable[[Tensor, Tensor], Tensor], optimizer: Momentum) -> None:
        self.run, self.optimizer, self._loss_of = run, optimizer, loss_of
        self.loss_scale = LossScale(optimizer.device, scales=run.precision == "fp16")
        self.before_update: Callable[[], None] = lambda: None
        """Called when the gradients are ready, before the weights change: a save may still read the weights."""
        self.num_done = 0
        """Steps of the run that are done, including those that overflowed. They decide the rate."""

    def __call__(self, images_BHWC: Tensor, labels_B: Tensor) -> VisionStepResult:
        self.begin()
        return self.work(images_BHWC, labels_B)

    def begin(self) -> None:
        self.optimizer.begin(self.num_done)
        self.num_done += 1

    def work(self, images_BHWC: Tensor, labels_B: Tensor) -> VisionStepResult:
        self.forget()
        loss = self._loss_of(images_BHWC, labels_B)
        (loss * self.loss_scale.value if self.loss_scale.scales else loss).backward()  # type: ignore[no-untyped-call]
        self._update()
        return VisionStepResult(loss=loss.detach())

    def forget(self) -> None:
        self.optimizer.clear()

    def _update(self) -> None:
        grads = self.optimizer.gradients()
        overflowed = self.loss_scale.unscale(list(grads.values()))  # summed over ranks already: the same on all of them
        self.before_update()
        self.optimizer.apply(grads, overflowed=overflowed)
        self.loss_scale.after(overflowed)
