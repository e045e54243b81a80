"""Gradients between the backward pass and the optimizer: summed, averaged over replicas, measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from scalewright import units
from scalewright.run.language.model import TOKEN_TABLE
from scalewright.run.language.optimizer import local
from scalewright.run.language.parallel import SplitModel
from scalewright.workload.language_run import LanguageRun

BUCKET_BYTES = 32 * units.MIB
"""Tensors are reduced together up to this size, so that messages are large."""


class Gradients:
    """Local gradients by name, as the optimizer takes them.

    Gradients of 16-bit weights that are summed over micro-batches or replicas are summed in fp32, tensor by tensor, as
    the backward pass finishes each.
    """

    def __init__(self, run: LanguageRun, split: SplitModel) -> None:
        self.split, self.params = split, split.parameters()
        position, layout = split.position, run.layout
        summed = int(layout.num_micro_batches) > 1 or position.num_replicas > 1
        short = any(p.dtype != torch.float32 for p in self.params.values())
        self._sums: dict[str, Tensor] = {}
        if short and summed and not split.reduces_itself:
            for name, param in self.params.items():
                self._sums[name] = torch.zeros_like(local(param.detach()), dtype=torch.float32)
                param.register_post_accumulate_grad_hook(self._fold(name))  # type: ignore[no-untyped-call]
        copies = {name: self._num_copies(param) for name, param in self.params.items()}
        self._tie_group = _tie_group(split) if run.shape.tied_embeddings and int(layout.pp) > 1 else None
        if self._tie_group is not None and not position.is_first_pipeline_rank:
            copies.pop(TOKEN_TABLE, None)  # its norm is measured on the first pipeline rank
        self._measured = list(copies)
        self._copies = torch.tensor(list(copies.values()), dtype=torch.float32, device=position.device)

    def sums(self) -> list[Tensor]:
        """Memory in which gradients of 16-bit weights are summed; zero between updates."""
        return list(self._sums.values())

    def clear(self) -> None:
        for param in self.params.values():
            param.grad = None
        for total in self._sums.values():
            total.zero_()

    @torch.no_grad()
    def collect(self) -> dict[str, Tensor]:
        """Gradients of this rank's parameters, averaged over replicas; call after the last micro-batch."""
        if self._sums:
            grads = dict(self._sums)
        else:
            grads = {name: local(_redistributed_grad(param)) for name, param in self.params.items()}
        position = self.split.position
        if position.num_replicas > 1 and not self.split.reduces_itself:
            _all_reduce(list(grads.values()), position.replica_group, divide_by=position.num_replicas)
        if self._tie_group is not None and TOKEN_TABLE in grads:
            dist.all_reduce(grads[TOKEN_TABLE], group=self._tie_group)
        return grads

    @torch.no_grad()
    def square_norm(self, grads: Mapping[str, Tensor]) -> Tensor:
        """This rank's share of the squared norm of the whole gradient: the sum over ranks counts each number once."""
        norms = torch._foreach_norm([grads[name] for name in self._measured], 2, dtype=torch.float32)
        return (torch.stack(norms).square() / self._copies).sum()

    def _fold(self, name: str):  # type: ignore[no-untyped-def]
        def hook(param: Tensor) -> None:
            with torch.no_grad():
                self._sums[name].add_(local(_redistributed_grad(param)))
            param.grad = None

        return hook

    def _num_copies(self, param: nn.Parameter) -> int:
        """Ranks with the same layers that hold the same values."""
        position = self.split.position
        ranks = position.num_replicas * int(position.layout.tp)
        if not isinstance(param, DTensor):
            return ranks
        mesh = param.device_mesh
        for dim, placement in enumerate(param.placements):
            if not placement.is_replicate():
                ranks //= mesh.size(dim)
        return ranks


def _redistributed_grad(param: Tensor) -> Tensor:
    """The gradient with the placements of its parameter: under sequence parallelism, norms leave partial sums."""
    grad = param.grad
    if grad is None:
        raise AssertionError("a parameter got no gradient")
    if isinstance(param, DTensor) and cast(DTensor, grad).placements != param.placements:
        return cast(DTensor, grad).redistribute(placements=param.placements)
    return grad


def _all_reduce(tensors: list[Tensor], group: dist.ProcessGroup, *, divide_by: int) -> None:
    bucket: list[Tensor] = []
    size_bytes = 0
    for tensor in [*tensors, None]:
        if tensor is not None:
            bucket.append(tensor)
            size_bytes += tensor.numel() * tensor.element_size()
        if bucket and (tensor is None or size_bytes >= BUCKET_BYTES):
            flat = torch.cat([t.reshape(-1) for t in bucket]).div_(divide_by)
            dist.all_reduce(flat, group=group)
            parts = torch.split(flat, [t.numel() for t in bucket])
            for target, part in zip(bucket, parts, strict=True):
                target.copy_(part.view_as(target))
            bucket, size_bytes = [], 0


def _tie_group(split: SplitModel) -> dist.ProcessGroup | None:
    """The first and the last rank of each pipeline hold the token table. Every rank must call this."""
    ranks = split.position.mesh.mesh
    own, mine = None, dist.get_rank()
    for replica in range(ranks.shape[1]):
        for tensor in range(ranks.shape[2]):
            pair = [int(ranks[0, replica, tensor]), int(ranks[-1, replica, tensor])]
            group = dist.new_group(pair)
            own = cast(dist.ProcessGroup, group) if mine in pair else own
    return own
