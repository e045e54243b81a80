"""A request for a run on this machine, from what the user gives."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from scalewright.catalog.library import Catalog
from scalewright.engines.types import EngineRequest
from scalewright.errors import ConfigError
from scalewright.workload.layout import Layout
from scalewright.workload.named import resolve_model
from scalewright.workload.precision import recipe

SYNTHETIC = "synthetic"


def settings_of(text: str) -> dict[str, str]:
    """`--set key=value`, several separated by blanks."""
    settings = {}
    for word in shlex.split(text):
        key, mark, value = word.partition("=")
        if not (mark and key):
            raise ConfigError(f"--set {word!r}: is not key=value: write it as the engine's own key, such as steps=5")
        settings[key] = value
    return settings


def bench_request(
    catalog: Catalog, *, model: str, layout: Layout, precision: str, seq_len: int, run_dir: Path, **rest: Any
) -> EngineRequest:  # fmt: skip
    """The request of a short run here. Paths are made full, and must exist."""
    spec = resolve_model(catalog, model)
    spec = spec.with_seq(seq_len) if seq_len else spec
    num_gpus = int(layout.num_gpus)
    for name in ("data", "load", "tokenizer", "engine_dir"):
        if rest.get(name) and rest[name] != SYNTHETIC:
            rest[name] = existing_path(rest[name], flag=name.replace("_", "-"))
    if int(rest["num_steps"]) < 1:
        raise ConfigError(f"--steps {rest['num_steps']}: a run needs 1 or more")
    return EngineRequest(
        spec=spec, layout=layout, recipe=recipe(precision), seq_len=spec.transformer.seq, gpus_per_node=num_gpus,
        num_gpus=num_gpus, run_dir=run_dir, **rest,
    )  # fmt: skip


def existing_path(text: str, *, flag: str) -> str:
    """The full path; Megatron's data are named without their suffix."""
    path = Path(text).expanduser()
    if not path.exists() and not path.with_name(f"{path.name}.bin").is_file():
        raise ConfigError(f"--{flag} {text!r}: no such file or folder: check the path")
    return str(path.absolute())
