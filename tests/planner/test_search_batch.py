"""The critical batch: published figures on both sides of the formula."""

from __future__ import annotations

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.planner.critical_batch import (
    batch_verdict,
    critical_batch_tokens,
    extra_tokens_frac,
    final_loss_nats,
)
from scalewright.workload.model import from_catalog

CATALOG = Catalog((packaged_data(),))
GPT3 = from_catalog(CATALOG.model("gpt3-175b"))


def test_loss_of_gpt3_is_near_the_one_it_reached() -> None:
    """Brown et al. 2020 (arXiv:2005.14165), Figure 3.1: L = 2.57 C^-0.048 with 3640 PF-days is 1.73 nats."""
    published = 2.57 * 3640**-0.048
    assert final_loss_nats(num_params=174e9, num_tokens=300e9) == pytest.approx(published, rel=0.05)


def test_loss_falls_with_size_and_with_tokens() -> None:
    base = final_loss_nats(num_params=1e9, num_tokens=20e9)
    assert final_loss_nats(num_params=2e9, num_tokens=20e9) < base
    assert final_loss_nats(num_params=1e9, num_tokens=40e9) < base


def test_batches_of_published_runs_are_on_the_right_side() -> None:
    """GPT-3 took 3.2 M tokens (its Table 2.1), below the critical batch; a hundred times that is beyond."""
    tokens = 300e9
    assert not batch_verdict(GPT3, global_batch=1536, num_tokens=tokens).is_beyond
    beyond = batch_verdict(GPT3, global_batch=153_600, num_tokens=tokens)
    assert beyond.is_beyond
    assert beyond.warning is not None
    assert "critical" in beyond.warning


def test_critical_batch_is_that_of_the_paper_at_loss_one_and_two() -> None:
    """Kaplan et al. 2020, equation 1.4: 2e8 tokens at a loss of one nat, and 2^(1/0.21) times fewer at two."""
    assert critical_batch_tokens(loss_nats=1.0) == 2e8
    assert critical_batch_tokens(loss_nats=1.0) / critical_batch_tokens(loss_nats=2.0) == pytest.approx(27.1, rel=0.01)


def test_critical_batch_costs_twice_the_least_tokens() -> None:
    assert 1.0 + extra_tokens_frac(batch_tokens=5e6, critical_tokens=5e6) == 2.0


def test_experts_that_a_token_does_not_meet_do_not_count() -> None:
    spec = from_catalog(CATALOG.model("deepseek-v3"))
    verdict = batch_verdict(spec, global_batch=1, num_tokens=14.8e12)
    dense = final_loss_nats(num_params=float(spec.num_params), num_tokens=14.8e12)
    assert verdict.loss_nats > dense
