"""Plans of stage rl and generate as jobs of verl, TRL and vLLM: the generator's layout and lengths are the plan's."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.conftest import Cli

RL = "prompts=32,samples=16,prompt=512,response=1024,longest=2048"


@pytest.fixture
def stage_plan(cli: Cli, tmp_path: Path) -> Path:
    done = cli(
        "plan", "--model", "llama3-8b", "--system", "leonardo", "--nodes", "8", "--stage", "rl", "--rl", RL,
        "--fix", "tp=1,pp=1,cp=1,zero=3,recompute=full", "--out", "rl.json", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return tmp_path / "rl.json"


def launch(cli: Cli, plan: Path, engine: str) -> tuple[int, str, str]:
    done = cli(
        "launch", str(plan), "--engine", engine, "--site", "leonardo", "--account", "EUHPC_D01_001", "--dry-run",
        cwd=plan.parent,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def generator_tp(plan: Path) -> int:
    (tp,) = {one["generator"]["tp"] for one in json.loads(plan.read_text())["choices"] if one["name"] == "on policy"}
    return int(tp)


def test_verl_gets_batch_lengths_and_generator_of_the_plan(cli: Cli, stage_plan: Path) -> None:
    code, script, said = launch(cli, stage_plan, "verl")
    assert code == 0, said
    for words in (
        "data.train_batch_size=32", "data.max_prompt_length=512", "data.max_response_length=2048",
        "actor_rollout_ref.actor.ppo_mini_batch_size=32", "actor_rollout_ref.rollout.n=16",
        f"actor_rollout_ref.rollout.tensor_model_parallel_size={generator_tp(stage_plan)}",
    ):  # fmt: skip
        assert words in script
    assert "100 are assumed, change it with --set trainer.total_training_steps=N" in said


def test_trl_gets_answers_and_generator_of_the_plan(cli: Cli, stage_plan: Path) -> None:
    code, script, said = launch(cli, stage_plan, "trl")
    assert code == 0, said
    tp = generator_tp(stage_plan)
    grpo = re.search(r'"grpo": (\{[^}]*\})', script)
    assert grpo is not None
    assert json.loads(grpo[1]) == {
        "num_generations": 16, "max_completion": 2048, **({"vllm_tensor_parallel_size": tp} if tp > 1 else {})
    }  # fmt: skip


def test_a_layout_that_verl_lacks_is_refused_with_the_option_of_plan(cli: Cli, tmp_path: Path) -> None:
    done = cli(
        "plan", "--model", "llama3-8b", "--system", "leonardo", "--nodes", "8", "--stage", "rl", "--rl", RL,
        "--fix", "tp=2,pp=1,cp=1,zero=1", "--out", "rl.json", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    code, _, said = launch(cli, tmp_path / "rl.json", "verl")
    assert code == 2
    assert "verl cannot express tp=2" in said
    assert re.search(r"plan again with --fix tp=1,zero=3", said)


def test_the_server_of_a_plan_of_stage_generate(cli: Cli, tmp_path: Path) -> None:
    done = cli(
        "plan", "--model", "llama3-8b", "--system", "leonardo", "--nodes", "1", "--stage", "generate", "--generate",
        "prompt=1024,response=512", "--out", "gen.json", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    layout = json.loads((tmp_path / "gen.json").read_text())["choices"][0]["layout"]
    code, script, said = launch(cli, tmp_path / "gen.json", "vllm")
    assert code == 0, said
    assert f"--tensor-parallel-size {layout['tp']} --pipeline-parallel-size {layout['pp']}" in script
    assert "--max-model-len 1536" in script
    code, _, said = launch(cli, tmp_path / "gen.json", "verl")
    assert (code, "is a plan of stage generate, and verl does grpo here: use --engine vllm" in said) == (2, True)


def test_a_plan_of_stage_rl_is_not_for_an_engine_that_pretrains(cli: Cli, stage_plan: Path) -> None:
    code, _, said = launch(cli, stage_plan, "megatron")
    assert code == 2
    assert "use --engine verl or trl" in said
