"""An engine's job on a real Slurm: asked to stop it saves, is queued again, and goes on with its next step."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import Cli
from tests.practice_cluster import started

from scalewright.lab.cluster import Lab
from scalewright.lab.spec import LabSpec

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]
PATIENCE_S = 240.0
NUM_STEPS = 120
_STEP = re.compile(r"steps: (\d+) loss")


@pytest.fixture
def slurm() -> Iterator[Lab]:
    yield from started(LabSpec(num_nodes=1, num_gpus_per_node=2, accounting=False))


def wait_for(condition: Callable[[], object], shown: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, shown()[-4000:]
        time.sleep(0.2)


def test_a_deepspeed_job_that_gets_the_notice_is_queued_again_and_resumes(
    slurm: Lab, weights: Path, engines_python: str, cli: Cli, tmp_path: Path
) -> None:
    planned = cli(
        "plan", "--model", str(weights / "config.json"), "--system", "generic-h100", "--gpus", "2", "--global-batch",
        "8", "--steps", str(NUM_STEPS), "--precision", "fp32", "--fix", "tp=1,pp=1,zero=1", "--out", "plan.json",
        cwd=tmp_path,
    )  # fmt: skip
    assert planned.returncode == 0, planned.stderr
    run = tmp_path / "run"
    done = cli(
        "launch", "plan.json", "--engine", "deepspeed", "--site", "generic", "--data", "synthetic", "--python",
        engines_python, "--device", "cpu", "--run-dir", str(run), "--time", "00:20:00", cwd=tmp_path, env=slurm.env,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    log_path = run / "logs" / f"slurm-{job}.out"

    def log() -> str:
        return log_path.read_text(errors="replace") if log_path.exists() else done.stderr

    wait_for(lambda: len(_STEP.findall(log())) >= 3, log)
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    wait_for(lambda: "stopped by SIGUSR1 after a whole step" in log(), log)
    wait_for(lambda: f"{NUM_STEPS} loss" in log(), log)
    saved = int(re.findall(r"after a whole step; (\d+) steps are saved", log())[0])
    assert 3 <= saved < NUM_STEPS
    assert f"{saved} of {NUM_STEPS} steps done" in log()
    assert [int(step) for step in _STEP.findall(log())] == list(range(1, NUM_STEPS + 1)), "a step was lost or repeated"
