"""`reason` refuses bad input in one sentence, before anything is started and without leaving a folder."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from scalewright.data.reasoning.settings import TaskSettings
from scalewright.records.documents import document, write_document
from scalewright.records.run_directory import MANIFEST, RunDirectory
from scalewright.workload.layout import Layout
from scalewright.workload.model import from_shape
from scalewright.workload.reasoning.stage_run import ReasonRun, SftSettings

Refused = Callable[..., str]
Here = Callable[..., subprocess.CompletedProcess[str]]
CPU = ("--device", "cpu")

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "sums"
SUMS = ("--prompts", str(EXAMPLE / "prompts.jsonl"), "--tokenizer", str(EXAMPLE / "tokenizer"))
REFUSED = [
    (("grpo", "--answers", "1"), "a group of 1: an advantage compares the answers to one prompt"),
    (("grpo", "--loss", "ppo"), "loss 'ppo' is not known: choose grpo, dapo, dr-grpo, gspo, c3po"),
    (("grpo", "--correction", "magic"), "correction 'magic' is not known: choose none, tis, icepop"),
    (("grpo", "--band-low", "2"), "the band must hold 1"),
    (("grpo", "--num-prompts", "-1"), "num_prompts is -1"),
    (("grpo", "--batch", "5"), "256 answers of a step do not divide into updates of gbs=5"),
    (("grpo", "--temperature", "0"), "give a temperature above 0"),
    (("grpo", "--engines", "4096"), "4096 engines with 4096 ranks on"),
    (("grpo", "--engines", "1", "--staleness", "-1"), "--staleness -1: give 0 (synchronous), 1 (one step off) or more"),
    (("grpo", "--staleness", "1"), "--staleness 1: the trainer's own ranks write the answers"),
    (("grpo", "--engines", "1", "--sync", "mail"), "sync 'mail' is not known: choose auto, broadcast, peers, file"),
    (("grpo", "--engines", "2", "--engine-tp", "1,1,1"), "--engine-tp 1,1,1 names 3 engines, and --engines is 2"),
    (("grpo", "--engines", "1", "--release", "on"), "release on is for engines on the trainer's devices"),
    (("grpo", "--release", "maybe"), "release 'maybe' is not known: choose auto, off, on"),
    (("grpo", "--token-budget", "4k", "--stale-keys", "--release", "on"), "choose one of them"),
    (("grpo", "--token-budget", "36"), "the token budget is 36, and one answer may have 37 tokens: give at least that"),
    (("grpo", "--token-budget", "0.5"), "the token budget is 0.5: give a whole number of tokens"),
    (("grpo", "--token-budget", "many"), "'many' is not a count"),
    (("grpo", "--token-budget", "4k", "--retention", "0"), "the retention limit is 0, which gives up every rollout"),
    (("grpo", "--token-budget", "4k", "--groups", "half"), "groups 'half' is not known: choose whole, parts"),
    (("grpo", "--token-budget", "4k", "--old-tokens", "drop"), "old_tokens 'drop' is not known: choose train, mask"),
    (("grpo", "--loss", "c3po"), "loss c3po divides by the token budget, and there is none"),
    (("sft", "--eval-problems", "100000000"), "countdown: 100000000 problems to test, and this difficulty has 378"),
    (("sft", "--attempts", "65"), "countdown: attempts is 65: give a whole number from 1 to 64"),
    (("sft", "--start-from", "absent"), "--start-from 'absent': holds no whole checkpoint and no safetensors"),
    (("sft", "--data-from", "absent"), "--data-from 'absent': holds no answers"),
    (("sft", "--model", "no-such-model"), "no-such-model"),
    (("sft", "--model", "resnet-50"), "resnet-50"),
    (("sft", "--steps", "-1"), "steps is -1: give 1 or more"),
    (("sft", "--num-traces", "0"), "num_traces is 0: give 1 or more"),
    (("sft", "--lora", "4"), "adapters of rank 4 need a trained base: give --start-from"),
    (("sft", "--layout", "pp=2"), "split by dp, zero and tp only"),
    (("sft", "--layout", "dp=2", "--ranks", "3"), "--ranks 3 does not match layout"),
    (("sft", "--numbers", "9"), "countdown: numbers is 9"),
    (("sft", "--operators", "^"), "countdown: operators are '^'"),
    (("sft", "--task", "chess"), "task 'chess' is not known"),
    (("sft", "--prompts", "absent.jsonl"), "prompts 'absent.jsonl': no such file: check the path"),
    (("sft", *SUMS), "256 answers to test prompts are scored at the end, and the task has no reward: give --reward"),
    (("grpo", *SUMS), "reason grpo scores answers, and the task has no reward: give --reward"),
    (("sft", "--start-from", "stage", "--model", "layers=3,hidden=32,heads=2"), "its model has layers 1"),
    (("sft", "--start-from", "stage", "--operators", "+-"), "its vocabulary has 40 tokens and the task needs"),
    (("distill", "--mode", "on-policy"), "give --teacher"),
    (("distill", "--mode", "on-policy", "--teacher", "stage"), "vocabulary of 40 and student"),
    (("distill", "--mode", "telepathy"), "mode 'telepathy' is not known"),
    (
        ("distill",),
        "reason distill has no answers of a teacher: give --data-from, the run directory of reason generate",
    ),
    (
        ("distill", "--start-from", "stage", "--eval-problems", "8"),
        "without a teacher, reason sft trains on traces of the task",
    ),
    (("generate",), "reason generate has no weights to sample from: give --start-from, the folder of a stage"),
    (
        ("evaluate", "--model", "layers=1,hidden=32,heads=2"),
        "reason evaluate has no weights to score: give --start-from",
    ),
    (("generate", "--num-problems", "0"), "num_problems is 0"),
    (("evaluate", "--eval-answers", "-1"), "evaluation num_answers is -1"),
    (("evaluate", "--engine-precision", "int2"), "precision 'int2' is not known"),
]


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    """What is read of an earlier stage before its weights are."""
    shape = from_shape("layers=1,hidden=32,heads=2,vocab=40,seq=64").transformer
    run = ReasonRun(
        stage="sft",
        model_id="small",
        shape=shape,
        layout=Layout(gbs=8),
        settings=SftSettings(),
        device="cpu",
        task=TaskSettings(numbers=2, largest=11, operators="+", values=24),
    )
    directory = RunDirectory.create_or_resume(tmp_path / "stage", run.document())
    folder = directory.checkpoint(100)
    folder.mkdir(parents=True)
    write_document(folder / MANIFEST, document("checkpoint", {"step": 100}))
    return tmp_path


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=lambda value: " ".join(value)[:40])
def test_bad_input_is_refused_in_one_sentence(
    options: tuple[str, ...], words: str, stage: Path, shared_cli: Here
) -> None:
    before = sorted(path.name for path in stage.iterdir())
    result = shared_cli("reason", *options, *CPU, cwd=stage)
    assert result.returncode == 2, result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert words in last, last
    assert not result.stdout
    assert sorted(path.name for path in stage.iterdir()) == before


@pytest.mark.parametrize(
    ("given", "num_problems"), [({}, 127), ({"eval_problems": 100}, 100), ({"eval_problems": 0}, 0)]
)
def test_the_usual_evaluation_takes_all_problems_of_a_task_with_few(
    tmp_path: Path, given: dict[str, int], num_problems: int
) -> None:
    from scalewright.catalog.library import open_catalog
    from scalewright.study.execute import execution_of

    options = {"stage": "sft", "numbers": 2, "largest": 20, "operators": "+-*", "device": "cpu", **given}
    execution = execution_of(open_catalog(None), "reason", options, path=tmp_path / "r", where="a test", predicts=False)
    assert execution.config["evaluation"]["num_problems"] == num_problems


def test_a_stage_takes_model_and_task_from_the_one_it_starts_from(stage: Path) -> None:
    from scalewright.catalog.library import open_catalog
    from scalewright.study.execute import execution_of

    options = {"stage": "grpo", "start_from": str(stage / "stage"), "device": "cpu", "eval_problems": 8}
    execution = execution_of(open_catalog(None), "reason", options, path=stage / "r", where="a test", predicts=False)
    config = json.loads(json.dumps(execution.config))
    assert config["model_id"] == "small"
    assert config["shape"]["vocab"] == 40
    assert config["settings"]["num_answers"] == 8
