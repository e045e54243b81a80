"""A run's configuration: written and read back unchanged, batches by EPICURE's rules, and refusals that say why."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scalewright.catalog.library import open_catalog
from scalewright.errors import ConfigError, LayoutError, NotExpressedError
from scalewright.records.documents import digest, to_json
from scalewright.workload.language_run import LanguageRun, OptimizerSettings, from_document, resolve, scaled_batch
from scalewright.workload.layout import Layout, parse_layout
from scalewright.workload.model import ModelSpec, from_catalog, from_shape


def model(name: str) -> ModelSpec:
    entry = open_catalog().model(name)
    return from_catalog(entry)


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama3.2-1b", "epicure-small"])
def test_document_comes_back_the_same(name: str) -> None:
    run = resolve(model(name), parse_layout("dp=2,tp=2,mbs=1,gbs=8,zero=3,sp=1"), seq_len=64, precision="fp32", steps=3)
    again = from_document(json.loads(to_json(run.document())), where="config.json")
    assert again.document() == run.document()
    assert (again.layout, again.optimizer, again.seq_len) == (run.layout, run.optimizer, 64)


def test_a_shape_given_by_hand_has_the_same_identity_every_day() -> None:
    document = resolve(from_shape("layers=2,hidden=32,heads=2"), Layout()).document()
    assert "source" not in document["shape"]
    assert digest(document) == digest(from_document(document, where="x").document())


# Guide: strong 1536 and weak 192 accumulation steps meet at 1024 GPUs of 128 a copy; 512 and 16 at 32 GPUs.
@pytest.mark.parametrize(("num_params", "dp", "gbs"), [(175 * 10**9, 8, 1536), (356 * 10**6, 32, 512)])
def test_weak_and_strong_scaling_meet_where_the_guide_says(num_params: int, dp: int, gbs: int) -> None:
    layout = Layout(dp=dp)
    batches = [scaled_batch(layout, scaling=mode, num_params=num_params).gbs for mode in ("weak", "strong")]
    assert batches == [gbs, gbs]


def test_flop_of_a_step_is_the_published_formula() -> None:
    layers, h, s, v, batch = 24, 2048, 2048, 50304, 8
    run = resolve(from_shape(f"layers={layers},hidden={h},heads=16,vocab={v},seq={s}"), Layout(mbs=8, gbs=8))
    narayanan = 72 * batch * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h))
    assert run.step_flop == pytest.approx(narayanan, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "layout", "error", "word"),
    [
        ("mixtral-8x7b", "tp=1", NotExpressedError, "mixture of experts"),
        ("t5-base", "tp=1", NotExpressedError, "encoder"),
        ("deepseek-v3", "tp=1", NotExpressedError, "does not run"),
        ("gpt2-tiny", "tp=3", LayoutError, "heads"),
        ("gpt2-tiny", "pp=8", LayoutError, "stages"),
        ("gpt2-tiny", "dp=2,mbs=1,gbs=3", LayoutError, "multiple"),
        ("gpt2", "tp=2", ConfigError, "vocabulary"),
        ("qwen2.5-0.5b", "tp=7", ConfigError, "key-value"),
    ],
)
def test_what_cannot_run_is_refused_with_the_reason(name: str, layout: str, error: type, word: str) -> None:
    with pytest.raises(error, match=word):
        resolve(model(name), parse_layout(layout))


@pytest.mark.parametrize(
    "wrong",
    [
        {"precision": "fp64"},
        {"steps": 0},
        {"compile": "yes"},
        {"checkpoint_every": -1},
        {"checkpoint_keep": 0},
        {"device": "tpu"},
    ],
)
def test_values_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        resolve(model("gpt2-tiny"), Layout(), **wrong)


def test_optimizer_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="learning rate"):
        OptimizerSettings(learning_rate=0.0)


@pytest.mark.parametrize("change", [{"extra": 1}, {"layout": None}, {"optimizer": {"speed": 1}}])
def test_a_document_with_other_keys_is_refused(change: dict[str, Any]) -> None:
    document = resolve(model("gpt2-tiny"), Layout()).document() | change
    with pytest.raises(ConfigError):
        from_document(document, where="config.json")


def test_the_type_is_frozen() -> None:
    run: LanguageRun = resolve(model("gpt2-tiny"), Layout())
    with pytest.raises(AttributeError):
        run.steps = 3  # type: ignore[misc]
