"""Answered prompts of uneven length for small models."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from generate_cases import SHAPES, weights_of

from scalewright.run.reasoning.batches import SequenceBatch, TokenSequence, pack_sequences
from scalewright.run.reasoning.trainer import SequenceTrainer, open_trainer
from scalewright.workload.language_run import OptimizerSettings
from scalewright.workload.layout import parse_layout

CPU = torch.device("cpu")
ROW_TOKENS = 30
SETTINGS = OptimizerSettings(learning_rate=1e-2)


def sequences(count: int = 11, *, seed: int = 0, vocab: int = 97) -> list[TokenSequence]:
    generator = torch.Generator().manual_seed(seed)

    def tokens(longest: int) -> list[int]:
        length = int(torch.randint(1, longest + 1, (1,), generator=generator))
        return torch.randint(vocab, (length,), generator=generator).tolist()

    return [TokenSequence(tokens(10), tokens(14)) for _ in range(count)]


def trainer_of(name: str = "llama", *, layout: str = "dp=1", large: bool = True, **options: Any) -> SequenceTrainer:
    """A trainer in fp32; with `large`, its weights are ten times those that training starts with."""
    chosen: dict[str, Any] = {"precision": "fp32", "optimizer": SETTINGS, "seed": 1} | options
    trainer = open_trainer(SHAPES[name], parse_layout(layout), device=CPU, **chosen)
    if large:
        trainer.load_weights(weights_of(SHAPES[name]).items(), where="the case")
    return trainer


def batches_of(items: list[TokenSequence], packing: str = "packed", num_rows: int = 2) -> list[SequenceBatch]:
    return pack_sequences(items, row_tokens=ROW_TOKENS, num_rows=num_rows, packing=packing, device=CPU)  # type: ignore[arg-type]


def log_probs_of(trainer: SequenceTrainer, batches: list[SequenceBatch]) -> dict[int, list[float]]:
    """Log-probabilities of each sequence's response, by the number of the sequence."""
    values = {}
    for batch in batches:
        rows, _ = trainer.log_probs(batch)
        lengths = batch.exists_NR.sum(dim=-1).tolist()
        values |= {i: row[:n].tolist() for i, row, n in zip(batch.indices, rows, lengths, strict=True)}
    return values
