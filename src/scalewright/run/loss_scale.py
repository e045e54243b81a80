"""Loss scaling for fp16, whose short exponent would round small gradients to zero.

The device decides whether gradients overflowed. The host issues the same kernels either way, so it never waits for the
device, and a recorded graph contains the decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

FIRST_LOSS_SCALE = 2.0**15
GROWTH_EVERY = 1000


class LossScale:
    """fp16 loss scaling: halve after an overflow, double after many good steps. Other precisions have a scale of 1,
    which is a plain number and costs nothing.

    The tensors are never replaced: kernels of a recorded graph read and write them.
    """

    def __init__(self, device: torch.device, *, scales: bool) -> None:
        self.scales = scales
        self.value: Tensor | float = torch.full((), FIRST_LOSS_SCALE, device=device) if scales else 1.0
        self._good_steps = torch.zeros((), dtype=torch.int32, device=device if scales else "cpu")

    def overflowed(self, grad_norm: Tensor) -> Tensor | None:
        """Whether the gradient overflowed, from its norm over all ranks; None where nothing is scaled."""
        return ~torch.isfinite(grad_norm) if self.scales else None

    @torch.no_grad()
    def unscale(self, grads: list[Tensor]) -> Tensor | None:
        """Divide gradients by the scale, in place, and flag an overflow in any of them."""
        if not isinstance(self.value, Tensor):
            return None
        overflowed = torch.zeros_like(self.value)
        torch._amp_foreach_non_finite_check_and_unscale_(grads, overflowed, self.value.reciprocal())
        return overflowed.bool()

    @torch.no_grad()
    def after(self, overflowed: Tensor | None) -> None:
        """The scale of the next step."""
        if overflowed is None or not isinstance(self.value, Tensor):
            return
        torch._amp_update_scale_(self.value, self._good_steps, overflowed.float(), 2.0, 0.5, GROWTH_EVERY)
        self.value.clamp_(min=1.0)

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold. Waits for the device."""
        return {"value": float(self.value), "good_steps": int(self._good_steps)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint's state. A state that is not one raises KeyError, TypeError or ValueError."""
        value, good_steps = float(state["value"]), int(state["good_steps"])
        if isinstance(self.value, Tensor):
            self.value.fill_(value)
            self._good_steps.fill_(good_steps)


class CountsUpdates:
    """Counts an optimizer's updates on the host, or on the device where updates can be skipped."""

    def __init__(self, device: torch.device, *, skips: bool) -> None:
        self.device = device
        self._num_made: Tensor | int = torch.zeros((), dtype=torch.int64, device=device) if skips else 0

    def check_resumed(self, *, num_steps: int, is_own: bool) -> None:
        """Raise ValueError where a checkpoint has not one update for each step. Overflows of fp16 skip some.

        `is_own`: a checkpoint of this run, which has always had this precision.
        """
        may_skip = isinstance(self._num_made, Tensor) or not is_own
        if self.num_updates > num_steps or (self.num_updates < num_steps and not may_skip):
            raise ValueError(f"{self.num_updates} updates in {num_steps} steps")

    @property
    def num_updates(self) -> int:
        """Number of updates made. Waits for the device where the device counts."""
        return int(self._num_made)

    @num_updates.setter
    def num_updates(self, value: int) -> None:
        if isinstance(self._num_made, Tensor):
            self._num_made.fill_(value)
        else:
            self._num_made = value

    def _count_coming(self) -> None:
        """Before an update that cannot be skipped."""
        if not isinstance(self._num_made, Tensor):
            self._num_made += 1

    def _count_made(self, overflowed: Tensor) -> None:
        """After an update that was made unless gradients overflowed."""
        assert isinstance(self._num_made, Tensor)
        self._num_made.add_(~overflowed)
