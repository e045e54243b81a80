"""A trainer rank's weights as its server holds them: the part of each weight that this rank stores, adapters merged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from scalewright.errors import ConfigError
from scalewright.run.language.optimizer import local
from scalewright.run.reasoning.lora import LORA_A, LORA_B, WEIGHT, is_adapter, merged
from scalewright.run.reasoning.trainer import SequenceTrainer
from scalewright.run.weight_sync.files import remove_old, write_weights
from scalewright.run.weight_sync.plan import Box, split_range, whole_box
from scalewright.run.weight_sync.result import SyncWay
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


def _is_first(param: Tensor, trainer: SequenceTrainer) -> bool:
    """Whether this rank is the first on every axis of the mesh that does not split the parameter."""
    mesh, split_by = trainer.position.mesh, set()
    if isinstance(param, DTensor):
        split_by = {
            name
            for name, placement in zip(param.device_mesh.mesh_dim_names or (), param.placements, strict=True)
            if isinstance(placement, Shard | _StridedShard)
        }
    return all(mesh.get_local_rank(axis) == 0 for axis in ("replica", "tp") if axis not in split_by)


@torch.no_grad()
def held_weights(trainer: SequenceTrainer) -> Iterator[tuple[str, Tensor, HeldPart]]:
    """Each weight of the model as this rank holds it, in the type that the trainer computes with.

    Every rank must take all of them: the first matrix of an adapter is gathered.
    """
    params = trainer.stored_parameters()
    for name, param in params.items():
        if is_adapter(name):
            continue
        part = HeldPart(size=tuple(param.shape), box=held_box(param), is_first=_is_first(param, trainer))
        values = local(param.detach()).to(trainer.dtype)
        stem = name.removesuffix(WEIGHT)
        if trainer.lora is not None and stem + LORA_A in params:
            whole_a = params[stem + LORA_A].detach()
            whole_a = whole_a.full_tensor() if isinstance(whole_a, DTensor) else whole_a
            values = merged(values, whole_a, local(params[stem + LORA_B].detach()), trainer.lora)
        yield name, values, part


class TrainerWeights:
    """One trainer rank's side of every sync. The first `publish` starts its server."""

    def __init__(
        self, trainer: SequenceTrainer, *, engine_dtype: torch.dtype, token: str = "", host: str = "127.0.0.1",
        folder: Path | None = None,
    ) -> None:  # fmt: skip
        """`engine_dtype`: what engines store; see `wire_dtype`. `folder`: where a sync by file writes."""
        self._trainer, self._token, self._host, self._folder = trainer, token, host, folder
        self._dtype = wire_dtype(engine_dtype, trainer.dtype)
        self._server: WeightServer | None = None
        self._address = ""

    def publish(self, version: int, way: SyncWay = "peers") -> str:
        """Offer the weights as they are now. Every rank calls it.

        What engines pull from: by peers the address of this rank's server; by broadcast that of the first rank, empty
        on others; by file the folder, once this rank's file is in it.
        """
        tensors, parts = {}, {}
        if way == "broadcast":
            is_first = dist.get_rank() == 0
            for name, values in self._trainer.named_weights():
                if is_first:
                    tensors[name], parts[name] = values, HeldPart.whole(values)
            return self._serve(tensors, parts, version) if is_first else ""
        for name, values, part in held_weights(self._trainer):
            tensors[name], parts[name] = values, part
        return self._write(tensors, parts, version) if way == "file" else self._serve(tensors, parts, version)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def _serve(self, tensors: dict[str, Tensor], parts: dict[str, HeldPart], version: int) -> str:
        if self._server is None:
            self._server = WeightServer(tensors, parts, version, token=self._token, host=self._host, dtype=self._dtype)
            self._address = self._server.start()
        else:
            self._server.publish(tensors, version, parts)
        return self._address

    def _write(self, tensors: dict[str, Tensor], parts: dict[str, HeldPart], version: int) -> str:
        if self._folder is None:
            raise ConfigError("weight sync by file needs a folder: name one that trainer and engines share")
        rank = dist.get_rank()
        write_weights(
            self._folder, tensors, parts, version, rank=rank, num_ranks=dist.get_world_size(), dtype=self._dtype
        )
        if rank == 0:
            remove_old(self._folder, version)
        return str(self._folder)
