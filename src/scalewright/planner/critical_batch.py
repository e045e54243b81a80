"""The batch up to which more devices train as well: the critical batch size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scalewright import units
from scalewright.workload.model import ModelSpec

TOKENS_PER_PARAM = 20.0
"""Compute-optimal training (Hoffmann et al. 2022, arXiv:2203.15556, Table 3), where no number of tokens is given."""
PARAMS_SCALE, PARAMS_EXPONENT = 6.4e13, 0.076
TOKENS_SCALE, TOKENS_EXPONENT = 1.8e13, 0.103
BATCH_SCALE, BATCH_EXPONENT = 2.0e8, 0.21
LARGEST_PUBLISHED_TOKENS = 15360 * 4096.0
"""The largest batch of a published pretraining run at hand: DeepSeek-V3 (arXiv:2412.19437), section 4.2."""


def final_loss_nats(*, num_params: float, num_tokens: float) -> float:
    """Test loss of a language model of that size after so many tokens.

    Equation  L = ((N_c/N)^(a_N/a_D) + D_c/D)^a_D
    Source    kaplan2020 (arXiv:2001.08361), equation 1.5 and Table 2; N without embeddings, D below one epoch
    Assumes   web text and its tokenizer; a mixture of experts counts the parameters a token meets
    Checked   tests/planner/test_search_batch.py: GPT-3 175B after 300 B tokens, 1.73 in Brown et al., within 5 %
    """
    size = (PARAMS_SCALE / num_params) ** (PARAMS_EXPONENT / TOKENS_EXPONENT)
    return float((size + TOKENS_SCALE / num_tokens) ** TOKENS_EXPONENT)


def critical_batch_tokens(*, loss_nats: float) -> float:
    """Batch at which reaching a loss takes twice the tokens and twice the steps of the least of each.

    Equation  B = B* / L^(1/a_B),  B* = 2e8 tokens, a_B = 0.21
    Source    kaplan2020 (arXiv:2001.08361), equation 1.4; McCandlish et al. 2018 (arXiv:1812.06162), section 2
    Assumes   Adam on web text; the batch at the end of training, when it is largest
    Checked   tests/planner/test_search_batch.py: above the 3.2 M tokens that GPT-3 took
    """
    return float(BATCH_SCALE / loss_nats ** (1.0 / BATCH_EXPONENT))


def extra_tokens_frac(*, batch_tokens: float, critical_tokens: float) -> float:
    """Tokens beyond the least that reach the same loss with this batch.

    Equation  D / D_min - 1 = B / B_crit
    Source    McCandlish et al. 2018 (arXiv:1812.06162), equation 2.11 with kaplan2020, equation 5.2
    Assumes   learning rate tuned for the batch
    Checked   tests/planner/test_search_batch.py: one at the critical batch
    """
    return batch_tokens / critical_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchVerdict:
    """A global batch against the range in which training efficiency is known to hold."""

    batch_tokens: float
    critical_tokens: float
    loss_nats: float

    @property
    def is_beyond(self) -> bool:
        return self.batch_tokens > self.critical_tokens

    @property
    def warning(self) -> str | None:
        if not self.is_beyond:
            return None
        batch, critical = (units.format(v, units.COUNT) for v in (self.batch_tokens, self.critical_tokens))
        extra = extra_tokens_frac(batch_tokens=self.batch_tokens, critical_tokens=self.critical_tokens)
        largest = units.format(LARGEST_PUBLISHED_TOKENS, units.COUNT)
        seen = "beyond" if self.batch_tokens > LARGEST_PUBLISHED_TOKENS else "within"
        return (
            f"a batch of {batch} tokens is beyond the critical {critical} (Kaplan 2020): the same loss takes about "
            f"{1.0 + extra:.1f} times the least tokens, so more devices buy less than the step time says; it is {seen} "
            f"what published runs took ({largest}, DeepSeek-V3)"
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "batch_tokens": self.batch_tokens,
            "critical_batch_tokens": self.critical_tokens,
            "predicted_loss_nats": self.loss_nats,
            "is_beyond": self.is_beyond,
            "source": "Kaplan et al. 2020 (arXiv:2001.08361), equations 1.4 and 1.5",
        }


def batch_verdict(spec: ModelSpec, *, global_batch: int, num_tokens: float) -> BatchVerdict:
    parts = spec.params_by_part()
    embedding = parts.get("embedding", 0) + parts.get("positions", 0)
    loss = final_loss_nats(num_params=float(spec.num_active_params - embedding), num_tokens=num_tokens)
    return BatchVerdict(
        batch_tokens=float(global_batch * spec.transformer.seq),
        critical_tokens=critical_batch_tokens(loss_nats=loss),
        loss_nats=loss,
    )
