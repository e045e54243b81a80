"""Every engine trains on two CPU ranks over Gloo; its log becomes a run directory like our own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conftest import Cli
from tests.engine_runs.conftest import Bench, losses

pytestmark = pytest.mark.engines
TWO = "dp=2,mbs=2,gbs=8"


def check_run(run: Path, engine: str, *, steps: int, cli: Cli) -> dict[str, float | None]:
    """What every run directory of an engine says; its measured numbers."""
    config = json.loads((run / "config.json").read_text())
    assert (config["engine"], config["num_ranks"], config["device"]) == (engine, 2, "cpu")
    packages = json.loads((run / "provenance.json").read_text())["attempts"][-1]["packages"]
    assert packages["torch"].startswith("2.")
    assert config["version"] in packages.values()
    assert json.loads((run / "exit_info.json").read_text())["reason"] == "finished"
    done = cli("report", str(run), "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["num_steps"], summary["num_ranks"]) == (steps, 2)
    explained = cli("explain", str(run))
    assert explained.returncode in (0, 1), explained.stderr
    assert f"{steps} steps" in explained.stdout
    return {row["name"]: row["measured"] for row in summary["comparisons"]}


@pytest.mark.parametrize("zero", [2, 3])
def test_deepspeed_shards_gradients_and_weights(zero: int, bench: Bench, cli: Cli) -> None:
    run = bench("deepspeed", f"{TWO},zero={zero}")
    numbers = check_run(run, "deepspeed", steps=4, cli=cli)
    assert numbers["process_memory"] > 100 * 2**20
    assert losses(run)[-1] < losses(run)[0]


def test_huggingface_trainer(bench: Bench, cli: Cli) -> None:
    run = bench("huggingface", TWO)
    check_run(run, "huggingface", steps=4, cli=cli)
    assert losses(run)[-1] < losses(run)[0]


def test_trl_fine_tunes(bench: Bench, cli: Cli) -> None:
    run = bench("trl", TWO, "--task", "sft")
    check_run(run, "trl", steps=4, cli=cli)
    assert losses(run)[-1] < losses(run)[0]


def test_trl_reinforces(bench: Bench, cli: Cli) -> None:
    run = bench("trl", TWO, "--task", "grpo", steps=2)
    check_run(run, "trl", steps=2, cli=cli)
    rows = [json.loads(line) for line in (run / "events" / "rank-0.jsonl").read_text().splitlines()]
    assert [0.0 <= row["value"] <= 1.0 for row in rows if row.get("name") == "reward"] == [True, True]


def test_megatron_core_with_tensor_parallelism(bench: Bench, cli: Cli) -> None:
    run = bench("megatron", "tp=2,mbs=2,gbs=8")
    check_run(run, "megatron", steps=4, cli=cli)
    assert losses(run)[-1] < losses(run)[0]
