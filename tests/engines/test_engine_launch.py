"""`launch PLAN.json --engine X` from outside: dry runs, and every wrong input in one sentence."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from engine_cases import CATALOG
from scalewright.engines.given_files import check_given
from scalewright.engines.types import EngineRequest
from scalewright.errors import ConfigError
from scalewright.workload.layout import parse_layout
from scalewright.workload.model import from_shape
from scalewright.workload.precision import recipe

if TYPE_CHECKING:
    from conftest import Cli, Refused

SITE = ("--site", "leonardo", "--account", "EUHPC_D01_001")
CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 5e5, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of a small model from a config.json, made by the Python interface."""
    import scalewright as sw

    folder = tmp_path_factory.mktemp("plan")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    made = sw.plan(
        model=str(folder / "config.json"), system="leonardo", nodes=1, global_batch=16, steps=20,
        fix="tp=1,pp=1,cp=1,zero=3,sp=0,recompute=none", precision="bf16",
    )  # fmt: skip
    made.save(folder / "plan.json")
    return folder / "plan.json"


def weights(folder: Path, **changes: Any) -> Path:
    """A Hugging Face folder with a header of weights and a tokenizer."""
    config = CONFIG | changes
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    shape = [config["vocab_size"], config["hidden_size"]]
    tensors = {"model.embed_tokens.weight": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}
    header = json.dumps(tensors).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    vocab = {f"t{number}": number for number in range(config["vocab_size"])}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": []}))
    return folder


def request_of(**given: str) -> EngineRequest:
    spec = from_shape("layers=2,hidden=64,heads=4,kv_heads=2,ffn=128,vocab=256,seq=512,gated=1")
    shape = spec.transformer.model_copy(
        update={"positions": "rotary", "norm": "rmsnorm", "norm_bias": False, "qkv_bias": False, "out_bias": False,
                "ffn_bias": False, "tied_embeddings": False, "num_positions": 0}
    )  # fmt: skip
    from dataclasses import replace

    return EngineRequest(
        spec=replace(spec, shape=shape), layout=parse_layout("dp=2,mbs=1,gbs=2,zero=3"), recipe=recipe("bf16"),
        seq_len=512, gpus_per_node=2, num_gpus=2, **given,
    )  # fmt: skip


def test_a_dry_run_shows_script_and_files_and_writes_nothing(cli: Cli, plan: Path, tmp_path: Path) -> None:
    result = cli("launch", str(plan), "--engine", "deepspeed", "--data", "synthetic", "--dry-run", *SITE, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "train_deepspeed.py --config" in result.stdout
    assert '"schema": "scalewright.engine-file/1"' in result.stdout
    assert "--venv" in result.stderr  # the site's advice
    assert list(tmp_path.iterdir()) == []


def test_the_document_has_files_and_what_is_missing(cli: Cli, plan: Path) -> None:
    result = cli("launch", str(plan), "--engine", "megatron", "--dry-run", "--json", *SITE, "--", "--extra", "1")
    document = json.loads(result.stdout)
    assert document["untested"] is True
    assert "--engine-dir" in document["missing"]
    assert "--extra 1" in document["script"]
    assert "--rotary-base 500000" in document["script"]
    assert "--norm-epsilon 1e-06" in document["script"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--engine", "megatron"), "still needs --engine-dir"),
        (("--engine", "megatorn", "--data", "synthetic"), "did you mean megatron"),
        (("--engine", "trl", "--task", "pretrain"), "TRL (SFT and GRPO) does sft and grpo here"),
        (("--engine", "deepspeed", "--data", "/nowhere/text.npy"), "--data '/nowhere/text.npy' does not exist"),
        (("--engine", "deepspeed", "--data", "synthetic", "--load", "/nowhere"), "--load '/nowhere' does not exist"),
        (("--engine", "megatron", "--engine-dir", "/", "--data", "synthetic"), "has no pretrain_gpt.py"),
        (("--engine", "deepspeed", "--set", "zero"), "--set 'zero' has no value"),
        (("--engine", "deepspeed", "--nodes", "2"), "leave out --array, --nodes"),
        (("--data", "synthetic"), "--data belongs to an engine"),
    ],
)
def test_wrong_input_is_one_sentence(cli: Cli, refused: Refused, plan: Path, words: tuple[str, ...], says: str) -> None:
    assert says in refused(cli("launch", str(plan), *words, *SITE))


def test_a_layout_that_the_engine_lacks_names_one_that_it_has(cli: Cli, refused: Refused, tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    made = cli(
        "plan", "--model", "llama3-8b", "--system", "leonardo", "--nodes", "2", "--global-batch", "16", "--steps", "9",
        "--fix", "tp=2,pp=2,zero=1", "--out", str(target),
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    message = refused(cli("launch", str(target), "--engine", "deepspeed", "--data", "synthetic", *SITE))
    assert "the nearest layout that it can is tp=1,pp=1,dp=8" in message


def test_an_engine_that_is_not_installed_is_named_with_its_pip_line(cli: Cli, refused: Refused, plan: Path) -> None:
    words = ("--engine", "torchtitan", "--data", "synthetic")
    message = refused(cli("launch", str(plan), *words, *SITE, "--run-dir", str(plan.parent / "run")), code=3)
    assert "pip install 'torchtitan==0.2.2'" in message
    assert not (plan.parent / "run").exists()


def test_weights_and_tokenizer_of_the_model_are_taken(tmp_path: Path) -> None:
    folder = weights(tmp_path / "good")
    check_given("huggingface", request_of(load=str(folder), tokenizer=str(folder), data="synthetic"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_size": 32, "head_dim": 16}, "has hidden 32"),
        ({"num_hidden_layers": 3}, "has layers 3"),
        ({"vocab_size": 300}, "has vocab 300"),
        ({"tie_word_embeddings": True}, "tied_embeddings True"),
    ],
)
def test_weights_of_another_shape_are_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    folder = weights(tmp_path / "other", **changes)
    with pytest.raises(ConfigError, match=says):
        check_given("huggingface", request_of(load=str(folder)))


def test_the_header_of_the_weights_is_read(tmp_path: Path) -> None:
    folder = weights(tmp_path / "header")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    header = json.dumps({"model.embed_tokens.weight": {"dtype": "F32", "shape": [300, 64], "data_offsets": [0, 0]}})
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode())
    with pytest.raises(ConfigError, match=r"is \[300, 64\]"):
        check_given("huggingface", request_of(load=str(folder)))
    header = json.dumps({"model.layers.7.mlp.up_proj.weight": {"shape": [1]}})
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode())
    with pytest.raises(ConfigError, match="has a layer 7"):
        check_given("huggingface", request_of(load=str(folder)))
    (folder / "model.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(ConfigError, match="is not a safetensors file"):
        check_given("huggingface", request_of(load=str(folder)))


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    folder = weights(tmp_path / "large", vocab_size=257)
    with pytest.raises(ConfigError, match="has token 256, and custom has a vocabulary of 256"):
        check_given("trl", request_of(tokenizer=str(folder)))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"has none of tokenizer\.json"):
        check_given("trl", request_of(tokenizer=str(tmp_path / "empty")))


def test_megatron_reads_its_own_formats_only(tmp_path: Path) -> None:
    folder = weights(tmp_path / "hf")
    with pytest.raises(ConfigError, match="is a Hugging Face checkpoint, and Megatron-LM reads its own format"):
        check_given("megatron", request_of(load=str(folder)))
    (tmp_path / "text.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"text\.idx' does not exist"):
        check_given("megatron", request_of(data=str(tmp_path / "text")))
    (tmp_path / "text.idx").write_bytes(b"")
    check_given("megatron", request_of(data=str(tmp_path / "text")))


def test_verl_reads_parquet(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="verl reads prompts from one"):
        check_given("verl", request_of(data=str(tmp_path / "prompts.jsonl")))


def test_every_named_model_with_details_says_where_they_are_from() -> None:
    models = [CATALOG.model(name) for name in CATALOG.ids("models")]
    with_details = [model for model in models if model.details is not None]
    assert len(with_details) >= 30
    assert all(model.details.source.url for model in with_details if model.details is not None)
