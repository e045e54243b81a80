"""Settings that logs state: the argument dumps of Megatron and DeepSpeed, and lines that name sizes of groups."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright.observe.readers.reader import Item, LineReader, Stated
from scalewright.observe.readers.source import Line

_DOTTED = re.compile(r"^\s*([A-Za-z_]\w*)\s?\.{3,}\s?(.*?)\s*$")
_TYPED = re.compile(r"^\s*([a-z_]\w*)\s+: (.*) \((?:int|str|bool|float)\)\s*$")
"""Primus: `  num_layers      : 8 (int)`."""
_WORLD = re.compile(r"([a-z][a-z-]*?)[- ]?(?:world )?size:\s*(\d+)")
_WORLD_NAMES = {
    "using world": "num_ranks", "using": "num_ranks", "data-parallel": "dp", "context-parallel": "cp",
    "tensor-model-parallel": "tp", "pipeline-model-parallel": "pp", "expert-model-parallel": "ep",
}  # fmt: skip
_MESH = re.compile(r"Building (\d)-D device mesh with \[([^\]]*)\], \[([^\]]*)\]")
_MESH_NAMES = {
    "dp_shard": "dp",
    "dp_replicate": "dp_replicate",
    "dp": "dp",
    "tp": "tp",
    "pp": "pp",
    "cp": "cp",
    "ep": "ep",
}
_VERSION = re.compile(r"\b(?:torch|PyTorch|pytorch)(?: version)?\s*[:=.]+\s*v?(\d+\.\d+[\w.+]*)")
_DEEPSPEED_VERSION = re.compile(r"DeepSpeed info: version=([\w.+]+)")
NAMES = {
    "num_layers": "layers", "hidden_size": "hidden", "num_attention_heads": "heads", "num_query_groups": "kv_heads",
    "ffn_hidden_size": "ffn_hidden", "padded_vocab_size": "vocab", "seq_length": "seq", "world_size": "num_ranks",
    "tensor_model_parallel_size": "tp", "pipeline_model_parallel_size": "pp", "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep", "data_parallel_size": "dp", "micro_batch_size": "mbs",
    "global_batch_size": "gbs",
    "train_batch_size": "gbs", "train_micro_batch_size_per_gpu": "mbs", "zero_optimization_stage": "zero",
    "zero_stage": "zero",
    "recompute_granularity": "recompute", "overlap_grad_reduce": "overlap", "num_workers": "num_workers",
    "save_interval": "checkpoint_every", "save": "checkpoint_dir", "train_iters": "steps", "num_experts": "num_experts",
}  # fmt: skip
_DTYPES = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}
MOST_SETTINGS = 2000


class SettingsReader(LineReader):
    """`  tensor_model_parallel_size ........ 8` and its like."""

    kind = "settings in a log"
    hints = (
        "......",
        "using world size:",
        "-D device mesh with",
        "DeepSpeed info: version=",
        "PyTorch version",
        "torch version",
        " (int)",
        " (str)",
        " (bool)",
        " (float)",
    )

    def __init__(self) -> None:
        self._num = 0

    def take(self, line: Line) -> Iterator[Item]:
        text = line.message
        if "......" in text:
            match = _DOTTED.match(text)
            if match and self._num < MOST_SETTINGS and not match[2].startswith(":"):
                self._num += 1
                yield from _dotted(line, match[1], match[2])
        elif text.endswith(")") and (match := _TYPED.match(text)):
            if self._num < MOST_SETTINGS:
                self._num += 1
                yield from _dotted(line, match[1], match[2])
        elif "using world size:" in text:
            for name, value in _WORLD.findall(text):
                known = _WORLD_NAMES.get(name.strip(" -"))
                if known:
                    yield Stated(known, value, line.spot)
        elif mesh := _MESH.search(text):
            names = [name.strip(" '\"") for name in mesh[2].split(",")]
            for name, value in zip(names, mesh[3].split(","), strict=False):
                yield Stated(_MESH_NAMES.get(name, name), value.strip(), line.spot)
        elif version := _DEEPSPEED_VERSION.search(text):
            yield Stated("deepspeed", version[1], line.spot, "versions")
        elif version := _VERSION.search(text):
            yield Stated("torch", version[1], line.spot, "versions")


def _dotted(line: Line, name: str, value: str) -> Iterator[Stated]:
    if name == "params_dtype" and value in _DTYPES:
        yield Stated("precision", _DTYPES[value], line.spot)
    elif name in ("bfloat16_enabled", "fp16_enabled") and value == "True":
        yield Stated("precision", "bf16" if name.startswith("b") else "fp16", line.spot)
    elif name == "use_distributed_optimizer" and value == "True":
        yield Stated("zero", "1", line.spot)
    elif name == "recompute_granularity" and value == "None":
        yield Stated("recompute", "none", line.spot)
    elif name in NAMES and value not in ("None", ""):
        yield Stated(NAMES[name], value, line.spot)
    elif value not in ("None", ""):
        yield Stated(name, value, line.spot)
