"""Token sets of a text pipeline, read by the programs that people train with: every token as tokenizers makes it."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

import pytest
from tests.conftest import ROOT, Cli

pytestmark = pytest.mark.engines
END = "<|endoftext|>"
PIPELINE = """schema = "scalewright.data-pipeline/1"
seed = 5
[read]
paths = ["in.jsonl"]
chunk = "8 kB"
[tokenise]
tokenizer = "tokenizer"
[shuffle]
[write]
format = "{form}"
num_shards = 2
"""
MEGATRON = """
import json, sys
import numpy as np
from types import SimpleNamespace
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.core.datasets.utils import Split
folder, expected = sys.argv[1], json.load(open(sys.argv[2]))
documents = []
for prefix in (f"{folder}/shard-00000", f"{folder}/shard-00001"):
    low = IndexedDataset(prefix)
    own = [low[at].tolist() for at in range(len(low))]
    documents += own
    tokenizer = SimpleNamespace(eod=0, vocab_size=300, pad=-1, unique_identifiers={"name": "test"})
    config = GPTDatasetConfig(
        random_seed=1, sequence_length=64, blend=([prefix], None), split="1,0,0", path_to_cache=f"{folder}-cache",
        tokenizer=tokenizer, reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False,
        create_attention_mask=False,
    )
    samples = GPTDataset(low, prefix, np.arange(len(low), dtype=np.int32), None, Split.train, config)
    stream = [token for at in samples.document_index for token in own[at]]
    for at in range(len(samples)):
        start = int(samples.shuffle_index[at]) * 64
        one = samples[at]
        assert one["tokens"].tolist() == stream[start : start + 64], at
        assert one["labels"].tolist() == stream[start + 1 : start + 65], at
    assert len(samples) == (len(stream) - 1) // 64
assert documents == expected
print("equal documents", len(documents))
"""
NUM_TEXTS = 80
HUGGING_FACE = """
import json, sys
from datasets import load_dataset
folder, expected = sys.argv[1], json.load(open(sys.argv[2]))
by_folder = load_dataset(folder, split="train")
by_files = load_dataset("parquet", data_files=f"{folder}/shard-*.parquet", split="train")
streamed = load_dataset(folder, split="train", streaming=True)
for one in (by_folder, by_files, streamed):
    assert [row["input_ids"] for row in one] == expected
print("equal documents", len(expected))
"""
TORCHTITAN = """
import dataclasses, itertools, json, sys
sys.path.insert(0, sys.argv.pop(1))
folder, expected_path, tokenizer_path, dump = sys.argv[1:5]
from train_torchtitan import for_cpu
for_cpu()
import torch
import torchtitan.distributed.utils as titan_distributed
from torchtitan.components.tokenizer import HuggingFaceTokenizer
from torchtitan.config import ConfigManager
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataset
from torchtitan.models.llama3 import get_train_spec
from torchtitan.models.llama3.model.args import TransformerModelArgs
from torchtitan.protocols.train_spec import register_train_spec
from torchtitan.train import Trainer
titan_distributed.set_pg_timeouts = lambda *_, **__: None
tokenizer = HuggingFaceTokenizer(tokenizer_path)
samples = HuggingFaceTextDataset("c4_test", folder, tokenizer, seq_len=32)
stream = list(itertools.chain.from_iterable(json.load(open(expected_path))))
num = 0
for number, (inputs, labels) in enumerate(samples):  # its windows do not overlap: 33 tokens each
    assert inputs["input"].tolist() == stream[33 * number : 33 * number + 32]
    assert labels.tolist() == stream[33 * number + 1 : 33 * number + 33]
    num += 1
assert num == len(stream) // 33
spec = get_train_spec()
args = TransformerModelArgs(dim=32, n_layers=1, n_heads=2, n_kv_heads=2, vocab_size=300, max_seq_len=32)
register_train_spec("llama3", dataclasses.replace(spec, model_args={**spec.model_args, "tiny": args}))
job = ConfigManager().parse_args([
    "--model.name", "llama3", "--model.flavor", "tiny", "--model.hf_assets_path", tokenizer_path,
    "--training.dataset", "c4_test", "--training.dataset_path", folder, "--training.seq_len", "32",
    "--training.local_batch_size", "4", "--training.steps", "3", "--job.dump_folder", dump,
    "--optimizer.implementation", "for-loop",
])
trainer, taken = Trainer(job), []
forward = trainer.forward_backward_step
def noted(**batch):
    taken.append(batch["input_dict"]["input"][:, :3].tolist())
    return forward(**batch)
trainer.forward_backward_step = noted
trainer.train()
trainer.close()
assert len(taken) == 3
assert taken[0] == [stream[33 * at : 33 * at + 3] for at in range(4)]
print("trained", trainer.step)
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="session")
def token_sets(shared_cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """megatron/ and parquet/ with the same documents, and expected.json: their tokens by the package tokenizers."""
    from pyarrow import parquet
    from tokenizers import Tokenizer

    folder = tmp_path_factory.mktemp("token-sets")
    rng = random.Random(0)
    words = [f"{rng.choice('bcdfgklm')}{rng.choice('aeiou')}{rng.randrange(40)}" for _ in range(200)]
    texts = [" ".join(rng.choices(words, k=rng.randrange(20, 200))) for _ in range(NUM_TEXTS)]
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    for form in ("parquet", "megatron"):
        (folder / f"{form}.toml").write_text(PIPELINE.format(form=form))
    made = shared_cli("data", "train-tokenizer", "parquet.toml", "--vocab", "300", cwd=folder)
    assert made.returncode == 0, made.stderr
    for form in ("parquet", "megatron"):
        done = shared_cli("data", "run", f"{form}.toml", "--out", f"{form}-set", "--workers", "1", cwd=folder)
        assert done.returncode == 0, done.stderr
    inner = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    shards = sorted((folder / "parquet-set").glob("shard-*.parquet"))
    stored = [text for path in shards for text in parquet.read_table(path)["text"].to_pylist()]
    assert sorted(stored) == sorted(texts)
    expected = [[*inner.encode(text).ids, inner.token_to_id(END)] for text in stored]
    (folder / "expected.json").write_text(json.dumps(expected))
    return folder


def read(python: str, code: str, *args: str, folder: Path) -> str:
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf"), "PYTHONPATH": "", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0",
    }  # fmt: skip
    done = subprocess.run(
        [python, "-c", code, *args],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_megatron_reads_the_same_tokens(engines_python: str, token_sets: Path) -> None:
    names = (str(token_sets / "megatron-set"), str(token_sets / "expected.json"))
    assert f"equal documents {NUM_TEXTS}\n" in read(engines_python, MEGATRON, *names, folder=token_sets)


def test_hugging_face_datasets_reads_the_same_tokens(engines_python: str, token_sets: Path) -> None:
    names = (str(token_sets / "parquet-set"), str(token_sets / "expected.json"))
    assert f"equal documents {NUM_TEXTS}\n" in read(engines_python, HUGGING_FACE, *names, folder=token_sets)


def test_torchtitan_makes_the_same_tokens_and_trains_on_them(engines_python: str, token_sets: Path) -> None:
    programs = ROOT / "src" / "scalewright" / "engines" / "programs"
    names = (str(token_sets / name) for name in ("parquet-set", "expected.json", "tokenizer", "titan"))
    output = read(engines_python, TORCHTITAN, str(programs), *names, folder=token_sets)
    assert "trained 3" in output
