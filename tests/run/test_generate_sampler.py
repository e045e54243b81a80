"""Tokens are drawn from the distribution that temperature, top_k and top_p leave, and log-probabilities are its own."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from scalewright.run.generate.requests import GREEDY, Request, Sampling, random_stream
from scalewright.run.generate.sampler import SamplerRows, sample, sampler_kind, uniforms

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, 3.0])
NUM_DRAWS = 20_000


def draws(sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Many draws of one distribution: position after position of one answer."""
    stream = random_stream(Request(id="r", prompt=(1,), max_new_tokens=1, sampling=sampling), 0)
    rows = SamplerRows(
        torch.full((NUM_DRAWS,), sampling.temperature),
        torch.full((NUM_DRAWS,), sampling.top_p),
        torch.full((NUM_DRAWS,), sampling.top_k),
        torch.from_numpy(uniforms([stream] * NUM_DRAWS, list(range(NUM_DRAWS)))),
    )
    return sample(LOGITS.expand(NUM_DRAWS, -1), rows, sampler_kind([sampling]))


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(temperature=1.0), [0, 1, 2, 3, 4, 5]),
        (Sampling(temperature=0.5, seed=4), [0, 1, 2, 3, 4, 5]),
        (Sampling(temperature=1.0, top_k=3), [0, 1, 5]),
        (Sampling(temperature=1.0, top_p=0.7), [5, 0]),
        (Sampling(temperature=2.0, top_k=4, top_p=0.9), [5, 0, 1, 2]),
        (Sampling(temperature=1.0, top_p=1e-6), [5]),
    ],
)
def test_frequencies_and_log_probabilities_are_those_of_the_distribution(sampling: Sampling, kept: list[int]) -> None:
    tokens, log_probs = draws(sampling)
    scores = torch.full_like(LOGITS, -torch.inf)
    scores[kept] = LOGITS[kept] / sampling.temperature
    expected = scores.softmax(dim=-1)
    share = torch.bincount(tokens, minlength=6) / NUM_DRAWS
    # four standard deviations of a count of 20,000
    assert torch.allclose(share, expected, atol=4 * (0.25 / NUM_DRAWS) ** 0.5)
    assert torch.allclose(log_probs, expected.log()[tokens], atol=1e-5)
    assert set(tokens.tolist()) <= set(kept)


@pytest.mark.parametrize("others", [GREEDY, Sampling(), Sampling(top_k=2)])
def test_greedy_rows_stay_greedy_beside_others(others: Sampling) -> None:
    samplings = [GREEDY, others]
    rows = SamplerRows(
        torch.tensor([s.temperature for s in samplings]),
        torch.tensor([s.top_p for s in samplings]),
        torch.tensor([s.top_k for s in samplings]),
        torch.tensor([1.0, 0.3]),
    )
    tokens, log_probs = sample(LOGITS.expand(2, -1), rows, sampler_kind(samplings))
    assert int(tokens[0]) == 5
    assert float(log_probs[0]) == pytest.approx(float(LOGITS.log_softmax(-1)[5]), abs=1e-6)


def test_random_numbers_depend_on_answer_and_position_alone() -> None:
    streams = [
        random_stream(Request(id=name, prompt=(1,), max_new_tokens=1, sampling=Sampling(seed=seed)), index)
        for name in ("a", "b")
        for seed in (0, 1)
        for index in (0, 1)
    ]
    assert len(set(streams)) == 8
    together = uniforms(streams, [5] * 8)
    assert [float(uniforms([stream], [5])[0]) for stream in streams] == together.tolist()
    many = uniforms([streams[0]] * 10_000, list(range(10_000)))
    assert many.min() > 0
    assert many.max() <= 1
    assert np.mean(many) == pytest.approx(0.5, abs=0.02)
    assert abs(np.corrcoef(many[:-1], many[1:])[0, 1]) < 0.05


def test_the_extremes_of_a_uniform_number_name_tokens_that_can_be() -> None:
    scores = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf]]).expand(2, -1)
    ones = torch.ones(2)
    rows = SamplerRows(ones, ones, torch.zeros(2, dtype=torch.int64), torch.tensor([2.0**-24, 1.0]))
    assert sample(scores, rows, "plain")[0].tolist() == [1, 2]
