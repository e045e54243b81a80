"""The example of the documentation runs as it is, and a stage keeps the task of the stage that it starts from."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewright.data.reasoning.prompt_files import read_prompts, read_traces
from scalewright.data.reasoning.rewards import open_reward, scores
from scalewright.errors import ConfigError
from scalewright.launch.prepare.reason_setup import ReasonRequest, Start, stage_task
from scalewright.workload.reasoning.stage_run import GrpoSettings
from scalewright.workload.reasoning.task_settings import TaskSettings, file_task

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "examples" / "sums"


def test_the_reward_of_the_documentation_scores_its_prompts() -> None:
    spec = f"{EXAMPLE}/reward.py:reward"
    lines = read_prompts(EXAMPLE / "prompts.jsonl")
    texts = [str(lines[0].fields["answer"]), "999", "what"]
    rows = [{**line.fields, "response": text} for line, text in zip(lines, texts, strict=False)]
    settings = TaskSettings(kind="files", prompts="prompts.jsonl", tokenizer="tokenizer", reward=spec)
    reward = open_reward(settings)
    try:
        graded = scores(reward.values(rows), rows, settings)
    finally:
        reward.close()
    assert [score.reward for score in graded] == [1.0, 0.1, 0.0]
    assert [score.is_correct for score in graded] == [True, False, False]
    assert graded[1].why == f"999 is written, and {lines[1].fields['answer']} is right"


def test_traces_of_the_documentation_answer_its_prompts() -> None:
    answers = {line.text: line.fields["answer"] for line in read_prompts(EXAMPLE / "prompts.jsonl")}
    traces = read_traces(EXAMPLE / "traces.jsonl")
    right = sum(response == answers[line.text] for line, response in traces)
    assert len(traces) == len(answers) == 300
    assert 0.7 < right / len(traces) < 0.9, "the solver is weak on purpose"


def grpo(**task: object) -> ReasonRequest:
    return ReasonRequest(stage="grpo", settings=GrpoSettings(), task=task)


def sums(**changes: object) -> TaskSettings:
    options = {"prompts": str(EXAMPLE / "prompts.jsonl"), "tokenizer": str(EXAMPLE / "tokenizer"), "max_response": 8}
    return file_task(**{**options, **changes})  # type: ignore[arg-type]


def test_a_stage_keeps_the_task_of_its_start_and_changes_what_is_given() -> None:
    start = Start(task=sums())
    assert stage_task(grpo(), start) == sums()
    changed = stage_task(grpo(reward=f"{EXAMPLE}/reward.py:reward"), start)
    assert (changed.prompts, changed.max_response) == (sums().prompts, 8)
    assert changed.files_digest != sums().files_digest
    assert changed == sums(reward=f"{EXAMPLE}/reward.py:reward")
    harder = stage_task(grpo(numbers=4), Start(task=TaskSettings(largest=12)))
    assert harder == TaskSettings(numbers=4, largest=12)


def test_prompts_make_a_task_of_files_whatever_came_before() -> None:
    prompts, tokenizer = str(EXAMPLE / "prompts.jsonl"), str(EXAMPLE / "tokenizer")
    task = stage_task(grpo(prompts=prompts, tokenizer=tokenizer), Start(task=TaskSettings(numbers=4)))
    assert task == sums(max_response=1024)
    with pytest.raises(ConfigError, match="a task of files needs tokenizer"):
        stage_task(grpo(prompts=prompts), Start())
    with pytest.raises(ConfigError, match=r"prompts 'gone\.jsonl': no such file"):
        stage_task(grpo(prompts="gone.jsonl", tokenizer=tokenizer), Start())
