"""Files and folders that the user gives, checked before a job is submitted: they exist, are readable, and fit."""

from __future__ import annotations

import json
import os
import re
import struct
from pathlib import Path
from typing import Any

from scalewright import units
from scalewright.catalog.types import TransformerShape
from scalewright.engines.adapters.torchtitan import OWN_DATA
from scalewright.engines.types import EngineRequest
from scalewright.errors import ConfigError
from scalewright.records.documents import parse_json, read_text
from scalewright.workload.huggingface.config import from_hf_config

MEGATRON_MARK = "latest_checkpointed_iteration.txt"
HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")
MAX_HEADER_BYTES = 64 * units.MIB
"""No header of a weights file is longer; one that says so is none."""
COMPARED = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_hidden", "vocab", "tied_embeddings", "gated")
EMBEDDINGS = ("model.embed_tokens.weight", "transformer.wte.weight", "wte.weight", "embed_tokens.weight")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.")


def check_given(engine: str, request: EngineRequest) -> None:
    """Refuse what is not there or does not fit, in one sentence. Empty values are placeholders, which others check."""
    if request.engine_dir and engine == "megatron":
        script = Path(request.engine_dir) / "pretrain_gpt.py"
        if not script.is_file():
            raise ConfigError(
                f"--engine-dir {request.engine_dir!r} has no pretrain_gpt.py: give a checkout of Megatron-LM"
            )
    if request.load:
        check_weights(engine, request)
    if request.tokenizer:
        check_tokenizer(request)
    if request.data and not request.is_synthetic:
        check_data(engine, request.data)


def readable(flag: str, text: str) -> Path:
    path = Path(text)
    if not path.exists():
        raise ConfigError(f"{flag} {text!r} does not exist: give a path that the job's nodes can read")
    if not os.access(path, os.R_OK):
        raise ConfigError(f"{flag} {text!r} cannot be read: change its permissions, or give another path")
    return path


def check_weights(engine: str, request: EngineRequest) -> None:
    folder = readable("--load", request.load)
    if engine == "megatron" and request.device == "cuda":
        if not (folder / MEGATRON_MARK).is_file():
            hugging = (folder / "config.json").is_file()
            kind = "is a Hugging Face checkpoint" if hugging else f"has no {MEGATRON_MARK}"
            raise ConfigError(
                f"--load {request.load!r} {kind}, and Megatron-LM reads its own format: convert it with "
                "Megatron-Bridge or tools/checkpoint/convert.py"
            )
        return
    if not (folder / "config.json").is_file():
        raise ConfigError(f"--load {request.load!r} has no config.json: give the folder of a Hugging Face checkpoint")
    stored = from_hf_config(folder / "config.json").transformer
    check_shape(request, stored, where=f"{request.load}/config.json")
    for path in sorted(folder.glob("*.safetensors")):
        check_tensors(request.shape, path)


def check_shape(request: EngineRequest, stored: TransformerShape, *, where: str) -> None:
    for name in COMPARED:
        ours, theirs = getattr(request.shape, name), getattr(stored, name)
        if ours != theirs:
            raise ConfigError(
                f"--load {where!r} has {name} {theirs}, and {request.spec.id} has {ours}: give weights of the model "
                "that was planned, or plan with --model and this config.json"
            )


def check_tensors(shape: TransformerShape, path: Path) -> None:
    """The shapes that the header of a weights file states, without reading the weights."""
    header = safetensors_header(path)
    for name in EMBEDDINGS:
        entry = header.get(name)
        if isinstance(entry, dict) and list(entry.get("shape", [])) != [shape.vocab, shape.hidden]:
            raise ConfigError(
                f"{path}: {name} is {entry.get('shape')}, and the model has [{shape.vocab}, {shape.hidden}]: give "
                "weights of the model that was planned"
            )
    numbers = [int(match[1]) for name in header if (match := _LAYER.search(name))]
    if numbers and max(numbers) >= shape.layers + shape.num_mtp_layers:
        raise ConfigError(
            f"{path}: has a layer {max(numbers)}, and the model has {shape.layers}: give weights of the model that was "
            "planned"
        )


def safetensors_header(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            raw = file.read(length) if length <= MAX_HEADER_BYTES else b""
        header = json.loads(raw)
    except (OSError, struct.error, ValueError) as error:
        raise ConfigError(f"{path}: is not a safetensors file: copy it again") from error
    if not isinstance(header, dict):
        raise ConfigError(f"{path}: is not a safetensors file: copy it again")
    return header


def check_tokenizer(request: EngineRequest) -> None:
    path = readable("--tokenizer", request.tokenizer)
    if path.is_dir():
        known = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
        if not any((path / name).is_file() for name in known):
            raise ConfigError(f"--tokenizer {request.tokenizer!r} has none of {', '.join(known)}: give its folder")
        path = path / "tokenizer.json"
    if path.name != "tokenizer.json" or not path.is_file():
        return
    largest = largest_token(path)
    if largest >= request.shape.vocab:
        raise ConfigError(
            f"--tokenizer {request.tokenizer!r} has token {largest}, and {request.spec.id} has a vocabulary of "
            f"{request.shape.vocab}: give the model's own tokenizer"
        )


def largest_token(path: Path) -> int:
    content = parse_json(read_text(path), where=str(path))
    model = content.get("model", {}) if isinstance(content, dict) else {}
    vocab = model.get("vocab", {}) if isinstance(model, dict) else {}
    numbers = list(vocab.values()) if isinstance(vocab, dict) else [len(vocab) - 1]
    added = content.get("added_tokens", []) if isinstance(content, dict) else []
    numbers += [one.get("id", 0) for one in added if isinstance(one, dict)]
    return max((number for number in numbers if isinstance(number, int)), default=-1)


def check_data(engine: str, text: str) -> None:
    if engine == "torchtitan" and text in OWN_DATA:
        return
    if engine in ("trl", "verl") and not Path(text).exists() and HUB_NAME.match(text) and engine == "trl":
        return  # a name on the hub, which the node has to reach
    if engine == "verl" and not text.endswith(".parquet"):
        raise ConfigError(f"--data {text!r} is not a .parquet file: verl reads prompts from one")
    stem = Path(text)
    if engine in ("trl", "verl"):
        readable("--data", text)
        return
    pair = [stem.with_name(f"{stem.name}{suffix}") for suffix in (".bin", ".idx")]
    if engine == "megatron" or (not stem.exists() and any(path.exists() for path in pair)):
        for path in pair:
            readable("--data", str(path))
        return
    readable("--data", text)
