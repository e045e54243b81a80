"""Weights that a stage starts from: of another stage, of a training run, of a Hugging Face folder, or of the seed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scalewright.errors import ConfigError
from scalewright.records.run_directory import MANIFEST, RunDirectory
from scalewright.run.checkpoint_files import read_manifest
from scalewright.run.generate.hugging_face import open_hugging_face
from scalewright.run.generate.open import checkpoint_weights
from scalewright.run.language.rotary import LayerConstants, RotaryScaling
from scalewright.run.reasoning.lora import merged_weights
from scalewright.workload.reasoning.lora_settings import LoraSettings

LORA, BASE, CONSTANTS = "lora", "base", "constants"
"""Keys of a checkpoint's state: adapters, the folder that they were trained on, and numbers of the layers."""


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
    state = read_manifest(checkpoint).state
    tensors: Iterable[tuple[str, Tensor]] = checkpoint_weights(checkpoint, device=device)
    if state.get(LORA):
        base = start_weights(state[BASE], seed=seed, device=device)
        assert not isinstance(base.tensors, int)
        tensors = merged_weights(base.tensors, tensors, LoraSettings(**state[LORA]), where=str(checkpoint))
    return StartWeights(tensors=tensors, constants=_constants(state.get(CONSTANTS)), where=str(checkpoint))


def start_state(start: StartWeights, *, folder: str, lora: LoraSettings | None) -> dict[str, Any]:
    """What a checkpoint must say, so that a later stage can start from it."""
    constants = {} if start.constants is None else {CONSTANTS: asdict(start.constants)}
    return constants | ({} if lora is None else {LORA: lora.document(), BASE: folder})


def _constants(body: dict[str, Any] | None) -> LayerConstants | None:
    if not body:
        return None
    scaling = body["rotary_scaling"]
    return LayerConstants(**{**body, "rotary_scaling": None if scaling is None else RotaryScaling(**scaling)})
