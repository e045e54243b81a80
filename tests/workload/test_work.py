"""Floating-point work from the shape, against the formulas in the papers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.workload.flop import (
    forward_flop_by_part,
    six_nd_flop,
    training_flop_per_sample,
    transformer_forward_flop,
)
from scalewright.workload.model import from_catalog, from_shape

CATALOG = Catalog((packaged_data(),))
SHAPES: Any = st.tuples(
    st.integers(1, 128),
    st.integers(1, 96),
    st.sampled_from([32, 64, 80, 128]),
    st.integers(100, 260_000),
    st.integers(1, 8192),
)


def gpt(layers: int, heads: int, head_dim: int, vocab: int, seq: int) -> Any:
    return from_shape(f"layers={layers},hidden={heads * head_dim},heads={heads},vocab={vocab},seq={seq}")


def narayanan_flop(*, batch: int, layers: int, hidden: int, vocab: int, seq: int) -> float:
    """Narayanan et al. 2021, section 5.1, with full recomputation of the layers."""
    s, n, h, v = seq, layers, hidden, vocab
    return 96 * batch * s * n * h**2 * (1 + s / (6 * h) + v / (16 * n * h))


@given(shape=SHAPES, batch=st.integers(1, 4096))
@settings(deadline=None, max_examples=100)
def test_gpt_with_full_recompute_costs_what_narayanan_says(shape: tuple[int, ...], batch: int) -> None:
    layers, heads, head_dim, vocab, seq = shape
    parts = transformer_forward_flop(gpt(*shape).transformer)
    head = parts.pop("head")
    ours = batch * (4 * sum(parts.values()) + 3 * head)
    theirs = narayanan_flop(batch=batch, layers=layers, hidden=heads * head_dim, vocab=vocab, seq=seq)
    assert ours == pytest.approx(theirs, rel=1e-12)


def test_gpt3_forward_and_backward_per_token_is_near_six_times_its_parameters() -> None:
    spec = from_catalog(CATALOG.model("gpt3-175b"))
    per_token = training_flop_per_sample(spec) / spec.transformer.seq
    assert per_token / (6 * spec.num_params) == pytest.approx(1.0, abs=0.05)


@given(shape=SHAPES)
@settings(deadline=None, max_examples=50)
def test_training_costs_three_forward_passes(shape: tuple[int, ...]) -> None:
    spec = gpt(*shape)
    assert training_flop_per_sample(spec) == pytest.approx(3 * sum(forward_flop_by_part(spec).values()))


@given(shape=SHAPES)
@settings(deadline=None, max_examples=50)
def test_longer_sequences_cost_linear_in_matrices_and_quadratic_in_scores(shape: tuple[int, ...]) -> None:
    spec = gpt(*shape)
    once = forward_flop_by_part(spec)
    twice = forward_flop_by_part(spec.with_seq(2 * spec.transformer.seq))
    assert twice["feed_forward"] == pytest.approx(2 * once["feed_forward"])
    assert twice["attention_scores"] == pytest.approx(4 * once["attention_scores"])


def test_sparse_model_works_like_its_active_parameters() -> None:
    spec = from_catalog(CATALOG.model("mixtral-8x7b")).with_seq(512)
    matrices = spec.num_active_params - spec.transformer.vocab * spec.transformer.hidden
    parts = forward_flop_by_part(spec)
    assert (sum(parts.values()) - parts["attention_scores"]) / (2 * 512 * matrices) == pytest.approx(1.0, abs=0.01)


def test_latent_attention_works_like_its_active_parameters() -> None:
    spec = from_catalog(CATALOG.model("deepseek-v3")).with_seq(512)
    matrices = spec.num_active_params - spec.transformer.vocab * spec.transformer.hidden
    parts = forward_flop_by_part(spec)
    assert (sum(parts.values()) - parts["attention_scores"]) / (2 * 512 * matrices) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(("model", "multiply_adds"), [("resnet-18", 1.814e9), ("resnet-50", 4.09e9)])
def test_multiply_adds_of_residual_networks(model: str, multiply_adds: float) -> None:
    forward_flop = sum(forward_flop_by_part(from_catalog(CATALOG.model(model))).values())
    assert forward_flop / 2 == pytest.approx(multiply_adds, rel=0.01)


def test_trillion_parameters_on_twenty_trillion_tokens() -> None:
    assert six_nd_flop(num_params=1e12, num_tokens=20e12) == pytest.approx(1.2e26)


def test_prediction_modules_add_a_layer_a_head_and_a_projection_each() -> None:
    """DeepSeek-V3 with one module: a layer of experts, a head, 2 h x h (arXiv:2412.19437, section 2.2)."""
    spec = from_catalog(CATALOG.model("deepseek-v3"))
    shape = spec.transformer
    with_module = transformer_forward_flop(shape.model_copy(update={"num_mtp_layers": 1}))
    deeper = transformer_forward_flop(shape.model_copy(update={"layers": shape.layers + 1}))
    plain = transformer_forward_flop(shape)
    layer = sum(deeper.values()) - sum(plain.values())
    joined = 4.0 * shape.seq * shape.hidden**2
    assert with_module["multi_token"] == pytest.approx(layer + plain["head"] + joined)
