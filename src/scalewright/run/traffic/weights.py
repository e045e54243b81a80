"""What an engine runs: random weights by a seed, a checkpoint of a run, or a Hugging Face folder with its tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from scalewright.catalog.types import TransformerShape
from scalewright.data.reasoning.tokenizer import FolderTokenizer, open_tokenizer
from scalewright.errors import ConfigError
from scalewright.records.run_directory import MANIFEST, RunDirectory
from scalewright.run.generate.hugging_face import open_hugging_face
from scalewright.run.generate.open import checkpoint_weights
from scalewright.run.language.rotary import LayerConstants
from scalewright.workload.request_plan import PlannedRequest, RequestPlan, made_up_tokens

SIZES = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_hidden", "vocab")
"""What must agree between the model that was named and the folder's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedWeights:
    """A model for the engine, and how text becomes tokens."""

    shape: TransformerShape
    tensors: Iterator[tuple[str, Tensor]] | int
    """By their names in the whole model; or the seed of random ones."""
    constants: LayerConstants | None = None
    tokenizer: FolderTokenizer | None = None
    """None where prompts are tokens."""

    def prompt(self, plan: RequestPlan, request: PlannedRequest) -> tuple[int, ...]:
        """The tokens of a prompt."""
        if self.tokenizer is None or not request.text:
            return made_up_tokens(plan, request, vocab=self.shape.vocab)
        return self.tokenizer.prompt(request.text)


def served_weights(
    folder: str, shape: TransformerShape, *, seed: int, device: torch.device, has_texts: bool
) -> ServedWeights:
    """The weights of a folder; random ones where none is given."""
    if not folder:
        return ServedWeights(shape=shape, tensors=seed)
    path = Path(folder)
    if (path / "config.json").is_file() and any(path.glob("*.safetensors")):
        model = open_hugging_face(path)
        for name in SIZES:
            here, there = getattr(shape, name), getattr(model.shape, name)
            if here != there:
                raise ConfigError(
                    f"--weights {folder}: its model has {name} {there}, and --model has {here}: give --model {folder}"
                )
        tokenizer = open_tokenizer(path, vocab=model.shape.vocab) if has_texts else None
        return ServedWeights(
            shape=model.shape, tensors=model.weights(), constants=model.constants, tokenizer=tokenizer
        )  # fmt: skip
    checkpoint = path if (path / MANIFEST).is_file() else RunDirectory(path).last_checkpoint()
    if checkpoint is None:
        raise ConfigError(
            f"--weights {folder}: holds neither a checkpoint nor safetensors: name a run, a checkpoint, or a Hugging "
            "Face folder"
        )
    if has_texts:
        raise ConfigError(f"--weights {folder}: a checkpoint has no tokenizer: give prompts as token ids")
    return ServedWeights(shape=shape, tensors=checkpoint_weights(checkpoint, device=device))
