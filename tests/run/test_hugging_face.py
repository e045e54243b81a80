"""Folders that transformers saved give the tokens that transformers generated; damaged and foreign ones are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
import torch

from scalewright.data.reasoning.tokenizer import open_tokenizer
from scalewright.errors import ConfigError, EnvironmentFailedError
from scalewright.run.generate.engine import Engine
from scalewright.run.generate.hugging_face import open_hugging_face
from scalewright.run.generate.open import open_engine
from scalewright.run.generate.options import EngineOptions
from scalewright.run.generate.requests import GREEDY, Request

GOLDEN = Path(__file__).parents[1] / "golden" / "generation"
FAMILIES = ("llama", "qwen2", "qwen3", "gpt2")
ROUNDING = 2e-5
"""fp32 sums in another order."""


def open_folder(folder: Path) -> Engine:
    model = open_hugging_face(folder)
    options = EngineOptions(max_context=64, precision="fp32", max_running=4, prefill_chunk=8)
    return open_engine(
        model.shape, options, device=torch.device("cpu"), weights=model.weights(), constants=model.constants
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "llama", tmp_path / "model"))


def change_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_answers_are_those_of_transformers(family: str) -> None:
    engine = open_folder(GOLDEN / family)
    expected = json.loads((GOLDEN / family / "expected.json").read_text())["answers"]
    for number, answer in enumerate(expected):
        engine.add(
            Request(
                id=str(number), prompt=tuple(answer["prompt"]), max_new_tokens=len(answer["tokens"]), sampling=GREEDY
            )
        )
    completions = {int(c.request_id): c for c in engine.drain()}
    for number, answer in enumerate(expected):
        assert list(completions[number].tokens) == answer["tokens"]
        assert completions[number].log_probs == pytest.approx(answer["log_probs"], abs=ROUNDING)


def test_the_config_gives_shape_and_constants() -> None:
    llama, gpt = open_hugging_face(GOLDEN / "llama"), open_hugging_face(GOLDEN / "gpt2")
    assert (llama.shape.heads, llama.shape.kv_heads, llama.shape.positions) == (4, 2, "rotary")
    assert llama.constants.rotary_base == 500.0
    assert llama.constants.rotary_scaling is not None
    assert llama.constants.rotary_scaling.original_positions == 16
    assert gpt.shape.tied_embeddings
    assert gpt.stop_tokens == {50256}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "model_type mamba is not run"),
        ({"hidden_act": "relu"}, "activation relu"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rotary scaling yarn is not run"),
        ({"num_hidden_layers": 1}, r"has layers\.1\..*, which a llama model of this config\.json has not"),
        ({"num_hidden_layers": 3}, r"lacks layers\.2\."),
        ({"vocab_size": 68}, r"embedding\.tokens\.weight is 67 x 16, and this model needs 68 x 16"),
        ({"attention_bias": True}, r"lacks layers\.0\.self_attn\.q_proj\.bias"),
        ({"num_key_value_heads": 4}, "do not fit 4 key heads|and this model needs"),
        ({"sliding_window": 16}, "sliding windows"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(folder: Path, change: dict[str, Any], message: str) -> None:
    change_config(folder, **change)
    with pytest.raises(ConfigError, match=message):
        open_folder(folder)


def test_damaged_files_are_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for content in (b"", whole[:4], whole[:-9], b"\xff" * 64, (10).to_bytes(8, "little") + b"not a json"):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"model\.safetensors: "):
            open_folder(folder)
    path.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        open_folder(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="not a JSON object"):
        open_folder(folder)


def test_a_model_in_several_files_is_read_by_its_index(folder: Path) -> None:
    names = list(open_hugging_face(folder).weights())
    from scalewright.run.generate.safetensor_files import read_header

    stored = read_header(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "part-1.safetensors")
    index = {"weight_map": dict.fromkeys(stored, "part-1.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    again = dict(open_hugging_face(folder).weights())
    assert all(torch.equal(tensor, again[name]) for name, tensor in names)
    index["weight_map"]["more.weight"] = "part-1.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError, match=r"lacks more\.weight"):
        open_folder(folder)


def test_a_tokenizer_needs_its_package_and_the_models_vocabulary(folder: Path) -> None:
    try:
        import tokenizers
    except ImportError:
        with pytest.raises(EnvironmentFailedError, match=r"pip install 'scalewright\[text\]'"):
            open_tokenizer(folder, vocab=open_hugging_face(folder).shape.vocab)
        return
    words = {f"w{number}": number for number in range(80)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    with pytest.raises(ConfigError, match="has 80 tokens, and the model's vocabulary has 67"):
        open_tokenizer(folder, vocab=open_hugging_face(folder).shape.vocab)
