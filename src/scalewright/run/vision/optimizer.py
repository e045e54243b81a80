"""SGD with momentum: one kernel for many tensors, state by parameter name. The rate may change inside a graph."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from scalewright.run.loss_scale import CountsUpdates
from scalewright.workload.vision_run import VisionRun


class Momentum(CountsUpdates):
    """Weights and momenta in 32 bit.

    Equation  v = m v + g + d w;  w = w - rate v
    Source    goyal2017 (arXiv:1706.02677), equation 9, and section 5.1 for what is not decayed
    """

    def __init__(self, run: VisionRun, model: nn.Module) -> None:
        self.run = run
        self.params: dict[str, nn.Parameter] = dict(model.named_parameters())
        super().__init__(next(iter(self.params.values())).device, skips=run.precision == "fp16")
        self.momenta = {name: torch.zeros_like(param.detach()) for name, param in self.params.items()}
        norms = {id(p) for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()}
        self._decayed = [name for name, param in self.params.items() if id(param) not in norms]
        self._negative_rate = torch.zeros((), device=self.device)

    def begin(self, step: int) -> None:
        """Before the update of a step of the run."""
        self._count_coming()
        self.set_rate(step)

    def set_rate(self, step: int) -> None:
        """Write the rate of a step where the kernels of a recorded graph read it."""
        self._negative_rate.fill_(-self.run.rate(step))

    def clear(self) -> None:
        for param in self.params.values():
            param.grad = None

    def gradients(self) -> dict[str, Tensor]:
        grads = {name: param.grad for name, param in self.params.items()}
        missing = [name for name, grad in grads.items() if grad is None]
        if missing:
            raise AssertionError(f"{missing[0]} got no gradient")
        return {name: grad for name, grad in grads.items() if grad is not None}

    @torch.no_grad()
    def apply(self, grads: Mapping[str, Tensor], *, overflowed: Tensor | None = None) -> None:
        """Update every parameter from its gradient, or none where the flag is set. The gradients are overwritten."""
        momenta, all_grads = list(self.momenta.values()), [grads[name] for name in self.params]
        weights = [param.detach() for param in self.params.values()]
        momentum, negative_rate = self.run.recipe.momentum, self._negative_rate
        kept: Tensor | float = momentum
        decayed = [self.params[name].detach() for name in self._decayed]
        torch._foreach_add_([grads[name] for name in self._decayed], decayed, alpha=self.run.recipe.weight_decay)
        if overflowed is not None:
            # Gradients are zeroed as integers: as floats, infinity times zero would be NaN.
            torch._foreach_mul_([grad.view(torch.int32) for grad in all_grads], (~overflowed).int())
            kept = torch.full_like(negative_rate, momentum).masked_fill_(overflowed, 1.0)
            negative_rate = negative_rate.masked_fill(overflowed, 0.0)
            self._count_made(overflowed)
        torch._foreach_mul_(momenta, kept)
        torch._foreach_add_(momenta, all_grads)
        torch._foreach_add_(weights, torch._foreach_mul(momenta, negative_rate))

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold, by name; the tensors themselves, so that loading fills them in place."""
        return {
            **{f"weight.{name}": param.detach() for name, param in self.params.items()},
            **{f"momentum.{name}": momentum for name, momentum in self.momenta.items()},
        }
