"""PolicyLoss: the loss of a reinforcement-learning step, every bound explicit. Presets carry the papers' values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from scalewright.errors import ConfigError
from scalewright.workload.run_options import check_literals

PolicyLossName = Literal["grpo", "dapo", "dr-grpo", "gspo", "c3po"]
Correction = Literal["none", "tis", "icepop"]
"""Of the difference between the engine that wrote an answer and the trainer that learns from it."""
Aggregation = Literal["sequence-mean", "token-mean", "constant", "budget"]
RatioLevel = Literal["token", "sequence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """Names of the symbols: shao2024 for GRPO, and the papers that `PRESETS` names."""

    name: PolicyLossName = "grpo"
    correction: Correction = "icepop"
    clip_low: float = 0.2
    """The ratio of new to old policy is clipped below 1 - clip_low ..."""
    clip_high: float = 0.2
    """... and above 1 + clip_high."""
    band_low: float = 0.5
    """IcePop keeps a token whose probability in the trainer over that in the engine is from band_low ..."""
    band_high: float = 5.0
    """... to band_high."""
    tis_cap: float = 2.0
    """TIS cuts that quotient off here."""
    kl_coef: float = 0.0
    """Weight of the divergence from the reference model; 0: no reference model is needed."""
    aggregation: Aggregation = "sequence-mean"
    """How terms of tokens become one number: the mean over a sequence and then over sequences; the mean over all
    tokens; their sum over sequences x the longest answer allowed, a constant; or their sum over the token budget of a
    step, of which each update has its share."""
    ratio_level: RatioLevel = "token"
    """Each token has its own ratio of new to old policy, or a sequence has one: the geometric mean over its tokens."""
    divides_by_std: bool = True
    """Advantages of a group are divided by the standard deviation of its rewards."""
    drops_equal_groups: bool = False
    """A group whose rewards are all equal is left out of the batch, and other prompts take its place."""
    overlong_tokens: int = 0
    """The last tokens before the limit, over which the reward falls linearly by 1; 0: no such penalty."""

    def __post_init__(self) -> None:
        choices = {
            "name": PolicyLossName,
            "correction": Correction,
            "aggregation": Aggregation,
            "ratio_level": RatioLevel,
        }
        check_literals(self, choices)
        for name in ("clip_low", "clip_high", "band_low", "band_high", "tis_cap", "kl_coef"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ConfigError(f"{name} is {getattr(self, name)}: give a finite number of 0 or more")
        if not self.clip_low < 1:
            raise ConfigError(f"clip_low is {self.clip_low}: the ratio is clipped at 1 - clip_low, so give less than 1")
        if not 0 < self.band_low <= 1 <= self.band_high:
            raise ConfigError(
                f"band_low is {self.band_low} and band_high is {self.band_high}: the band must hold 1, where trainer "
                "and engine agree; give bounds such as 0.5 and 5"
            )
        if not self.tis_cap >= 1:
            raise ConfigError(
                f"tis_cap is {self.tis_cap}: a cap below 1 would shrink tokens on which both agree; give 2"
            )
        if self.overlong_tokens < 0:
            raise ConfigError(f"overlong_tokens is {self.overlong_tokens}: give 0 (no penalty) or more")

    @property
    def needs_reference(self) -> bool:
        return self.kl_coef > 0.0

    def document(self) -> dict[str, Any]:
        return asdict(self)


PRESETS: dict[PolicyLossName, PolicyLoss] = {
    # shao2024 (arXiv:2402.03300), equation 3; its own runs have epsilon 0.2 (PPO's) and a KL coefficient of 0.04
    "grpo": PolicyLoss(name="grpo"),
    # yu2025 (arXiv:2503.14476), section 3: clip-higher 0.2 and 0.28, token-level loss, dynamic sampling, no KL term
    "dapo": PolicyLoss(
        name="dapo", clip_high=0.28, aggregation="token-mean", drops_equal_groups=True,
    ),
    # liu2025 (arXiv:2503.20783), section 3.2: no standard deviation, no length of the answer
    "dr-grpo": PolicyLoss(name="dr-grpo", aggregation="constant", divides_by_std=False),
    # zheng2025 (arXiv:2507.18071), section 5.1: sequence ratio, clipped to 1 - 3e-4 and 1 + 4e-4
    "gspo": PolicyLoss(name="gspo", clip_low=3e-4, clip_high=4e-4, ratio_level="sequence"),
    # ling2025 (arXiv:2510.18855), C3PO: the sum over tokens, divided by the token budget of a step
    "c3po": PolicyLoss(name="c3po", aggregation="budget"),
}  # fmt: skip


def policy_loss(name: str, **changes: Any) -> PolicyLoss:
    """The preset of this name with some of its fields set otherwise."""
    if name not in get_args(PolicyLossName):
        raise ConfigError(f"loss {name!r} is not known: choose {', '.join(get_args(PolicyLossName))}")
    known = {f.name for f in fields(PolicyLoss)} - {"name"}
    odd = sorted(set(changes) - known)
    if odd:
        raise ConfigError(f"loss has {odd[0]}, which is no part of it: choose among {', '.join(sorted(known))}")
    return replace(PRESETS[name], **changes)  # type: ignore[index]


def from_body(body: Mapping[str, Any], *, where: str) -> PolicyLoss:
    """The loss that `PolicyLoss.document` wrote."""
    try:
        return PolicyLoss(**body)
    except TypeError as error:
        raise ConfigError(f"{where}: its loss is not one: {error}; write it anew") from error
