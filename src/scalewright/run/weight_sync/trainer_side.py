"""A trainer rank's weights as its server holds them: the part of each weight that this rank stores, adapters merged."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from scalewright.run.language.optimizer import local
from scalewright.run.reasoning.lora import LORA_A, LORA_B, WEIGHT, is_adapter, merged
from scalewright.run.reasoning.trainer import SequenceTrainer
from scalewright.run.weight_sync.plan import Box, split_range, whole_box
from scalewright.run.weight_sync.server import HeldPart, WeightServer
from scalewright.run.weight_sync.wire import wire_dtype


def held_box(param: Tensor) -> Box:
    """What this rank stores of a parameter: the part of its tensor-parallel rank, of that the rows of its replica."""
    box = list(whole_box(tuple(param.shape)))
    if isinstance(param, DTensor):
        mesh = param.device_mesh
        for axis in reversed(range(mesh.ndim)):
            placement = param.placements[axis]
            if isinstance(placement, Shard | _StridedShard):
                box[placement.dim] = split_range(box[placement.dim], mesh.size(axis), mesh.get_local_rank(axis))
    return tuple(box)


@torch.no_grad()
def held_weights(trainer: SequenceTrainer) -> Iterator[tuple[str, Tensor, HeldPart]]:
    """Each weight of the model as this rank holds it, in the type that the trainer computes with.

    Every rank must take all of them: the first matrix of an adapter is gathered.
    """
    params = trainer.stored_parameters()
    for name, param in params.items():
        if is_adapter(name):
            continue
        part = HeldPart(size=tuple(param.shape), box=held_box(param))
        values = local(param.detach()).to(trainer.dtype)
        stem = name.removesuffix(WEIGHT)
        if trainer.lora is not None and stem + LORA_A in params:
            whole_a = params[stem + LORA_A].detach()
            whole_a = whole_a.full_tensor() if isinstance(whole_a, DTensor) else whole_a
            values = merged(values, whole_a, local(params[stem + LORA_B].detach()), trainer.lora)
        yield name, values, part


class TrainerWeights:
    """The server of one trainer rank. The first `publish` starts it."""

    def __init__(self, trainer: SequenceTrainer, *, engine_dtype: torch.dtype, token: str, host: str) -> None:
        """`engine_dtype`: what engines store; see `wire_dtype`."""
        self._trainer, self._token, self._host = trainer, token, host
        self._dtype = wire_dtype(engine_dtype, trainer.dtype)
        self._server: WeightServer | None = None
        self.address = ""

    def publish(self, version: int) -> str:
        """Serve the weights as they are now. Every rank calls it; the address of this rank's server."""
        tensors, parts = {}, {}
        for name, values, part in held_weights(self._trainer):
            tensors[name], parts[name] = values, part
        if self._server is None:
            self._server = WeightServer(tensors, parts, version, token=self._token, host=self._host, dtype=self._dtype)
            self.address = self._server.start()
        else:
            self._server.publish(tensors, version)
        return self.address

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
