"""`bench generate` against a real server on loopback and with our engine: figures, resuming, ranks."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openai_server import OpenAiServer
from scalewright.catalog.library import open_catalog
from scalewright.records.answers import AnswerLine, read_answers
from scalewright.records.measurements import read_measurements
from scalewright.records.run_directory import RunDirectory
from scalewright.study.execute import execute, execution_of

pytestmark = pytest.mark.ranks

Cli = Callable[..., subprocess.CompletedProcess[str]]
LENGTHS = ("--prompt-lengths", "uniform:4-12", "--answer-lengths", "uniform:3-9")
MODEL = "layers=2,hidden=32,heads=4,vocab=96,seq=64"
ENGINE = ("bench", "generate", "--model", MODEL, "--device", "cpu", "--system", "discoverer", *LENGTHS)


def answers_in(path: Path) -> list[AnswerLine]:
    return read_answers(RunDirectory(path).all_rank_answers())


def measured(cli: Cli, *options: str, **more: Any) -> dict[str, Any]:
    result = cli(*options, "--json", **more)
    assert result.returncode == 0, result.stderr
    doc: dict[str, Any] = json.loads(result.stdout)
    return doc


def test_a_server_is_measured_at_two_rates_in_the_pace_that_it_has(tmp_path: Path, cli: Cli) -> None:
    with OpenAiServer(first_s=0.05, gap_s=0.01) as server:
        command = (
            "bench", "generate", "--url", f"{server.url}/v1", "--answer-lengths", "fixed:8", "--prompt-lengths", "6",
            "--num", "8", "--rate", "20,40", "--run-dir", str(tmp_path / "r"),
            "--model", "llama2-7b", "--system", "leonardo",
        )  # fmt: skip
        doc = measured(cli, *command, env={"OPENAI_API_KEY": "sk-not-for-anybody"})
        shown = cli(*command)
    assert [row["load"] for row in doc["rows"]] == ["20/s", "40/s"]
    for row in doc["rows"]:
        assert (row["num_answers"], row["num_tokens"], row["num_prompt_tokens"]) == (8, 64, 48)
        assert row["ttft_median_s"] >= 0.05
        assert 0.009 <= row["itl_median_s"] < 0.1
        assert row["cache_mean_frac"] is not None, "as the server's own page of metrics says"
        assert row["num_preemptions"] == 0
    assert {one["name"] for one in doc["summary"]["comparisons"]} == {"tokens_per_s", "ttft_s", "itl_s"}
    assert all(len(body["prompt"]) == 6 for body in server.served[1:])
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer sk-not-for-anybody"}
    stored = "".join(path.read_text(errors="replace") for path in (tmp_path / "r").rglob("*") if path.is_file())
    assert "sk-not-for-anybody" not in stored, "the key is written nowhere"
    assert "is finished: nothing to run" in shown.stderr
    assert max(map(len, shown.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("500", 3, "answered 500: 'CUDA out of memory'"),
        ("hang", 3, "sent nothing for 1.00 s, the limit that --timeout sets"),
        ("garbage", 3, "which is not JSON"),
        ("cut", 3, "ended its stream before the answer was whole"),
        ("400", 2, "refuses the request (400): 'the prompt is longer than the context of 16 tokens'"),
    ],
)
def test_a_server_that_fails_leaves_its_answers_and_the_others_are_asked_for_again(
    fault: str, code: int, words: str, tmp_path: Path, cli: Cli
) -> None:
    path, num_good = tmp_path / "r", 5
    options = ("--answer-lengths", "4", "--prompt-lengths", "4", "--num", "12", "--concurrency", "2")
    with OpenAiServer(fault=fault, num_good=num_good, gap_s=0.001) as server:
        command = ("bench", "generate", "--url", server.url, *options, "--timeout", "1 s", "--run-dir", str(path))
        result = cli(*command)
        port = int(server.url.rpartition(":")[2])
    assert result.returncode == code, result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert words in last
    kept = answers_in(path)
    assert len(kept) in (num_good - 1, num_good), "the first good one tries the form of a request"
    assert f"{len(kept)} finished answers are kept: run it again to ask for the others" in last

    with OpenAiServer(port=port, gap_s=0.001) as server:
        doc = measured(cli, *command)
    assert len(server.served) - 1 == 12 - len(kept), "only what was missing is asked for"
    assert server.most_running <= 2
    assert [answer.request for answer in answers_in(path)] == list(range(12))
    assert doc["rows"][0]["num_attempts"] == 2
    assert any("several attempts" in note for note in doc["notes"])


def test_prompts_of_a_file_are_sent_as_text_to_a_chat(tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        '{"prompt": "Why is the sky blue?", "answer_len": 3}\n{"prompt": "And the sea?", "answer_len": 2}\n'
    )
    with OpenAiServer(api="chat", is_strict=True, gap_s=0.001) as server:
        doc = measured(
            cli, "bench", "generate", "--url", server.url, "--requests", str(file), "--run-dir", str(tmp_path / "r")
        )
    texts = {body["messages"][0]["content"] for body in server.served if "messages" in body}
    assert {"Why is the sky blue?", "And the sea?"} <= texts
    assert (doc["rows"][0]["num_answers"], doc["rows"][0]["num_tokens"]) == (2, 5)
    assert doc["device"]["api"] == "chat"


def test_the_engine_gives_every_answer_on_any_layout_alike(tmp_path: Path, cli: Cli) -> None:
    tokens = {}
    for layout in ("tp=1", "tp=2", "dp=2"):
        path = tmp_path / layout
        command = (*ENGINE, "--num", "6", "--temperature", "0", "--layout", layout, "--run-dir", str(path))
        doc = measured(cli, *command)
        row = doc["rows"][0]
        answers = answers_in(path)
        tokens[layout] = [answer.tokens for answer in answers]
        assert row["num_answers"] == len(answers) == 6
        assert row["num_tokens"] == sum(len(answer.tokens) for answer in answers)
        assert 0.0 < row["cache_mean_frac"] <= row["cache_most_frac"] <= 1.0
        assert 0.0 < row["busy_frac"] <= 1.0
        assert row["decode_bytes_per_token"] > 0.0
        assert row["memory_roof_frac"] is not None
        assert row["usd_per_million_tokens"] is not None
        assert (row["rank_gap_frac"] is None) == (layout == "tp=1")
        assert {one["name"] for one in doc["summary"]["comparisons"]} == {"tokens_per_s", "itl_s"}
        assert all(one["interval"][0] < one["predicted"] < one["interval"][1] for one in doc["summary"]["comparisons"])
    assert tokens["tp=1"] == tokens["tp=2"] == tokens["dp=2"]


def test_open_arrivals_wait_for_their_time_and_a_small_cache_puts_aside(tmp_path: Path, cli: Cli) -> None:
    begun_s = time.monotonic()
    doc = measured(
        cli, *ENGINE, "--num", "16", "--rate", "200", "--cache", "48 KiB", "--prompt-lengths", "14",
        "--answer-lengths", "40", "--run-dir", str(tmp_path / "r"),
    )  # fmt: skip
    row = doc["rows"][0]
    answers = answers_in(tmp_path / "r")
    assert len(answers) == row["num_answers"] == 16
    assert all(answer.sent_s >= answer.arrival_s for answer in answers)
    assert all(answer.first_s >= answer.sent_s for answer in answers)
    assert row["time_s"] <= time.monotonic() - begun_s
    assert row["cache_most_frac"] > 0.5
    assert row["num_preemptions"] > 0, "two sequences of 54 tokens have no room together"


def test_a_cache_below_one_sequence_is_refused(tmp_path: Path, cli: Cli) -> None:
    result = cli(*ENGINE, "--num", "2", "--cache", "1 KiB", "--run-dir", str(tmp_path / "r"))
    assert result.returncode == 2, result.stderr
    assert "error: a cache of 1.00 KiB is too small: one sequence of" in result.stderr.splitlines()[-1]


def test_decode_steps_and_prompts_are_rows_over_batch_and_context(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "model": MODEL, "device": "cpu", "batches": "1,3", "contexts": "40", "prompts": "8,24", "budget": "20 s",
    }  # fmt: skip
    execution = execution_of(open_catalog(), "decode", options, path=tmp_path / "r", where="a test")
    assert execute(execution) == 0, execution.directory.log(0).read_text()
    rows = read_measurements(execution.directory).rows
    assert [(row["phase"], row["batch"]) for row in rows] == [
        ("prefill", 1), ("prefill", 1), ("decode", 1), ("decode", 3),
    ]  # fmt: skip
    one, three = rows[2:]
    assert one["context"] == pytest.approx(40, abs=4)
    assert 0.0 < one["time_low_s"] <= one["time_s"] <= one["time_high_s"]
    cached_bytes = 2 * 2 * 32 * 4
    assert three["read_bytes"] - one["read_bytes"] == pytest.approx(
        cached_bytes * (3 * three["context"] - one["context"])
    )
    assert three["tokens_per_s"] == pytest.approx(3 / three["time_s"])


def write_llama(folder: Path, *, layers: int = 1, hidden: int = 16, vocab: int = 48) -> None:
    """A tiny Llama in the form of a Hugging Face folder, with weights that follow from their names."""
    folder.mkdir()
    config = {
        "model_type": "llama", "hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": layers,
        "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": vocab, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    sizes = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocab, hidden),
    }
    for layer in range(layers):
        name = f"model.layers.{layer}"
        sizes |= {f"{name}.{norm}.weight": (hidden,) for norm in ("input_layernorm", "post_attention_layernorm")}
        sizes |= {f"{name}.self_attn.{part}_proj.weight": (hidden, hidden) for part in "qkvo"}
        sizes |= {f"{name}.mlp.{part}_proj.weight": (2 * hidden, hidden) for part in ("gate", "up")}
        sizes[f"{name}.mlp.down_proj.weight"] = (hidden, 2 * hidden)
    header, data = {}, b""
    for number, (name, size) in enumerate(sizes.items()):
        values = np.random.default_rng(number).normal(0.0, 0.3, size).astype(np.float32).tobytes()
        header[name] = {"dtype": "F32", "shape": list(size), "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_weights_of_a_hugging_face_folder_answer_and_others_are_refused(tmp_path: Path, cli: Cli) -> None:
    folder = tmp_path / "llama"
    write_llama(folder)
    common = ("bench", "generate", "--device", "cpu", "--system", "discoverer", *LENGTHS, "--temperature", "0")
    for run, seed_options in (("a", ()), ("b", ("--layout", "tp=2"))):
        command = (*common, "--weights", str(folder), "--num", "3", *seed_options, "--run-dir", str(tmp_path / run))
        assert measured(cli, *command)["rows"][0]["num_answers"] == 3
    tokens = [[answer.tokens for answer in answers_in(tmp_path / run)] for run in "ab"]
    assert tokens[0] == tokens[1]
    assert max(token for answer in tokens[0] for token in answer) < 48
    other = cli(*common, "--model", MODEL, "--weights", str(folder), "--num", "1", "--run-dir", str(tmp_path / "c"))
    assert other.returncode == 2, other.stderr
    assert "its model has layers 1, and --model has 2" in other.stderr.splitlines()[-1]
