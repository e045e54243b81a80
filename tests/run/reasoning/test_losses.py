"""Losses of rewarded answers: the mask of IcePop under anything, gradients against closed forms, TRL's formula."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")
import torch
from torch import Tensor

from scalewright.errors import ConfigError
from scalewright.run.reasoning.losses import (
    engine_weights,
    group_advantages,
    k3,
    kept_groups,
    overlong_penalties,
    policy_loss,
    token_log_probs,
)
from scalewright.workload.reasoning.policy_loss import PRESETS, PolicyLoss, from_body
from scalewright.workload.reasoning.policy_loss import policy_loss as preset

NUM, LENGTH, LONGEST = 6, 9, 12
NAMES = sorted(PRESETS)
LEVELS = ["token", "sequence"]
AGGREGATIONS = ["sequence-mean", "token-mean", "constant", "budget"]
TOKEN_BUDGET = 70.0
ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True, width=32)


def drawn(seed: int = 0, *, spread: float = 0.5, mismatch: float = 0.6) -> dict[str, Any]:
    """Answers of uneven length with log-probabilities of trainer, old trainer, engine and reference."""
    generator = torch.Generator().manual_seed(seed)

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(NUM, LENGTH, generator=generator, dtype=torch.float64)

    old = -noise(1.0).abs() - 0.1
    lengths = torch.randint(1, LENGTH + 1, (NUM,), generator=generator)
    return {
        "log_probs_BL": (old + noise(spread)).requires_grad_(),
        "old_log_probs_BL": old,
        "engine_log_probs_BL": old + noise(mismatch),
        "reference_log_probs_BL": old + noise(spread),
        "advantages_B": torch.randn(NUM, generator=generator, dtype=torch.float64),
        "mask_BL": torch.arange(LENGTH)[None] < lengths[:, None],
        "max_response": LONGEST,
        "token_budget": TOKEN_BUDGET,
    }


def closed_form_gradient(chosen: PolicyLoss, case: dict[str, Any]) -> list[list[float]]:
    """The gradient for each log-probability, token by token, from the derivative of the equation."""
    log_probs, old, engine, reference = (
        case[f"{name}_BL"].tolist()
        for name in ("log_probs", "old_log_probs", "engine_log_probs", "reference_log_probs")
    )
    mask, advantages = case["mask_BL"].tolist(), case["advantages_B"].tolist()
    counts = [sum(row) for row in mask]
    whole = {
        "sequence-mean": NUM, "token-mean": sum(counts), "constant": NUM * LONGEST, "budget": TOKEN_BUDGET,
    }[chosen.aggregation]  # fmt: skip
    gradient = [[0.0] * LENGTH for _ in range(NUM)]
    for i in range(NUM):
        share = 1.0 / whole / (counts[i] if chosen.aggregation == "sequence-mean" else 1)
        mean = sum(log_probs[i][t] - old[i][t] for t in range(counts[i])) / counts[i]
        for t in range(counts[i]):
            ratio = math.exp(mean if chosen.ratio_level == "sequence" else log_probs[i][t] - old[i][t])
            k = math.exp(old[i][t] - engine[i][t])
            weight = {"none": 1.0, "tis": min(k, chosen.tis_cap)}.get(
                chosen.correction, k if chosen.band_low <= k <= chosen.band_high else 0.0
            )
            too_high = advantages[i] > 0 and ratio > 1 + chosen.clip_high
            too_low = advantages[i] < 0 and ratio < 1 - chosen.clip_low
            slope = 0.0 if too_high or too_low else weight * ratio * advantages[i]
            pull = chosen.kl_coef * (math.exp(reference[i][t] - log_probs[i][t]) - 1.0)
            gradient[i][t] = -share * (slope + pull)
    return gradient


@pytest.mark.parametrize("correction", ["none", "tis", "icepop"])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("level", LEVELS)
def test_gradient_is_that_of_the_equation(correction: str, aggregation: str, level: str) -> None:
    chosen = preset(
        "grpo", correction=correction, aggregation=aggregation, ratio_level=level, kl_coef=0.05, clip_high=0.28
    )
    for seed in range(3):
        case = drawn(seed)
        result = policy_loss(chosen, **case)
        result.loss.backward()
        expected = torch.tensor(closed_form_gradient(chosen, case), dtype=torch.float64)
        torch.testing.assert_close(case["log_probs_BL"].grad, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_autograd_agrees_with_finite_differences(name: str) -> None:
    """Only of losses with a ratio per token: the token form of a sequence's ratio has its gradient by construction."""
    chosen, case = preset(name, kl_coef=0.1, ratio_level="token", clip_low=0.2, clip_high=0.3), drawn(1)
    others = {key: value for key, value in case.items() if key != "log_probs_BL"}
    assert torch.autograd.gradcheck(
        lambda values: policy_loss(chosen, log_probs_BL=values, **others).loss, case["log_probs_BL"]
    )


def test_a_sequence_ratio_has_the_gradient_of_its_definition() -> None:
    """Without a correction, the token form is the sequence-level loss of GSPO in value and gradient."""
    chosen, case = preset("gspo", correction="none", clip_low=0.2, clip_high=0.2), drawn(2)
    result = policy_loss(chosen, **case)
    result.loss.backward()
    plain = case["log_probs_BL"].detach().clone().requires_grad_()
    counts = case["mask_BL"].sum(dim=-1)
    ratio = (((plain - case["old_log_probs_BL"]) * case["mask_BL"]).sum(dim=-1) / counts).exp()
    terms = torch.minimum(ratio * case["advantages_B"], ratio.clamp(0.8, 1.2) * case["advantages_B"])
    loss = -terms.mean()
    loss.backward()
    assert float(result.loss.detach()) == pytest.approx(float(loss.detach()))
    torch.testing.assert_close(case["log_probs_BL"].grad, plain.grad)


def trl_loss(kind: str, case: dict[str, Any], *, low: float, high: float, beta: float, weights: Tensor) -> Tensor:
    """TRL's loss, from its equations (huggingface/trl, trl/trainer/grpo_trainer.py, `_compute_loss`, 2026-07)."""
    mask, advantages = case["mask_BL"].double(), case["advantages_B"].unsqueeze(1)
    difference = case["log_probs_BL"] - case["old_log_probs_BL"]
    if kind == "gspo":
        difference = ((difference * mask).sum(-1) / mask.sum(-1)).unsqueeze(-1)
    ratio = difference.exp()
    loss = -torch.min(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages) * weights
    gap = case["reference_log_probs_BL"] - case["log_probs_BL"]
    loss = loss + beta * (gap.exp() - gap - 1)
    if kind in ("grpo", "gspo"):
        return ((loss * mask).sum(-1) / mask.sum(-1)).mean()
    if kind == "dr-grpo":
        return (loss * mask).sum() / (NUM * LONGEST)
    return (loss * mask).sum() / mask.sum()


@pytest.mark.parametrize("correction", ["none", "tis", "icepop"])
@pytest.mark.parametrize("kind", sorted(set(NAMES) - {"c3po"}))
def test_values_are_those_of_a_public_formula(kind: str, correction: str) -> None:
    """The correction multiplies each token's loss there as well; `token_truncate` and `token_mask` are its names."""
    for seed in range(5):
        case, chosen = drawn(seed), preset(kind, correction=correction, kl_coef=0.02)
        k = (case["old_log_probs_BL"] - case["engine_log_probs_BL"]).exp()
        weights = {"none": torch.ones_like(k), "tis": k.clamp(max=2.0)}.get(correction, k * ((k >= 0.5) & (k <= 5.0)))
        expected = trl_loss(kind, case, low=chosen.clip_low, high=chosen.clip_high, beta=0.02, weights=weights)
        value = policy_loss(chosen, **case).loss
        assert float(value.detach()) == pytest.approx(float(expected.detach()), rel=1e-9)


@given(log_k=st.lists(ANY_FLOAT, min_size=1, max_size=20), low=st.floats(0.01, 1.0), high=st.floats(1.0, 100.0))
@settings(max_examples=200, deadline=None)
def test_icepop_keeps_the_quotient_inside_the_band_and_nothing_outside(
    log_k: list[float], low: float, high: float
) -> None:
    chosen = preset("grpo", correction="icepop", band_low=low, band_high=high)
    weights = engine_weights(chosen, torch.tensor([log_k])).tolist()[0]
    for value, weight in zip(log_k, weights, strict=True):
        assert math.isfinite(weight)
        if math.isfinite(value) and math.log(low) + 1e-5 < value < math.log(high) - 1e-5:
            assert weight == pytest.approx(math.exp(value), rel=1e-5)
        elif not math.isfinite(value) or not math.log(low) - 1e-5 < value < math.log(high) + 1e-5:
            assert weight == 0.0
        else:
            assert weight == 0.0 or weight == pytest.approx(math.exp(value), rel=1e-4)


@pytest.mark.parametrize("k", [0.5, 5.0])
def test_the_bounds_themselves_are_inside(k: float) -> None:
    assert float(engine_weights(preset("grpo"), torch.tensor([[k]]).log())) == pytest.approx(k)


@given(
    old=st.lists(ANY_FLOAT, min_size=4, max_size=4),
    engine=st.lists(ANY_FLOAT, min_size=4, max_size=4),
    now=st.lists(st.floats(-1e4, 0.0, width=32), min_size=4, max_size=4),
    advantage=st.floats(-10.0, 10.0, width=32),
    name=st.sampled_from(NAMES),
    correction=st.sampled_from(["none", "tis", "icepop"]),
)
@settings(max_examples=300, deadline=None)
def test_no_quotient_makes_a_loss_or_gradient_that_is_not_a_number(
    old: list[float], engine: list[float], now: list[float], advantage: float, name: str, correction: str
) -> None:
    log_probs = torch.tensor([now], requires_grad=True)
    result = policy_loss(
        preset(name, correction=correction),
        log_probs_BL=log_probs,
        old_log_probs_BL=torch.tensor([old]),
        engine_log_probs_BL=torch.tensor([engine]),
        advantages_B=torch.tensor([advantage]),
        mask_BL=torch.tensor([[True, True, True, False]]),
        max_response=4,
        token_budget=8.0,
    )
    result.loss.backward()
    assert log_probs.grad is not None
    assert bool(result.loss.isfinite())
    assert bool(log_probs.grad.isfinite().all())
    assert float(log_probs.grad[0, 3]) == 0.0
    assert all(math.isfinite(value) for value in result.sums.numbers().values())


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("level", LEVELS)
def test_a_masked_token_gets_no_gradient_under_any_aggregation(aggregation: str, level: str) -> None:
    case = drawn(3, mismatch=0.01)
    case["engine_log_probs_BL"][0, 0] = case["old_log_probs_BL"][0, 0] - 3.0  # k is e^3, beyond the band
    case["advantages_B"][:] = 1.0
    gradients = {}
    for correction in ("none", "icepop"):
        chosen = preset("grpo", aggregation=aggregation, ratio_level=level, correction=correction, clip_high=9.0)
        log_probs = case["log_probs_BL"].detach().clone().requires_grad_()
        result = policy_loss(chosen, **(case | {"log_probs_BL": log_probs}))
        result.loss.backward()
        assert log_probs.grad is not None
        gradients[correction] = log_probs.grad
        assert (result.masked_frac > 0) == (correction == "icepop")
        assert result.sums.outside_frac == pytest.approx(1 / int(case["mask_BL"].sum()))
    assert float(gradients["none"][0, 0]) != 0.0
    assert float(gradients["icepop"][0, 0]) == 0.0
    assert bool((gradients["icepop"][1, : int(case["mask_BL"][1].sum())] != 0.0).all())


def test_figures_of_two_engines_that_agree_and_of_two_that_do_not() -> None:
    case = drawn(4)
    same = policy_loss(preset("grpo"), **(case | {"engine_log_probs_BL": case["old_log_probs_BL"]}))
    assert (same.masked_frac, same.kl_engines, same.effective_sample_frac) == (0.0, 0.0, pytest.approx(1.0))
    other = policy_loss(preset("grpo"), **case)
    k = (case["old_log_probs_BL"] - case["engine_log_probs_BL"]).exp()[case["mask_BL"]]
    assert other.masked_frac == pytest.approx(float(((k < 0.5) | (k > 5.0)).double().mean()))
    assert other.effective_sample_frac == pytest.approx(float(k.sum() ** 2 / (len(k) * k.square().sum())))
    assert other.kl_engines == pytest.approx(float((k - 1 - k.log()).mean()))


def test_k3_estimates_the_divergence_of_two_distributions() -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    p = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
    samples = torch.multinomial(q, 200_000, replacement=True, generator=generator)
    estimate = k3((p / q).log()[samples])
    assert float(estimate.mean()) == pytest.approx(float((q * (q / p).log()).sum()), rel=0.02)
    assert float(estimate.min()) >= 0.0


def test_advantages_are_rewards_against_their_group() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.5, 0.5]])
    scaled = group_advantages(preset("grpo"), rewards)
    assert scaled[0].tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5], rel=1e-4)
    assert scaled[1].tolist() == [0.0] * 4
    assert group_advantages(preset("dr-grpo"), rewards)[0].tolist() == [0.75, -0.25, -0.25, -0.25]
    assert kept_groups(preset("dapo"), rewards).tolist() == [True, False]
    assert kept_groups(preset("grpo"), rewards).tolist() == [True, True]


def test_a_group_of_one_and_a_reward_that_is_no_number_are_refused() -> None:
    with pytest.raises(ConfigError, match="group of one"):
        group_advantages(preset("grpo"), torch.ones(3, 1))
    with pytest.raises(ConfigError, match="not a finite number"):
        group_advantages(preset("grpo"), torch.tensor([[1.0, math.nan]]))


def test_long_answers_lose_reward_towards_the_limit() -> None:
    chosen = preset("dapo", overlong_tokens=4)
    assert overlong_penalties(chosen, [6, 7, 8, 10, 11], max_response=10) == [0.0, -0.25, -0.5, -1.0, -1.0]
    assert overlong_penalties(preset("grpo"), [99], max_response=10) == [0.0]


def test_log_probabilities_and_entropy_are_those_of_the_softmax() -> None:
    scores = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[0, 6, 3], [1, 2, 5]])
    log_probs, entropy = token_log_probs(scores, targets)
    expected = scores.log_softmax(dim=-1)
    torch.testing.assert_close(log_probs, expected.gather(-1, targets[..., None])[..., 0])
    torch.testing.assert_close(entropy, torch.distributions.Categorical(logits=scores).entropy())
    scores[0, 0, 5] = -torch.inf
    assert bool(token_log_probs(scores, targets)[1].isfinite().all())


@pytest.mark.parametrize(
    ("field", "value"),
    [("clip_low", 1.0), ("band_low", 0.0), ("band_low", 2.0), ("band_high", 0.5), ("tis_cap", 0.5), ("kl_coef", -1.0),
     ("clip_high", math.nan), ("overlong_tokens", -1), ("correction", "ice"), ("aggregation", "mean")],
)  # fmt: skip
def test_bounds_that_make_no_sense_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        preset("grpo", **{field: value})


def test_unknown_losses_and_fields_are_refused() -> None:
    with pytest.raises(ConfigError, match="'ppo' is not known"):
        preset("ppo")
    with pytest.raises(ConfigError, match="clip"):
        preset("grpo", clip=0.2)
    case = {key: value for key, value in drawn().items() if key != "reference_log_probs_BL"}
    with pytest.raises(ConfigError, match="reference"):
        policy_loss(preset("grpo", kl_coef=0.1), **case)
    assert from_body(preset("dapo").document(), where="here") == preset("dapo")
    with pytest.raises(ConfigError, match="clips"):
        from_body({"clips": 1}, where="here")
