"""Take whole weights by name into a model that is split over ranks, and start a run from a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from scalewright.errors import ConfigError, nearest
from scalewright.run.generate.hugging_face import HuggingFaceModel, open_hugging_face
from scalewright.run.language.optimizer import local
from scalewright.run.language.session import LanguageSession
from scalewright.workload.run_options import has_tensors


def hugging_face_start(folder: str) -> HuggingFaceModel | None:
    """The model to start from; None where the folder is a checkpoint of ours, or none is named."""
    return open_hugging_face(Path(folder)) if folder and has_tensors(Path(folder)) else None


def start_session(session: LanguageSession, model: HuggingFaceModel) -> None:
    """Give every rank its part of the model's weights."""
    targets = {
        name: session.optimizer.masters.get(name, param.detach())
        for name, param in session.split.all_parameters().items()
    }
    take_whole_weights(targets, model.weights(), where=str(model.folder))
    session.optimizer.refresh_weights()


def take_whole_weights(targets: Mapping[str, Tensor], tensors: Iterable[tuple[str, Tensor]], *, where: str) -> None:
    """Copy whole weights by name into this rank's parts. Each of them must be there, in its shape."""
    missing = set(targets)
    for name, values in tensors:
        if name not in targets:
            near = nearest(name, targets, limit=1)
            raise ConfigError(
                f"{where}: has {name}, which is no weight of this model{f' (it has {near[0]})' if near else ''}; "
                "give weights of the same shape"
            )
        target = targets[name]
        if tuple(values.shape) != tuple(target.shape):
            sizes = (" x ".join(map(str, size)) for size in (values.shape, target.shape))
            raise ConfigError(
                "{}: {} is {}, and this model needs {}; give weights of the same shape".format(where, name, *sizes)
            )
        missing.discard(name)
        local(target).copy_(_part(values, target))
    if missing:
        raise ConfigError(f"{where}: lacks {min(missing)}; give all weights of a model of the same shape")


def _part(whole: Tensor, target: Tensor) -> Tensor:
    """This rank's part of a whole weight: first that of its tensor-parallel rank, of that the shard of its replica."""
    if not isinstance(target, DTensor):
        return whole
    part = whole.to(local(target).device)
    for axis in reversed(range(target.device_mesh.ndim)):
        placement = target.placements[axis]
        if not isinstance(placement, Shard | _StridedShard):
            continue
        dim = placement.dim
        pieces = part.chunk(target.device_mesh.size(axis), dim=dim)
        rank = target.device_mesh.get_local_rank(axis)
        part = pieces[rank] if rank < len(pieces) else part.narrow(dim, 0, 0)
    return part
