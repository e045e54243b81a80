"""Two runs compared: the term that grew, the difference that can explain it, and honesty where nothing does."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from scalewright.observe.compare import RunComparison, compare_runs
from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import Happening, Spot, StepFact

Cli = Callable[..., subprocess.CompletedProcess[str]]
SPOT = Spot(file="log", line=1)


def run(
    parts_s: dict[str, float], *, settings: dict[str, str] | None = None, noise: float = 0.01,
    num_tokens: float = 1000.0, num_steps: int = 40, happenings: tuple[Happening, ...] = (), **more: object,
) -> Evidence:  # fmt: skip
    steps = []
    for number in range(num_steps):
        wobble = 1.0 + noise * math.sin(5.1 * number)
        steps.append(StepFact(
            step=number, spot=SPOT, dialect="x", rank=0, time_s=sum(parts_s.values()) * wobble, num_tokens=num_tokens,
            parts_s={name: time_s * wobble for name, time_s in parts_s.items()},
        ))  # fmt: skip
    return Evidence(
        steps=steps, settings={name: (value, SPOT) for name, value in (settings or {}).items()},
        happenings=list(happenings), **more,  # type: ignore[arg-type]
    )  # fmt: skip


def compare(first: Evidence, second: Evidence) -> RunComparison:
    return compare_runs(first, second, names=("good", "bad"))


GOOD = {"compute": 0.8, "communication": 0.1, "data": 0.1}


def test_the_difference_that_changes_the_term_that_grew_is_first() -> None:
    shown = compare(
        run(GOOD, settings={"num_workers": "8", "precision": "bf16"}, environment={"NCCL_ALGO": "Ring"}),
        run(
            {**GOOD, "data": 0.6}, settings={"num_workers": "0", "precision": "fp32"}, environment={"NCCL_ALGO": "Tree"}
        ),
    )
    assert shown.gap == "slower"
    assert shown.gap_frac == pytest.approx(0.5, abs=0.02)
    assert shown.terms[0].name == "data"
    assert shown.terms[0].gap_frac == pytest.approx(1.0, abs=0.02)
    assert shown.verdict.startswith("bad is 50% slower than good. setting num_workers is 0 instead of 8")
    assert shown.certainty == "likely"
    assert shown.suspects[1].finding is not None
    assert shown.suspects[1].finding.rule.id == "data-loader-bound"
    others = {one.difference.name: one.explained_frac for one in shown.suspects[1:] if one.difference}
    assert others == {"precision": pytest.approx(0.0, abs=0.02), "NCCL_ALGO": pytest.approx(0.0, abs=0.02)}


def test_a_variable_of_the_network_explains_communication() -> None:
    shown = compare(
        run(GOOD, environment={"A": "1"}),
        run({**GOOD, "communication": 0.9}, environment={"A": "1", "NCCL_IB_DISABLE": "1"}),
    )
    assert "variable NCCL_IB_DISABLE is 1 instead of not set" in shown.verdict


def test_a_gap_that_no_difference_explains_is_said() -> None:
    shown = compare(
        run(GOOD, settings={"num_workers": "8"}), run({**GOOD, "communication": 0.9}, settings={"num_workers": "4"})
    )
    assert "no difference that was read explains it" in shown.verdict
    assert "Most of the gap is in communication" in shown.verdict
    assert shown.certainty == "unknown"


def test_two_differences_of_one_term_cannot_be_told_apart() -> None:
    first = run(GOOD, environment={"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"})
    second = run({**GOOD, "communication": 0.5}, environment={"NCCL_ALGO": "Tree", "NCCL_PROTO": "Simple"})
    shown = compare(first, second)
    assert "change one at a time" in shown.verdict
    assert shown.certainty == "possible"


def test_noise_is_no_gap() -> None:
    shown = compare(run(GOOD, noise=0.1), run({**GOOD, "data": 0.11}, noise=0.1, settings={"num_workers": "0"}))
    assert shown.gap == "equal"
    assert "No gap beyond noise" in shown.verdict


def test_batches_that_differ_are_compared_at_equal_tokens() -> None:
    shown = compare(run(GOOD), run({name: 2 * time_s for name, time_s in GOOD.items()}, num_tokens=2000.0))
    assert shown.gap == "equal"
    assert shown.per_token


def test_ids_ports_and_secrets_are_no_differences() -> None:
    shown = compare(
        run(GOOD, environment={"SLURM_JOB_ID": "1", "MASTER_PORT": "1", "HF_TOKEN": "hf_a"}, settings={"gbs": "4"}),
        run(GOOD, environment={"SLURM_JOB_ID": "2", "MASTER_PORT": "2", "HF_TOKEN": "hf_b"}, settings={"gbs": "4.0"}),
    )
    assert shown.differences == ()


def test_a_run_that_died_is_explained_by_what_can_kill_it() -> None:
    end = Happening(kind="device_out_of_memory", spot=SPOT, message="CUDA out of memory", rank=0)
    shown = compare(
        run(
            GOOD,
            settings={"mbs": "1", "num_workers": "4"},
            happenings=(Happening(kind="finished", spot=SPOT, message=""),),
        ),
        run(GOOD, settings={"mbs": "8", "num_workers": "4"}, num_steps=9, happenings=(end,)),
    )
    assert shown.verdict.startswith("bad ended badly and good did not: Rank 0 ran out of device memory")
    assert "setting mbs is 8 instead of 1" in shown.verdict


def test_runs_without_steps_cannot_be_compared() -> None:
    assert "cannot be compared" in compare(Evidence(), run(GOOD)).verdict


def test_the_command_compares_two_run_directories(tmp_path: Path, cli: Cli) -> None:
    for name, time_s in (("a", 0.1), ("b", 0.2)):
        folder = tmp_path / name / "events"
        folder.mkdir(parents=True)
        (tmp_path / name / "run.json").write_text(
            json.dumps({"schema": "scalewright.run/1", "id": name, "kind": "language"})
        )
        lines = [
            json.dumps({"time": 1e9 + step, "job": "j", "rank": 0, "host": "h", "step": step, "name": "step_time",
                        "unit": "s", "value": time_s})
            for step in range(30)
        ]  # fmt: skip
        (folder / "rank-0.jsonl").write_text("\n".join(lines) + "\n")
    shown = cli("explain", "a", "b", cwd=tmp_path)
    assert shown.returncode == 1, shown.stderr
    assert "b takes 2.0 times as long as a" in " ".join(shown.stdout.split())
    document = json.loads(cli("explain", "b", "a", "--json", cwd=tmp_path).stdout)
    assert document["schema"] == "scalewright.run-comparison/1"
    assert document["gap"] == "faster"
    assert document["gap_frac"] == pytest.approx(-0.5)
