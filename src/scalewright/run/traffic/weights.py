"""Weights of an engine: random ones by a seed, or those of a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from scalewright.catalog.types import TransformerShape
from scalewright.errors import ConfigError
from scalewright.records.run_directory import MANIFEST, RunDirectory
from scalewright.run.generate.open import checkpoint_weights


def named_weights(
    folder: str, shape: TransformerShape, *, seed: int, device: torch.device
) -> Iterator[tuple[str, Tensor]] | int:
    """Tensors by their names in the whole model, or the seed."""
    del shape
    if not folder:
        return seed
    path = Path(folder)
    checkpoint = path if (path / MANIFEST).is_file() else RunDirectory(path).last_checkpoint()
    if checkpoint is None:
        raise ConfigError(f"--weights {folder}: holds no checkpoint: name a run, or one of its checkpoints")
    return checkpoint_weights(checkpoint, device=device)
