"""Losses of reinforcement learning on answers that another engine wrote, as pure functions of log-probabilities.

Tensors carry their dimensions in capitals: B answers, L tokens of the longest answer, G groups of N answers, V tokens
of the vocabulary. A mask says which tokens count; whatever stands elsewhere has no part in values or gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from scalewright.errors import ConfigError
from scalewright.workload.reasoning.policy_loss import PolicyLoss

MAX_LOG_RATIO = 20.0
"""Quotients of probabilities are cut off at e^20 and e^-20, so that fp32 holds them and their squares' sums."""
STD_EPSILON = 1e-6
SUMS = (
    "num_tokens", "num_sequences", "masked", "outside", "kl_engines", "weight", "square_weight", "clipped",
    "kl_reference", "entropy",
)  # fmt: skip


@dataclass(frozen=True)
class LossSums:
    """Sums over counted tokens. They add over micro-batches and ranks; means are computed from the whole."""

    values_S: Tensor
    """One number for each name of `SUMS`, in fp64."""

    @cached_property
    def _sums(self) -> dict[str, float]:
        return dict(zip(SUMS, self.values_S.tolist(), strict=True))

    def _mean(self, name: str) -> float:
        return self._sums[name] / max(self._sums["num_tokens"], 1.0)

    @property
    def num_tokens(self) -> int:
        return int(self._sums["num_tokens"])

    @property
    def num_sequences(self) -> int:
        return int(self._sums["num_sequences"])

    @property
    def masked_frac(self) -> float:
        """Tokens that the correction took out of the loss."""
        return self._mean("masked")

    @property
    def outside_frac(self) -> float:
        """Tokens outside IcePop's band, whether or not the correction is on."""
        return self._mean("outside")

    @property
    def kl_engines(self) -> float:
        """Divergence of the trainer from the engine that wrote the tokens, nats per token."""
        return self._mean("kl_engines")

    @property
    def effective_sample_frac(self) -> float:
        """Share of the tokens that count after weighting each by k: (sum k)^2 / (n sum k^2)."""
        square = self._sums["square_weight"]
        return self._sums["weight"] ** 2 / (square * max(self._sums["num_tokens"], 1.0)) if square > 0 else 0.0

    @property
    def clip_frac(self) -> float:
        return self._mean("clipped")

    @property
    def kl_reference(self) -> float:
        return self._mean("kl_reference")

    @property
    def entropy(self) -> float:
        return self._mean("entropy")

    def numbers(self) -> dict[str, float]:
        """The figures that a step reports."""
        names = (
            "masked_frac",
            "outside_frac",
            "kl_engines",
            "effective_sample_frac",
            "clip_frac",
            "kl_reference",
            "entropy",
        )
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class PolicyLossResult:
    """The loss of a batch, and what it saw on the way."""

    loss: Tensor
    sums: LossSums

    @property
    def masked_frac(self) -> float:
        return self.sums.masked_frac

    @property
    def kl_engines(self) -> float:
        return self.sums.kl_engines

    @property
    def effective_sample_frac(self) -> float:
        return self.sums.effective_sample_frac

    @property
    def clip_frac(self) -> float:
        return self.sums.clip_frac

    @property
    def kl_reference(self) -> float:
        return self.sums.kl_reference


def token_log_probs(scores_BLV: Tensor, targets_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of each target, and the entropy of the distribution it is drawn from, in fp32."""
    scores_BLV = scores_BLV.float()
    log_sum_BL = scores_BLV.logsumexp(dim=-1)
    chosen_BL = scores_BLV.gather(-1, targets_BL[..., None]).squeeze(-1)
    probabilities_BLV = (scores_BLV - log_sum_BL[..., None]).exp()
    finite_BLV = scores_BLV.masked_fill(probabilities_BLV == 0.0, 0.0)  # a score of -inf has no part in the entropy
    return chosen_BL - log_sum_BL, log_sum_BL - (probabilities_BLV * finite_BLV).sum(dim=-1)


def group_advantages(settings: PolicyLoss, rewards_GN: Tensor) -> Tensor:
    """How much better than its group each answer is.

    Equation  A_i = r_i - mean(r);  divided by std(r) + 1e-6 unless the loss says otherwise
    Source    shao2024 (arXiv:2402.03300), section 4.1.2; without the deviation liu2025 (arXiv:2503.20783), section 3.2
    Assumes   the sample's standard deviation (n - 1), as public trainers compute it; a group of equal rewards has
              advantages of 0
    Checked   tests/run/reasoning/test_losses.py: against a plain computation; equal rewards
    """
    if rewards_GN.shape[-1] < 2:
        raise ConfigError("a group of one answer has no advantage over others: take 2 or more answers per prompt")
    if not bool(torch.isfinite(rewards_GN).all()):
        raise ConfigError("a reward is not a finite number: the reward must return one for every answer")
    centred_GN = rewards_GN - rewards_GN.mean(dim=-1, keepdim=True)
    if not settings.divides_by_std:
        return centred_GN
    std_G1 = centred_GN.square().sum(dim=-1, keepdim=True).div(rewards_GN.shape[-1] - 1).sqrt()
    return centred_GN / (std_G1 + STD_EPSILON)


def kept_groups(settings: PolicyLoss, rewards_GN: Tensor) -> Tensor:
    """Which groups take part: all, or those whose rewards differ (dynamic sampling).

    Source  yu2025 (arXiv:2503.14476), section 3.2
    """
    if not settings.drops_equal_groups:
        return torch.ones(rewards_GN.shape[0], dtype=torch.bool, device=rewards_GN.device)
    return (rewards_GN != rewards_GN[:, :1]).any(dim=-1)


def overlong_penalties(settings: PolicyLoss, lengths: Sequence[int], *, max_response: int) -> list[float]:
    """What is added to the reward of long answers.

    Equation  0 up to L - C tokens;  (L - C - n) / C up to L;  -1 beyond
    Source    yu2025 (arXiv:2503.14476), equation 13: L the longest answer, C its last part
    Assumes   C = overlong_tokens; 0 means no penalty
    Checked   tests/run/reasoning/test_losses.py: the corners
    """
    cache = settings.overlong_tokens
    if cache == 0:
        return [0.0] * len(lengths)
    return [max(min((max_response - cache - length) / cache, 0.0), -1.0) for length in lengths]


def engine_weights(settings: PolicyLoss, log_k_BL: Tensor) -> Tensor:
    """The factor of each token's term for what separates trainer and engine.

    Equation  k = p_train / p_engine, both of the old weights;  none: 1;  tis: min(k, C);
              icepop: k if alpha <= k <= beta, else 0
    Source    ling2025 (arXiv:2510.18855), section 3.1 for IcePop; yao2025 for TIS
    Assumes   log k is detached; the band is tested in log space, so that a quotient beyond every float has the weight
              0 and no product with infinity is formed; a log k that is not a number has the weight 0
    Checked   tests/run/reasoning/test_losses.py: any log k, infinities and NaN
    """
    log_k_BL = log_k_BL.detach()
    if settings.correction == "none":
        return torch.ones_like(log_k_BL)
    defined_BL = log_k_BL.isfinite()
    if settings.correction == "tis":
        capped_BL = log_k_BL.nan_to_num(nan=-torch.inf).clamp(max=_log(settings.tis_cap, log_k_BL))
        return capped_BL.exp()
    inside_BL = in_band(settings, log_k_BL)
    return torch.where(inside_BL & defined_BL, log_k_BL.masked_fill(~inside_BL, 0.0).exp(), 0.0)


def in_band(settings: PolicyLoss, log_k_BL: Tensor) -> Tensor:
    """Whether IcePop keeps a token. A log k that is not a number is not inside."""
    low, high = _log(settings.band_low, log_k_BL), _log(settings.band_high, log_k_BL)
    return (log_k_BL >= low) & (log_k_BL <= high)


def k3(log_ratio_BL: Tensor) -> Tensor:
    """Estimate of a divergence from samples of its first distribution, never negative.

    Equation  KL(q || p) = E_q [ e^d - 1 - d ],  d = log p - log q
    Source    schulman2020 (Approximating KL divergence), estimator k3
    Assumes   |d| is cut off at 20
    Checked   tests/run/reasoning/test_losses.py: mean over samples of two known distributions
    """
    bounded_BL = log_ratio_BL.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.expm1(bounded_BL) - bounded_BL


def policy_loss(
    settings: PolicyLoss,
    *,
    log_probs_BL: Tensor,
    old_log_probs_BL: Tensor,
    engine_log_probs_BL: Tensor,
    advantages_B: Tensor,
    mask_BL: Tensor,
    reference_log_probs_BL: Tensor | None = None,
    entropy_BL: Tensor | None = None,
    max_response: int = 0,
    token_budget: float = 0.0,
    denominator: float | None = None,
) -> PolicyLossResult:
    """The loss of a batch of answers, a number to minimise.

    Equation  loss = -(1/D) sum_i c_i sum_t [ M(k_it) min(r_it A_i, clip(r_it, 1 - e_low, 1 + e_high) A_i) - g KL_it ]
              r_it = p(theta) / p(theta_old), of a token or of a sequence;  k_it = p_train(theta_old) / p_engine
              sequence-mean: c = 1 / tokens of i, D sequences;  token-mean: c = 1, D tokens;
              constant: c = 1, D sequences x longest answer allowed;  budget: c = 1, D the token budget
    Source    shao2024 (arXiv:2402.03300), equation 3; yu2025 (arXiv:2503.14476), equation 8; liu2025
              (arXiv:2503.20783), section 3.2; zheng2025 (arXiv:2507.18071), equations 5 and 13; ling2025
              (arXiv:2510.18855), equation 2 for M, and C3PO for the budget
    Assumes   M is detached and multiplies each token's own term under every aggregation. A sequence's ratio is used in
              the token form of its paper: same value and gradient without M, and a token that M takes out gets no
              gradient. |log r| is cut off at 20. Tokens that M takes out still count in D.
    Checked   tests/run/reasoning/test_losses.py: gradients against closed forms, values against TRL's formula
    """
    counted_BL = mask_BL.bool()
    log_probs_BL = log_probs_BL.masked_fill(~counted_BL, 0.0)
    old_BL, engine_BL = (_where(x.detach(), counted_BL) for x in (old_log_probs_BL, engine_log_probs_BL))
    log_k_BL = old_BL - engine_BL
    weights_BL = engine_weights(settings, log_k_BL)
    num_tokens_B = counted_BL.sum(dim=-1)
    ratio_BL = _ratio(settings, log_probs_BL, old_BL, num_tokens_B)
    advantages_B1 = advantages_B.detach()[:, None].to(ratio_BL.dtype)
    clipped_BL = ratio_BL.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high)
    plain_BL, limited_BL = ratio_BL * advantages_B1, clipped_BL * advantages_B1
    terms_BL = weights_BL * torch.minimum(plain_BL, limited_BL)
    kl_BL = None
    if reference_log_probs_BL is not None:
        kl_BL = k3(_where(reference_log_probs_BL.detach(), counted_BL) - log_probs_BL)
        terms_BL = terms_BL - settings.kl_coef * kl_BL if settings.needs_reference else terms_BL
    elif settings.needs_reference:
        raise ConfigError(f"kl_coef is {settings.kl_coef}: give log-probabilities of a reference model, or kl_coef 0")
    terms_BL = terms_BL.masked_fill(~counted_BL, 0.0)
    total = (
        (terms_BL / num_tokens_B.clamp(min=1)[:, None]).sum()
        if settings.aggregation == "sequence-mean"
        else terms_BL.sum()
    )
    if denominator is None:
        num_tokens = num_tokens_B.tolist()
        each = token_budget / max(sum(number > 0 for number in num_tokens), 1)
        denominator = loss_weight(settings, num_tokens, max_response=max_response, budget_per_sequence=each)
    sums = _sums(
        settings,
        counted_BL,
        log_k_BL,
        clipped_BL=limited_BL.detach() < plain_BL.detach(),
        kl_BL=kl_BL,
        entropy_BL=entropy_BL,
    )
    return PolicyLossResult(loss=-total / max(denominator, 1.0), sums=sums)


def loss_weight(
    settings: PolicyLoss, num_tokens: Sequence[int], *, max_response: int, budget_per_sequence: float = 0.0
) -> float:
    """D of the loss for answers with so many counted tokens; it adds over micro-batches and ranks.

    `budget_per_sequence` is the token budget of an update, divided by its answers with counted tokens.
    """
    num_sequences = sum(number > 0 for number in num_tokens)
    if settings.aggregation == "token-mean":
        return float(sum(num_tokens))
    if settings.aggregation == "sequence-mean":
        return float(num_sequences)
    if settings.aggregation == "budget":
        if budget_per_sequence <= 0.0:
            raise ConfigError("aggregation budget divides by the token budget: give one of 1 or more")
        return num_sequences * budget_per_sequence
    if max_response < 1:
        raise ConfigError("aggregation constant divides by the longest answer allowed: give max_response of 1 or more")
    return float(num_sequences * max_response)


def _ratio(settings: PolicyLoss, log_probs_BL: Tensor, old_BL: Tensor, num_tokens_B: Tensor) -> Tensor:
    """New over old policy. A sequence's own ratio stands at each of its tokens, with the gradient of that token."""
    log_ratio_BL = log_probs_BL - old_BL
    log_ratio_BL = log_ratio_BL.masked_fill(log_ratio_BL.isnan(), 0.0).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if settings.ratio_level == "token":
        return log_ratio_BL.exp()
    mean_B1 = (log_ratio_BL.detach().sum(dim=-1) / num_tokens_B.clamp(min=1))[:, None]
    return (mean_B1 + log_ratio_BL - log_ratio_BL.detach()).exp()


def _sums(
    settings: PolicyLoss, counted_BL: Tensor, log_k_BL: Tensor, *, clipped_BL: Tensor, kl_BL: Tensor | None,
    entropy_BL: Tensor | None,
) -> LossSums:  # fmt: skip
    def total(values_BL: Tensor | None) -> Tensor:
        if values_BL is None:
            return torch.zeros((), dtype=torch.float64, device=counted_BL.device)
        return values_BL.detach().double().masked_fill(~counted_BL, 0.0).sum()

    outside_BL = ~in_band(settings, log_k_BL)
    bounded_BL = log_k_BL.nan_to_num(nan=-torch.inf).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).double()
    masked = total(outside_BL) if settings.correction == "icepop" else total(None)
    values = (
        counted_BL.sum().double(), counted_BL.any(dim=-1).sum().double(), masked, total(outside_BL),
        total(k3(bounded_BL)), total(bounded_BL.exp()), total((2 * bounded_BL).exp()), total(clipped_BL),
        total(kl_BL), total(entropy_BL),
    )  # fmt: skip
    return LossSums(torch.stack(values))


def _where(values_BL: Tensor, counted_BL: Tensor) -> Tensor:
    return values_BL.masked_fill(~counted_BL, 0.0)


def _log(value: float, like: Tensor) -> float:
    """The logarithm, rounded as the tensor is, so that a token exactly at a bound is inside."""
    return float(torch.tensor(value, dtype=torch.float64).log().to(like.dtype))
