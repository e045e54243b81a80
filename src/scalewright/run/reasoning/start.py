"""Weights that a stage starts from: of another stage, of a training run, of a Hugging Face folder, or of the seed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from scalewright.errors import ConfigError
from scalewright.records.run_directory import MANIFEST, RunDirectory
from scalewright.run.generate.hugging_face import open_hugging_face
from scalewright.run.generate.open import checkpoint_weights
from scalewright.run.language.rotary import LayerConstants


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWeights:
    """Weights by their names in the whole model, and the constants of its layers."""

    tensors: Iterable[tuple[str, Tensor]] | int
    """Or the seed of random ones."""
    constants: LayerConstants | None
    where: str

    @property
    def is_random(self) -> bool:
        return isinstance(self.tensors, int)


def start_weights(folder: str, *, seed: int, device: torch.device) -> StartWeights:
    """What is in the folder; random weights where none is named. Tensors can be taken once."""
    if not folder:
        return StartWeights(tensors=seed, constants=None, where="the seed's weights")
    path = Path(folder)
    if (path / "config.json").is_file() and any(path.glob("*.safetensors")):
        model = open_hugging_face(path)
        return StartWeights(tensors=model.weights(), constants=model.constants, where=folder)
    checkpoint = path if (path / MANIFEST).is_file() else RunDirectory(path).last_checkpoint()
    if checkpoint is None:
        raise ConfigError(
            f"{folder}: holds neither a checkpoint nor safetensors: name a stage, a checkpoint or a Hugging Face folder"
        )
    return StartWeights(tensors=checkpoint_weights(checkpoint, device=device), constants=None, where=str(checkpoint))
