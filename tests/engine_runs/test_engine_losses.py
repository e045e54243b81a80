"""torchtitan, DeepSpeed and our own trainer: the same weights and samples give the same losses."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import Cli
from tests.engine_runs.conftest import Bench, losses
from tests.engine_runs.test_engine_runs import check_run

pytestmark = pytest.mark.engines
MOST_APART = 1e-3


@pytest.mark.timeout(600)
def test_the_first_losses_agree(bench: Bench, weights: Path, cli: Cli, tmp_path: Path) -> None:
    load = ("--load", str(weights))
    ours = tmp_path / "ours"
    done = cli(
        "bench", "language", "--model", str(weights / "config.json"), "--layout", "dp=2,mbs=2,gbs=8", "--steps", "4",
        "--start-from", str(weights), "--run-dir", str(ours), timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    expected = losses(ours)
    assert len(expected) == 4
    for run in (
        bench("torchtitan", "dp=2,mbs=2,gbs=8,zero=3", *load),
        bench("torchtitan", "tp=2,mbs=2,gbs=8,sp=1", *load),
        bench("deepspeed", "dp=2,mbs=2,gbs=8,zero=1", *load),
    ):
        check_run(run, run.parent.name, steps=4, cli=cli)
        assert losses(run) == pytest.approx(expected, abs=MOST_APART)


def test_an_engine_that_dies_at_its_start_says_why(bench: Bench, engines_python: str, weights: Path, cli: Cli,
                                                   tmp_path: Path) -> None:  # fmt: skip
    del bench
    run = tmp_path / "run"
    done = cli(
        "bench", "engine", "torchtitan", "--model", str(weights / "config.json"), "--layout",
        "dp=2,mbs=2,gbs=8,zero=3", "--steps", "2", "--set", "training.nonsense=3", "--python", engines_python,
        "--run-dir", str(run), timeout=280,
    )  # fmt: skip
    assert done.returncode == 3
    assert "Invalid field names" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Invalid field names" in (run / "exit_info.json").read_text()


def test_weights_of_another_shape_are_refused(bench: Bench, engines_python: str, weights: Path, cli: Cli,
                                              tmp_path: Path) -> None:  # fmt: skip
    del bench
    other = tmp_path / "config.json"
    other.write_text(
        (weights / "config.json").read_text().replace('"intermediate_size": 176', '"intermediate_size": 192')
    )
    done = cli(
        "bench", "engine", "deepspeed", "--model", str(other), "--layout", "dp=2,mbs=2,gbs=8", "--steps", "2",
        "--load", str(weights), "--python", engines_python, "--run-dir", str(tmp_path / "run"), timeout=280,
    )  # fmt: skip
    assert done.returncode == 2
    assert "its intermediate_size is 176, the model's is 192" in done.stderr
