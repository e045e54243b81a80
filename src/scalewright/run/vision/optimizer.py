"""SGD with momentum in a few kernels for all tensors, state by parameter name; the rate may change inside a graph."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from scalewright.workload.vision_run import VisionRun


class Momentum:
    """Weights and momenta in 32 bit.

    Equation  v = m v + g + d w;  w = w - rate v
    Source    goyal2017 (arXiv:1706.02677), equation 9, and section 5.1 for what is not decayed
    """

    def __init__(self, run: VisionRun, model: nn.Module) -> None:
        self.run = run
        self.params: dict[str, nn.Parameter] = dict(model.named_parameters())
        self.momenta = {name: torch.zeros_like(param.detach()) for name, param in self.params.items()}
        self.num_updates = 0
        norms = {id(p) for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()}
        self._decayed = [name for name, param in self.params.items() if id(param) not in norms]
        device = next(iter(self.params.values())).device
        self._negative_rate = torch.zeros((), device=device)

    def set_rate(self, step: int) -> None:
        """The rate of a step, where a graph that was recorded before will find it."""
        self._negative_rate.fill_(-self.run.rate(step))

    def clear(self) -> None:
        for param in self.params.values():
            param.grad = None

    def gradients(self) -> dict[str, Tensor]:
        found = {name: param.grad for name, param in self.params.items()}
        missing = [name for name, grad in found.items() if grad is None]
        if missing:
            raise AssertionError(f"{missing[0]} got no gradient")
        return {name: grad for name, grad in found.items() if grad is not None}

    @torch.no_grad()
    def apply(self, grads: Mapping[str, Tensor], *, scale: float = 1.0) -> None:
        """Update every parameter from its gradient times a factor; the gradients are used up."""
        momenta, every = list(self.momenta.values()), [grads[name] for name in self.params]
        weights = [param.detach() for param in self.params.values()]
        if scale != 1.0:
            torch._foreach_mul_(every, scale)
        decayed = [self.params[name].detach() for name in self._decayed]
        torch._foreach_add_([grads[name] for name in self._decayed], decayed, alpha=self.run.recipe.weight_decay)
        torch._foreach_mul_(momenta, self.run.recipe.momentum)
        torch._foreach_add_(momenta, every)
        torch._foreach_add_(weights, torch._foreach_mul(momenta, self._negative_rate))

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold, by name; the tensors themselves, so that loading fills them in place."""
        return {
            **{f"weight.{name}": param.detach() for name, param in self.params.items()},
            **{f"momentum.{name}": momentum for name, momentum in self.momenta.items()},
        }
