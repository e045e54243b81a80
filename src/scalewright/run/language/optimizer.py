"""AdamW on the tensors a rank holds: fp32 master weights where the model's are shorter, state by parameter name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils import swap_tensors

from scalewright.run.loss_scale import CountsUpdates
from scalewright.workload.language_run import OptimizerSettings

ANNOTATION = "Optimizer.step#AdamW.step"
"""As optimizers of PyTorch mark themselves in a profiler's trace."""
NUM_SCALARS = 4
MAX_SIZES = 64
"""Different sizes of tensors that a kernel of its own is compiled for."""


def local(tensor: Tensor) -> Tensor:
    """The part of a distributed tensor that this rank stores; any other tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def update(
    master: Tensor, weight: Tensor | None, mean: Tensor, square: Tensor, grad: Tensor, scalars: Tensor,
    beta_1: float, beta_2: float, epsilon: float, decay: float,
) -> None:  # fmt: skip
    """One AdamW step in place.

    Equation  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;  w = w (1 - a d) - a m/c1 / (sqrt(v/c2) + e)
    Source    loshchilov2019 (arXiv:1711.05101), algorithm 2
    """
    rate, mean_scale, root_scale, grad_scale = scalars.unbind()
    g = grad.float() * grad_scale
    mean.lerp_(g, 1.0 - beta_1)
    square.mul_(beta_2).addcmul_(g, g, value=1.0 - beta_2)
    step = mean * mean_scale / (square.sqrt() * root_scale + epsilon)
    master.mul_(1.0 - rate * decay).sub_(rate * step)
    if weight is not None:
        weight.copy_(master)


def update_unless(
    overflowed: Tensor,
    master: Tensor, weight: Tensor | None, mean: Tensor, square: Tensor, grad: Tensor, scalars: Tensor,
    beta_1: float, beta_2: float, epsilon: float, decay: float,
) -> None:  # fmt: skip
    """`update`, or nothing where the flag is set. Compiled, it moves no more bytes: the copies stay in registers."""
    changed = [tensor for tensor in (master, weight, mean, square) if tensor is not None]
    before = [tensor.clone() for tensor in changed]
    update(master, weight, mean, square, grad, scalars, beta_1, beta_2, epsilon, decay)
    for tensor, old in zip(changed, before, strict=True):
        tensor.copy_(torch.where(overflowed, old, tensor))


class AdamW(CountsUpdates):
    """Master weights and moments live beside the parameters, split the same way."""

    def __init__(
        self, params: Mapping[str, nn.Parameter], settings: OptimizerSettings, *, weights: torch.dtype, skips: bool
    ) -> None:
        super().__init__(local(next(iter(params.values()))).device, skips=skips)
        self.settings = settings
        self.params = dict(params)
        short = weights != torch.float32
        self.masters: dict[str, Tensor] = {n: p.detach().clone() for n, p in params.items()} if short else {}
        self.means = {n: torch.zeros_like(p.detach()) for n, p in params.items()}
        self.squares = {n: torch.zeros_like(p.detach()) for n, p in params.items()}
        if short:
            for param in params.values():
                cast(param, weights)
        self.scalars = torch.zeros(NUM_SCALARS, device=self.device)
        compiles = self.device.type == "cuda"
        self._update: Callable[..., None] = _compiled(update) if compiles else update
        self._update_unless: Callable[..., None] = _compiled(update_unless) if compiles else update_unless

    def begin(self) -> None:
        """Learning rate and bias corrections of the coming update, where its number is known before it is made."""
        if isinstance(self._num_made, Tensor):
            return
        self._count_coming()
        s, number = self.settings, self.num_updates
        warm = min(1.0, number / s.warmup_steps) if s.warmup_steps else 1.0
        left = max(0.0, 1.0 - (number - 1) / s.decay_steps) if s.decay_steps else 1.0
        values = (s.learning_rate * warm * left, 1.0 / (1.0 - s.beta_1**number), (1.0 - s.beta_2**number) ** -0.5)
        self.scalars[:3].copy_(torch.tensor(values, dtype=torch.float32))

    @torch.no_grad()
    def apply(self, grads: Mapping[str, Tensor], grad_scale: Tensor, *, overflowed: Tensor | None = None) -> None:
        """Update every parameter from its local gradient times a factor; nothing changes where the flag is set."""
        s, change = self.settings, self._update
        self.scalars[3:].copy_(grad_scale.reshape(1))
        if overflowed is not None:
            self._set_scalars_there()
            self._count_made(overflowed)
            change = functools.partial(self._update_unless, overflowed)
        with torch.profiler.record_function(ANNOTATION):
            for name, param in self.params.items():
                master = local(self.masters.get(name, param.detach()))
                weight = local(param.detach()).view(-1) if name in self.masters else None
                decay = s.weight_decay if param.dim() > 1 else 0.0
                change(
                    master.view(-1), weight, local(self.means[name]).view(-1), local(self.squares[name]).view(-1),
                    grads[name].reshape(-1), self.scalars, s.beta_1, s.beta_2, s.epsilon, decay,
                )  # fmt: skip

    def _set_scalars_there(self) -> None:
        """As `begin` does, from the device's count: a step that is skipped takes no part in warm-up and corrections."""
        assert isinstance(self._num_made, Tensor)
        s, number = self.settings, self._num_made.double() + 1.0
        warm = (number / s.warmup_steps).clamp(max=1.0) if s.warmup_steps else torch.ones_like(number)
        left = (1.0 - (number - 1.0) / s.decay_steps).clamp(min=0.0) if s.decay_steps else torch.ones_like(number)
        corrections = (1.0 / (1.0 - s.beta_1**number), (1.0 - s.beta_2**number) ** -0.5)
        self.scalars[:3].copy_(torch.stack((s.learning_rate * warm * left, *corrections)))

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold, by name; the tensors themselves, so that loading fills them in place."""
        weights = self.masters or {n: p.detach() for n, p in self.params.items()}
        return {
            **{f"weight.{n}": t for n, t in weights.items()},
            **{f"mean.{n}": t for n, t in self.means.items()},
            **{f"square.{n}": t for n, t in self.squares.items()},
        }

    @torch.no_grad()
    def refresh_weights(self) -> None:
        """Round the master weights into the model again, after loading them."""
        for name, master in self.masters.items():
            local(self.params[name].detach()).copy_(local(master))


def _compiled(change: Callable[..., None]) -> Callable[..., None]:
    """One kernel per tensor, which reads and writes each number once; made anew for each of the few sizes."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MAX_SIZES)
    compiled: Callable[..., None] = torch.compile(change, dynamic=False, options={"coordinate_descent_tuning": True})
    return compiled


def cast(param: nn.Parameter, weights: torch.dtype) -> None:
    """Give a parameter another type, in place."""
    if isinstance(param.data, DTensor):
        swap_tensors(param, nn.Parameter(param.detach().to(weights), requires_grad=param.requires_grad))  # type: ignore[no-untyped-call]
    else:
        param.data = param.data.to(weights)
