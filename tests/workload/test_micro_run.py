"""What the micro benchmarks measure: shapes of a model's products, counts of attention, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.compute import attention_gemms, ffn_gemms
from scalewright.costs.machine import machine_from_system
from scalewright.costs.setting import Setting
from scalewright.errors import ConfigError
from scalewright.records.loader import restore
from scalewright.workload.layout import parse_layout
from scalewright.workload.micro_run import (
    AttentionCase,
    AttentionRun,
    DispatchRun,
    GemmRun,
    MemoryRun,
    parse_products,
    square_products,
)
from scalewright.workload.model import from_catalog
from scalewright.workload.precision import recipe
from scalewright.workload.products import Product, model_products

CATALOG = Catalog((packaged_data(),))


def sides(product: Product) -> tuple[int, int, int]:
    return product.m, product.n, product.k


def test_products_of_llama3_8b_by_its_published_sizes() -> None:
    """meta2024 (arXiv:2407.21783), table 3: width 4096, feed-forward 14336, 32 heads over 8, vocabulary 128,256."""
    sides_of = {p.name: sides(p) for p in model_products(CATALOG.model("llama3-8b").transformer, num_tokens=8192)}
    assert sides_of["qkv"] == (8192, 6144, 4096)
    assert sides_of["attention_out"] == (8192, 4096, 4096)
    assert sides_of["ffn_up"] == (8192, 28672, 4096)
    assert sides_of["ffn_down"] == (8192, 4096, 14336)
    assert sides_of["ffn_down_grad_input"] == (8192, 14336, 4096)
    assert sides_of["ffn_down_grad_weight"] == (4096, 14336, 8192)
    assert sides_of["head"] == (8192, 128256, 4096)
    assert len(set(sides_of.values())) == len(sides_of)


@pytest.mark.parametrize("model", ["llama3-8b", "gpt3-6.7b", "deepseek-v3", "qwen3-0.6b"])
def test_weights_are_those_that_the_cost_model_counts(model: str) -> None:
    spec = from_catalog(CATALOG.model(model))
    tokens = 4096
    setting = Setting(
        shape=spec.transformer.model_copy(update={"seq": tokens}), machine=machine_from_system(CATALOG, "generic-h200"),
        layout=parse_layout("dp=1,mbs=1,gbs=1"), recipe=recipe("bf16"), stack=CATALOG.stack("eager"),
    )  # fmt: skip
    counted = dict(attention_gemms(setting))
    if spec.transformer.moe is None:
        counted |= ffn_gemms(setting, spec.transformer.ffn_hidden)
    product_sides = {sides(product) for product in model_products(spec.transformer, num_tokens=tokens)}
    for name, (n, k) in counted.items():
        assert {(tokens, n, k), (tokens, k, n), (n, k, tokens)} <= product_sides, name


def test_experts_get_their_share_of_the_tokens() -> None:
    """DeepSeek-V3: 8 of 256 experts of width 2048 over a width of 7168 (arXiv:2412.19437, section 4.2)."""
    sides_of = {p.name: sides(p) for p in model_products(CATALOG.model("deepseek-v3").transformer, num_tokens=8192)}
    assert sides_of["expert_up"] == (256, 4096, 7168)
    assert sides_of["expert_down"] == (256, 7168, 2048)


def test_attention_counts_the_published_flop() -> None:
    """dao2023 (arXiv:2307.08691), section 4.1: 4 seq^2 head_dim heads, half under a causal mask, 2.5 times backward."""
    case = AttentionCase(batch=2, heads=16, kv_heads=16, seq=1024, head_dim=128, causal=False)
    assert case.forward_flop == 4 * 1024**2 * 128 * 16 * 2
    assert replace(case, causal=True).forward_flop == case.forward_flop / 2
    assert case.backward_flop == 2.5 * case.forward_flop


@pytest.mark.parametrize(
    "config",
    [
        GemmRun(precisions=("bf16", "fp8"), products=square_products(), finds_best=True, device="cuda", budget_s=60.0),
        MemoryRun(sizes_bytes=(65536, 2**20), budget_s=5.0),
        AttentionRun(
            precisions=("bf16",), budget_s=9.0,
            cases=(AttentionCase(batch=1, heads=8, kv_heads=2, seq=128, head_dim=64),),
        ),
        DispatchRun(compiles=False, budget_s=3.0),
    ],
    ids=lambda config: config.KIND,
)  # fmt: skip
def test_documents_come_back_as_they_were(config: GemmRun | MemoryRun | AttentionRun | DispatchRun) -> None:
    doc = config.document()
    assert doc["schema"] == f"scalewright.{config.KIND}/1"
    assert restore(doc, type(config), where="test") == config


@pytest.mark.parametrize("text", ["4096,4096", "4096;4096;4096", "a,b,c", "", "1,2,0", "-1,2,3", "1.5,2,3", "1,2,3,4"])
def test_shapes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="M,N,K"):
        parse_products(text)


def test_shapes_as_written() -> None:
    assert [sides(p) for p in parse_products("4096,4096,4096; 8192,1024,4096;")] == [
        (4096, 4096, 4096),
        (8192, 1024, 4096),
    ]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GemmRun(precisions=("fp4",), products=square_products(), finds_best=False, budget_s=9.0), "fp4"),
        (lambda: GemmRun(precisions=("bf16",), products=(), finds_best=False, budget_s=9.0), "no product"),
        (lambda: GemmRun(precisions=("fp8",), products=(), finds_best=True, device="cpu", budget_s=9.0), "needs a GPU"),
        (lambda: MemoryRun(sizes_bytes=(), budget_s=9.0), "at least 4 KiB"),
        (lambda: MemoryRun(sizes_bytes=(8192, 4096), budget_s=9.0), "smallest first"),
        (lambda: DispatchRun(budget_s=0.01), "too short"),
        (lambda: DispatchRun(budget_s=float("inf")), "too short"),
        (lambda: DispatchRun(device="tpu", budget_s=9.0), "choose cpu, cuda or auto"),
        (lambda: AttentionCase(batch=1, heads=8, kv_heads=3, seq=128, head_dim=64), "do not divide"),
        (lambda: AttentionCase(batch=0, heads=8, kv_heads=8, seq=128, head_dim=64), "1 or more"),
        (lambda: AttentionRun(precisions=("bf16",), cases=(), budget_s=9.0), "--seq"),
        (lambda: AttentionRun(precisions=("fp8",), cases=(), budget_s=9.0), "fp8"),
    ],
)
def test_bad_configurations_say_what_to_change(make: object, words: str) -> None:
    assert callable(make)
    with pytest.raises(ConfigError, match=words):
        make()
