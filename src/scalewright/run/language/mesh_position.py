"""A rank's position in the device mesh: its device, its process groups, its part of the layers and of each sequence."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from scalewright.errors import ConfigError
from scalewright.workload.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshPosition:
    """One rank's position in the layout. `replica` joins data and context parallelism: both average gradients."""

    device: torch.device
    layout: Layout
    mesh: DeviceMesh
    """(pp, replica, tp)"""
    context_mesh: DeviceMesh
    """(pp, dp, cp, tp): the same ranks with `replica` split into dp and cp."""

    @property
    def pp_rank(self) -> int:
        return self.mesh.get_local_rank("pp")

    @property
    def dp_rank(self) -> int:
        return self.context_mesh.get_local_rank("dp")

    @property
    def cp_rank(self) -> int:
        return self.context_mesh.get_local_rank("cp")

    @property
    def num_replicas(self) -> int:
        return int(self.layout.dp) * int(self.layout.cp)

    @property
    def is_first_pipeline_rank(self) -> bool:
        return self.pp_rank == 0

    @property
    def is_last_pipeline_rank(self) -> bool:
        return self.pp_rank == int(self.layout.pp) - 1

    @property
    def replica_group(self) -> dist.ProcessGroup:
        return self.mesh.get_group("replica")

    @property
    def pipeline_group(self) -> dist.ProcessGroup:
        return self.mesh.get_group("pp")

    @property
    def context_group(self) -> dist.ProcessGroup:
        return self.context_mesh.get_group("cp")


def mesh_position(layout: Layout, device: torch.device) -> MeshPosition:
    """Build the meshes; every rank of the job must call this at the same time."""
    pp, dp, cp, tp = (int(getattr(layout, name)) for name in ("pp", "dp", "cp", "tp"))
    check_world_size(layout, dist.get_world_size())
    mesh = init_device_mesh(device.type, (pp, dp * cp, tp), mesh_dim_names=("pp", "replica", "tp"))
    context_mesh = init_device_mesh(device.type, (pp, dp, cp, tp), mesh_dim_names=("pp", "dp", "cp", "tp"))
    return MeshPosition(device=device, layout=layout, mesh=mesh, context_mesh=context_mesh)


def check_world_size(layout: Layout, world_size: int) -> None:
    num_ranks = int(layout.num_gpus)
    if num_ranks != world_size:
        raise ConfigError(
            f"layout {layout.brief} is for {num_ranks} ranks (dp x cp x tp x pp), but {world_size} were started: "
            f"start {num_ranks}, or change the layout"
        )


def local_positions(seq_len: int, *, cp: int, cp_rank: int, device: torch.device) -> Tensor:
    """Positions of a rank's tokens: of 2 cp pieces, piece r from the front and piece r from the end, so that every rank
    has the same share of the causal triangle."""
    positions = torch.arange(seq_len, device=device)
    if cp == 1:
        return positions
    pieces = positions.chunk(2 * cp)
    return torch.cat((pieces[cp_rank], pieces[2 * cp - 1 - cp_rank]))


def chunk_layers(num_layers: int, *, num_chunks: int) -> list[range]:
    """Consecutive layers of each pipeline chunk, as even as possible, the longer chunks first."""
    short, longer = divmod(num_layers, num_chunks)
    starts = [0]
    for chunk in range(num_chunks):
        starts.append(starts[-1] + short + (1 if chunk < longer else 0))
    return [range(a, b) for a, b in itertools.pairwise(starts)]


class GatherTokens(torch.autograd.Function):
    """Every rank's tokens one after the other along dimension 1; backward sums and returns this rank's part."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group  # type: ignore[attr-defined]
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, None]:
        group: dist.ProcessGroup = ctx.group  # type: ignore[attr-defined]
        whole = grad.contiguous()
        dist.all_reduce(whole, group=group)
        return whole.chunk(dist.get_world_size(group), dim=1)[dist.get_rank(group)].contiguous(), None


def causal_mask(seq_len: int, *, cp: int, cp_rank: int, device: torch.device) -> Tensor:
    """Which gathered keys a rank's queries may see, by position."""
    queries = local_positions(seq_len, cp=cp, cp_rank=cp_rank, device=device)
    keys = torch.cat([local_positions(seq_len, cp=cp, cp_rank=r, device=device) for r in range(cp)])
    return queries[:, None] >= keys[None, :]
