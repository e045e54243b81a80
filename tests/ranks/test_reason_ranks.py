"""Stages over two ranks: the same answers and nearly the same losses as on one, and every rank's time in the record."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from scalewright.records.hybrid import read_hybrid
from scalewright.records.reasoning import CurvePoint, read_curve, read_stage, read_stored_answers
from scalewright.records.run_directory import RunDirectory

pytestmark = pytest.mark.ranks
Cli = Callable[..., subprocess.CompletedProcess[str]]
TASK = ("--numbers", "2", "--largest", "11", "--operators", "+")
QUICK = ("--device", "cpu", "--eval-problems", "8")


def run(cli: Cli, *arguments: str) -> subprocess.CompletedProcess[str]:
    result = cli("reason", *arguments)
    assert result.returncode == 0, result.stderr
    return result


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, shared_cli_with_ranks: Cli) -> Path:
    """A model that solves some problems, trained on two ranks."""
    path = tmp_path_factory.mktemp("reason") / "sft"
    run(
        shared_cli_with_ranks, "sft", "--model", "layers=1,hidden=32,heads=2", *TASK, *QUICK, "--steps", "110",
        "--batch", "32", "--num-traces", "256", "--learning-rate", "0.02", "--ranks", "2", "--run-dir", str(path),
    )  # fmt: skip
    return path


def curve(cli: Cli, started: Path, path: Path, layout: str, *others: str) -> list[CurvePoint]:
    run(
        cli, "grpo", *QUICK, "--start-from", str(started), "--steps", "3", "--num-prompts", "8", "--answers", "4",
        "--batch", "16", "--layout", layout, *others, "--run-dir", str(path),
    )  # fmt: skip
    return read_curve(RunDirectory(path))


def test_any_layout_samples_the_same_answers_and_learns_the_same(cli: Cli, started: Path, tmp_path: Path) -> None:
    one = curve(cli, started, tmp_path / "one", "dp=1")
    sharded = curve(cli, started, tmp_path / "sharded", "dp=2,zero=3")
    tensor = curve(cli, started, tmp_path / "tensor", "tp=2", "--engine-tp", "2")
    for other in (sharded, tensor):
        assert [p.reward_mean for p in other] == [p.reward_mean for p in one]
        assert [p.length_mean for p in other] == [p.length_mean for p in one]
        assert [p.grad_norm for p in other] == pytest.approx([p.grad_norm for p in one], rel=1e-3)
    record = read_stage(RunDirectory(tmp_path / "sharded"))
    assert len(record.rank_seconds_by_part) == 2
    assert 0.0 <= record.rank_gap_frac < 1.0
    assert record.collectives["all_gather"].bytes > 4 * record.num_params / 2
    assert record.split is not None
    shares = (record.split.compute_frac, record.split.communication_frac, record.split.data_wait_frac)
    assert sum(shares) + record.split.idle_frac == pytest.approx(1.0)


def test_ranks_reach_a_token_budget_together(cli: Cli, started: Path, tmp_path: Path) -> None:
    """One engine over two ranks goes as on one; two copies of the engine share the open answers."""
    budget = ("--token-budget", "300", "--retention", "4")
    one = curve(cli, started, tmp_path / "one", "dp=1", *budget)
    tensor = curve(cli, started, tmp_path / "tensor", "tp=2", "--engine-tp", "2", *budget)
    curve(cli, started, tmp_path / "copies", "dp=2,zero=3", *budget)
    assert [(p.reward_mean, p.num_tokens) for p in tensor] == [(p.reward_mean, p.num_tokens) for p in one]
    for name in ("one", "copies"):
        record = read_hybrid(RunDirectory(tmp_path / name))
        assert record is not None
        assert all(300 <= step.num_decoded_tokens < 300 + 32 for step in record.steps)
        assert sum(step.num_trained_tokens for step in record.steps) > 0


def test_copies_share_the_shards(cli: Cli, started: Path, tmp_path: Path) -> None:
    command = (
        "generate", "--device", "cpu", "--start-from", str(started), "--num-problems", "24", "--shard-problems", "8",
        "--answers", "2", "--keeps", "all",
    )  # fmt: skip
    run(cli, *command, "--run-dir", str(tmp_path / "one"))
    two = run(cli, *command, "--ranks", "2", "--run-dir", str(tmp_path / "two"), "--json")
    assert read_stored_answers(tmp_path / "two") == read_stored_answers(tmp_path / "one")
    assert json.loads(two.stdout)["num_samples"] == 48
