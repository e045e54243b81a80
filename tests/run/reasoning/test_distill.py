"""The gradient of on-policy distillation is that of the exact divergence, in the mean over the student's own tokens."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch

sys.path.insert(0, str(Path(__file__).parent))
from sequence_cases import CPU

from scalewright.run.reasoning.batches import TokenSequence, pack_sequences
from scalewright.run.reasoning.distill import ReverseKl

NUM_TOKENS = 5


def test_the_mean_gradient_is_that_of_the_divergence() -> None:
    generator = torch.Generator().manual_seed(1)
    student = torch.randn(NUM_TOKENS, generator=generator, requires_grad=True)
    teacher = torch.randn(NUM_TOKENS, generator=generator).log_softmax(-1)
    log_probs = student.log_softmax(-1)
    exact = (log_probs.exp() * (log_probs - teacher)).sum()
    (exact_grad,) = torch.autograd.grad(exact, student)

    sequences = [TokenSequence((1,), (token,)) for token in range(NUM_TOKENS)]
    (batch,) = pack_sequences(sequences, row_tokens=8, num_rows=NUM_TOKENS, packing="padded", device=CPU)
    drawn = torch.tensor([sequences[index].response[0] for index in batch.indices])
    mean = torch.zeros(NUM_TOKENS)
    for row in range(NUM_TOKENS):
        objective = ReverseKl(teacher=[teacher[drawn][:, None]])
        chosen = student.log_softmax(-1)[drawn][:, None]
        only = torch.where(torch.arange(NUM_TOKENS)[:, None] == row, chosen, chosen.detach())
        result = objective(0, batch, only, torch.zeros_like(only), denominator=1.0)
        (grad,) = torch.autograd.grad(result.loss, student)
        mean += log_probs.detach().exp()[drawn[row]] * grad
    assert torch.allclose(mean, exact_grad, atol=1e-6)
    assert objective.weight(0, batch) == NUM_TOKENS
