"""Models in Hugging Face folders: config.json as a shape, tensors under our names, and the tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scalewright.catalog.facts import Source
from scalewright.catalog.types import TransformerShape
from scalewright.data.reasoning.tokenizer import named_stop_tokens
from scalewright.errors import ConfigError
from scalewright.records.loader import validate
from scalewright.run.generate.safetensor_files import StoredTensor, TensorFolder, read_json
from scalewright.run.language.rotary import LayerConstants, RotaryScaling

ROTARY_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
FAMILIES = (*ROTARY_FAMILIES, "gpt2")
NO_WEIGHTS = (".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq")
"""Ends of names that hold masks and tables, which are no weights."""
NORMS = {"input_layernorm": "norm_1", "post_attention_layernorm": "norm_2", "self_attn.q_norm": "attention.query_norm",
         "self_attn.k_norm": "attention.key_norm"}  # fmt: skip
PRODUCTS = {"self_attn.o_proj": "attention.out", "mlp.gate_proj": "feed_forward.gate", "mlp.up_proj": "feed_forward.up",
            "mlp.down_proj": "feed_forward.down"}  # fmt: skip
GPT2_PARTS = {"ln_1": "norm_1", "ln_2": "norm_2", "attn.c_proj": "attention.out", "mlp.c_fc": "feed_forward.up",
              "mlp.c_proj": "feed_forward.down"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFaceModel:
    folder: Path
    family: str
    shape: TransformerShape
    constants: LayerConstants
    stop_tokens: frozenset[int]

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor under its name in our model. One that belongs to no weight is refused, as is a missing one."""
        stored = {_bare(name): place for name, place in TensorFolder(self.folder).tensors.items()}
        stored = {name: place for name, place in stored.items() if not name.endswith(NO_WEIGHTS)}
        names = self._gpt2_names() if self.family == "gpt2" else self._rotary_names()
        if self.shape.tied_embeddings:
            stored.pop("lm_head.weight", None)
        extra = set(stored) - {origin for origins in names.values() for origin in origins}
        if extra:
            raise ConfigError(
                f"{self.folder}: has {min(extra)}, which a {self.family} model of this config.json has not; give the "
                "weights that belong to it"
            )
        for name, origins in names.items():
            missing = [origin for origin in origins if origin not in stored]
            if missing:
                raise ConfigError(f"{self.folder}: lacks {missing[0]}, which its config.json asks for; copy it again")
            yield name, self._converted(name, [stored[origin] for origin in origins])

    def _converted(self, name: str, places: list[StoredTensor]) -> Tensor:
        parts = [place.read() for place in places]
        if self.family == "gpt2":
            if name.startswith("layers.") and parts[0].dim() == 2:
                parts = [parts[0].T]  # stored by input, not by output
            if ".attention.qkv." in name:
                parts = list(parts[0].chunk(3))
        return parts[0] if len(parts) == 1 else self._joined(name, parts)

    def _joined(self, name: str, parts: list[Tensor]) -> Tensor:
        """Queries, keys and values key head by key head, as our attention has them."""
        num_groups, size = self.shape.kv_heads, self.shape.head_dim
        try:
            heads = [part.reshape(num_groups, -1, size, *part.shape[1:]) for part in parts]
            return torch.cat(heads, dim=1).flatten(0, 2)
        except RuntimeError as error:
            sizes = ", ".join(" x ".join(map(str, part.shape)) for part in parts)
            raise ConfigError(
                f"{self.folder}: {name} is made of {sizes}, which do not fit {num_groups} key heads of {size}; give "
                "the weights that belong to its config.json"
            ) from error

    def _rotary_names(self) -> dict[str, list[str]]:
        shape = self.shape
        names = {"embedding.tokens.weight": ["embed_tokens.weight"], "head.norm.weight": ["norm.weight"]}
        if not shape.tied_embeddings:
            names["head.output.weight"] = ["lm_head.weight"]
        for layer in range(shape.layers):
            ours, theirs = f"layers.{layer}", f"layers.{layer}"
            for origin, name in NORMS.items():
                if shape.qk_norm or "self_attn" not in origin:
                    names[f"{ours}.{name}.weight"] = [f"{theirs}.{origin}.weight"]
            for kind in ("weight", *(("bias",) if shape.qkv_bias else ())):
                names[f"{ours}.attention.qkv.{kind}"] = [f"{theirs}.self_attn.{p}_proj.{kind}" for p in "qkv"]
            for origin, name in PRODUCTS.items():
                has_bias = shape.out_bias if "self_attn" in origin else shape.ffn_bias
                for kind in ("weight", *(("bias",) if has_bias else ())):
                    names[f"{ours}.{name}.{kind}"] = [f"{theirs}.{origin}.{kind}"]
        return names

    def _gpt2_names(self) -> dict[str, list[str]]:
        names = {"embedding.tokens.weight": ["wte.weight"], "embedding.positions.weight": ["wpe.weight"]}
        names |= {f"head.norm.{kind}": [f"ln_f.{kind}"] for kind in ("weight", "bias")}
        for layer in range(self.shape.layers):
            for origin, name in (*GPT2_PARTS.items(), ("attn.c_attn", "attention.qkv")):
                for kind in ("weight", "bias"):
                    names[f"layers.{layer}.{name}.{kind}"] = [f"h.{layer}.{origin}.{kind}"]
        return names


def _bare(name: str) -> str:
    return name.removeprefix("model.").removeprefix("transformer.")


def open_hugging_face(folder: Path) -> HuggingFaceModel:
    """The model that a folder's config.json describes."""
    path = folder / "config.json"
    config = read_json(path)
    family = str(config.get("model_type"))
    if family not in FAMILIES:
        raise ConfigError(f"{path}: model_type {family} is not run: choose a model of {', '.join(FAMILIES)}")
    try:
        sizes = _gpt2_sizes(config) if family == "gpt2" else _rotary_sizes(config, family)
        constants = LayerConstants(
            norm_epsilon=float(config["layer_norm_epsilon" if family == "gpt2" else "rms_norm_eps"]),
            rotary_base=_rotary_base(config),
            rotary_scaling=_rotary_scaling(config, str(path)),
        )
    except KeyError as error:
        raise ConfigError(f"{path}: lacks {error.args[0]}; give the whole config.json of a {family} model") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path}: {error}; give the config.json of a {family} model") from error
    _refuse_odd_parts(config, family, str(path))
    source = Source(kind="assumed", text=f"config.json of {folder.name}", checked=date.today())
    return HuggingFaceModel(
        folder=folder,
        family=family,
        shape=validate({"source": source.model_dump(), **sizes}, TransformerShape, where=str(path)),
        constants=constants,
        stop_tokens=named_stop_tokens(folder),
    )


def _rotary_sizes(config: dict[str, Any], family: str) -> dict[str, Any]:
    heads = int(config["num_attention_heads"])
    has_bias = bool(config.get("attention_bias", False))
    return {
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or int(config["hidden_size"]) // heads,
        "ffn_hidden": config["intermediate_size"],
        "vocab": config["vocab_size"],
        "seq": config["max_position_embeddings"],
        "gated": True,
        "positions": "rotary",
        "norm": "rmsnorm",
        "norm_bias": False,
        "qkv_bias": family == "qwen2" or has_bias,
        "out_bias": family != "qwen2" and has_bias,
        "ffn_bias": bool(config.get("mlp_bias", False)),
        "qk_norm": family == "qwen3",
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
    }


def _gpt2_sizes(config: dict[str, Any]) -> dict[str, Any]:
    hidden, heads = int(config["n_embd"]), int(config["n_head"])
    return {
        "layers": config["n_layer"],
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": hidden // heads,
        "ffn_hidden": config.get("n_inner") or 4 * hidden,
        "vocab": config["vocab_size"],
        "seq": config["n_positions"],
        "num_positions": config["n_positions"],
    }


def _rotary_values(config: dict[str, Any]) -> dict[str, Any]:
    """Newer files have `rope_parameters`, older ones `rope_theta` and perhaps `rope_scaling`."""
    return {"rope_theta": config.get("rope_theta", 10_000.0)} | (
        config.get("rope_parameters") or config.get("rope_scaling") or {}
    )


def _rotary_base(config: dict[str, Any]) -> float:
    return float(_rotary_values(config)["rope_theta"])


def _rotary_scaling(config: dict[str, Any], where: str) -> RotaryScaling | None:
    values = _rotary_values(config)
    kind = values.get("rope_type", values.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return RotaryScaling(factor=float(values["factor"]))
    if kind == "llama3":
        return RotaryScaling(
            factor=float(values["factor"]),
            original_positions=int(values["original_max_position_embeddings"]),
            low_turns=float(values["low_freq_factor"]),
            high_turns=float(values["high_freq_factor"]),
        )
    raise ConfigError(f"{where}: rotary scaling {kind} is not run: choose a model with default, linear or llama3")


def _refuse_odd_parts(config: dict[str, Any], family: str, where: str) -> None:
    activation = config.get("activation_function" if family == "gpt2" else "hidden_act", "")
    allowed = ("gelu_new", "gelu_pytorch_tanh") if family == "gpt2" else ("silu", "swish")
    odd = {
        f"the activation {activation}": activation not in allowed,
        "sliding windows": bool(config.get("sliding_window")) and config.get("use_sliding_window", True),
        "scores scaled by layer": bool(config.get("scale_attn_by_inverse_layer_idx")),
        "cross attention": bool(config.get("add_cross_attention")),
        "partial rotary positions": float(config.get("partial_rotary_factor", 1.0)) != 1.0,
        "quantised weights": bool(config.get("quantization_config")),
    }
    parts = [name for name, is_so in odd.items() if is_so]
    if parts:
        raise ConfigError(f"{where}: has {parts[0]}, which the engine does not run: choose another {family} model")
