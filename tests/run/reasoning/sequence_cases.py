"""Answered prompts of uneven length for small models."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
from generate_cases import SHAPES as GENERATE_SHAPES
from generate_cases import weights_of

from scalewright.records.run_directory import RunDirectory
from scalewright.run.checkpoint import Checkpointer
from scalewright.run.reasoning.batches import SequenceBatch, TokenSequence, pack_sequences
from scalewright.run.reasoning.objectives import Objective, PolicyData, PolicyObjective, ResponseLoss
from scalewright.run.reasoning.trainer import SequenceTrainer, open_trainer
from scalewright.workload.language_run import OptimizerSettings
from scalewright.workload.layout import parse_layout
from scalewright.workload.reasoning.lora_settings import LoraSettings
from scalewright.workload.reasoning.policy_loss import policy_loss

CPU = torch.device("cpu")
ROW_TOKENS = 30
# Tensor parallelism cuts the vocabulary into equal parts.
EVEN = {f"even-{name}": GENERATE_SHAPES[name].model_copy(update={"vocab": 96}) for name in ("gpt", "llama")}
SHAPES = GENERATE_SHAPES | EVEN
SETTINGS = OptimizerSettings(learning_rate=1e-2)


def sequences(count: int = 11, *, seed: int = 0, vocab: int = 96) -> list[TokenSequence]:
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


def train_some(name: str, layout: str, policy: str, *, steps: int = 3, **options: Any) -> dict[str, Any]:
    """Train on sequences that data-parallel ranks share out unevenly; `policy` names a policy loss, or is empty."""
    trainer = trainer_of(name, layout=layout, **options)
    dp, rank = int(trainer.position.layout.dp), trainer.position.dp_rank
    items = sequences(13, vocab=SHAPES[name].vocab)
    owner = [number % dp if number < 9 else 0 for number in range(len(items))]
    own = [item for item, rank_of_item in zip(items, owner, strict=True) if rank_of_item == rank]
    batches, rewards = batches_of(own, num_rows=1), [(-1.0) ** len(item.response) for item in own]
    objective: Objective = ResponseLoss()
    if policy:
        pairs = zip(batches, trainer.log_probs_of(batches), strict=True)
        data = [policy_data(batch, old, rewards) for batch, old in pairs]
        objective = PolicyObjective(settings=policy_loss(policy, kl_coef=0.02), data=data, max_response=20)
    results = [trainer.update(batches, objective) for _ in range(steps)]
    return {
        "losses": [float(result.loss) for result in results],
        "norms": [float(result.grad_norm) for result in results],
        "numbers": results[-1].numbers,
        "num_tokens": results[0].sums.num_tokens,
        "weights": {key: values.clone().tolist() for key, values in trainer.named_weights() if "layers.1" in key},
        "log_probs": log_probs_of(trainer, batches_of(items)),
    }


def train_and_go_on(name: str, layout: str, folder: str, *, lora: bool = False) -> list[list[float]]:
    """Losses of four updates, and of the last two by a trainer that begins with the checkpoint after the second."""
    options: dict[str, Any] = {"lora": LoraSettings(rank=3)} if lora else {}
    trainer, losses = trainer_of(name, layout=layout, **options), []
    dp, rank = int(trainer.position.layout.dp), trainer.position.dp_rank
    batches = batches_of(sequences(13)[rank::dp], num_rows=1)
    saver = Checkpointer(RunDirectory(Path(folder)), keep=2, layout=layout)
    for number in range(4):
        if number == 2:
            saver.save(number, trainer.tensors(), trainer.state())
        losses.append(float(trainer.update(batches, ResponseLoss()).loss))
    other = trainer_of(name, layout=layout, **options)
    tensors = other.tensors()
    loaded = saver.load_newest(tensors)
    assert loaded is not None
    other.restore(loaded, tensors)
    saver.close()
    return [losses, [float(other.update(batches, ResponseLoss()).loss) for _ in range(2)]]


def policy_data(batch: SequenceBatch, old: Tensor, rewards: list[float]) -> PolicyData:
    """Old and reference log-probabilities are the trainer's; the engine's differ from them by a rule."""
    noise = 0.6 * torch.sin(7.0 * old * torch.arange(1, old.shape[1] + 1))
    return PolicyData(
        advantages_N=batch.per_sequence(rewards),
        engine_log_probs_NR=old + noise,
        old_log_probs_NR=old,
        reference_log_probs_NR=old,
    )
