"""FSDP settings of Hugging Face's Trainer, read by the code of transformers and accelerate themselves."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from scalewright.catalog.library import open_catalog
from scalewright.engines.adapters.huggingface import trainer_section
from scalewright.engines.prepare import bench_request
from scalewright.workload.layout import parse_layout

pytestmark = pytest.mark.engines
READ = """
import json, sys
from accelerate.utils import FullyShardedDataParallelPlugin
from transformers import TrainingArguments
from trl import GRPOConfig, SFTConfig
kinds = {"pretrain": TrainingArguments, "sft": SFTConfig, "grpo": GRPOConfig}
for task, section in json.loads(sys.argv[1]):
    arguments = kinds[task](output_dir=sys.argv[2], use_cpu=True, report_to="none", **section)
    if not arguments.fsdp:
        print(json.dumps({"is_on": False}))
        continue
    plugin = FullyShardedDataParallelPlugin(**arguments.fsdp_plugin_args)
    print(json.dumps({
        "is_on": True, "version": plugin.fsdp_version, "reshards": plugin.reshard_after_forward,
        "recomputes": plugin.activation_checkpointing, "state": str(plugin.state_dict_type),
        "wraps": plugin.auto_wrap_policy.__name__,
    }))
"""


def section(layout: str, folder: Path) -> dict[str, object]:
    request = bench_request(
        open_catalog(None), model="llama3-8b", layout=parse_layout(layout), precision="bf16", seq_len=0,
        run_dir=folder, num_steps=1, device="cuda", data="synthetic", engine_python="python",
    )  # fmt: skip
    return trainer_section(request)


LAYOUTS = {
    "dp=8,mbs=1,gbs=8,zero=3,recompute=full": {"reshards": True, "recomputes": True},
    "dp=8,mbs=1,gbs=8,zero=3": {"reshards": True, "recomputes": False},
    "dp=8,mbs=1,gbs=8,zero=2": {"reshards": False, "recomputes": False},
    "dp=8,mbs=1,gbs=8,zero=0": {"is_on": False},
}
SHARDED = {
    "is_on": True, "version": 2, "wraps": "transformer_auto_wrap_policy", "state": "StateDictType.SHARDED_STATE_DICT",
}  # fmt: skip


def test_the_settings_mean_in_the_library_what_the_layout_says(engines_python: str, tmp_path: Path) -> None:
    """The Trainer's own arguments, and those of TRL's two trainers, which get the same section."""
    cases = [(task, layout) for task in ("pretrain", "sft", "grpo") for layout in LAYOUTS]
    sections = json.dumps([(task, section(layout, tmp_path)) for task, layout in cases])
    done = subprocess.run(
        [engines_python, "-W", "error::FutureWarning", "-c", READ, sections, str(tmp_path)], capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr
    read = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for (task, layout), settings in zip(cases, read, strict=True):
        meant = LAYOUTS[layout]
        assert settings == (SHARDED | meant if "reshards" in meant else meant), (task, layout)
