"""The environment of other training programs, a tiny Llama, and runs that several tests look at."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import Cli

ROOT = Path(__file__).resolve().parents[2]
ENGINES_PYTHON = "TEST_ENGINES_PYTHON"
"""Set by tools/run_tiers.py; without it the environment is made, or found where it was made before."""
SHAPE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 176,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "vocab_size": 256,
    "max_position_embeddings": 32, "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    "rope_theta": 10000.0, "torch_dtype": "float32",
}  # fmt: skip
MAKE_WEIGHTS = """
import sys, torch, transformers
torch.manual_seed(7)
config = transformers.AutoConfig.from_pretrained(sys.argv[1])
transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(sys.argv[1])
"""
Bench = Callable[..., Path]


@pytest.fixture(scope="session")
def engines_python() -> str:
    named = os.environ.get(ENGINES_PYTHON)
    if named:
        return named
    done = subprocess.run([ROOT / "tools/setup_engines.sh"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the environment of the engines could not be made: {done.stderr[-300:]}")
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="session")
def weights(engines_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder of a Llama with random weights."""
    folder = tmp_path_factory.mktemp("weights")
    (folder / "config.json").write_text(json.dumps(SHAPE))
    subprocess.run([engines_python, "-c", MAKE_WEIGHTS, str(folder)], check=True, capture_output=True)
    return folder


@pytest.fixture
def bench(engines_python: str, weights: Path, cli: Cli, tmp_path: Path) -> Bench:
    """Train with an engine as a user would; the run directory."""

    def run(engine: str, layout: str, *more: str, steps: int = 4) -> Path:
        path = tmp_path / engine / layout.replace(",", "-")
        done = cli(
            "bench", "engine", engine, "--model", str(weights / "config.json"), "--layout", layout, "--steps",
            str(steps), "--python", engines_python, "--run-dir", str(path), *more, timeout=280,
        )  # fmt: skip
        log = path / "logs" / "rank-0.log"
        assert done.returncode == 0, done.stderr + (log.read_text()[-3000:] if log.exists() else "")
        return path

    return run


def losses(run: Path) -> list[float]:
    """Of the first rank, step by step."""
    rows = (json.loads(line) for line in (run / "events" / "rank-0.jsonl").read_text().splitlines())
    return [row["value"] for row in rows if row.get("name") == "loss"]
