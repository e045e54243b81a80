"""`advise` and `preflight` refuse what cannot be, in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Cli, Refused


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plan") / "plan.json"


def test_without_a_scheduler_there_is_no_advice(cli: Cli, refused: Refused, tmp_path: Path, plan: Path) -> None:
    made = cli(
        *("plan", "--model", "gpt3-1.3b", "--system", "selene", "--nodes", "1", "--global-batch", "64"),
        *("--steps", "10", "--out", str(plan)),
    )
    assert made.returncode == 0, made.stderr
    message = refused(cli("advise", str(plan), env={"PATH": str(tmp_path)}), 3)
    assert "PATH" in message
    assert "squeue" in refused(cli("advise", "--job", "1", env={"PATH": str(tmp_path)}), 3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["advise"], "give either PLAN.json"),
        (["advise", "p.json", "--job", "1"], "or --job ID"),
        (["advise", "none.json"], "no such file"),
        (["preflight", "--spares", "1"], "leaves no node to run on"),
        (["preflight", "--ranks", "-1"], "must not be negative"),
        (["preflight", "--partition", "p"], "--system"),
        (["preflight", "--deadline", "5 ms"], "too short"),
        (["preflight", "--min-free", "lots"], "lots"),
        (["preflight", "--system", "lumy"], "lumi"),
        (["preflight", "--transport", "pigeon"], "pigeon"),
        (["preflight", "--device", "tpu"], "cpu, cuda or auto"),
    ],
)
def test_refusals(cli: Cli, refused: Refused, tmp_path: Path, arguments: list[str], words: str) -> None:
    assert words in refused(cli(*arguments, cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []
