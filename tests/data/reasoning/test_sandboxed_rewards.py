"""Rewards in the sandbox: a broken one costs its own answer, is counted by kind, and gets the reward that was set."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from scalewright.data.reasoning.known_rewards import run_tests
from scalewright.data.reasoning.rewards import open_reward, scores
from scalewright.data.reasoning.sandboxed_rewards import RUN_TESTS, code_of
from scalewright.data.reasoning.settings import TaskSettings
from scalewright.data.reasoning.task import Score
from scalewright.data.sandbox.types import SandboxMode
from scalewright.errors import ConfigError, EnvironmentFailedError

ROWS = [{"id": f"line-{place}", "prompt": f"number {place}", "response": str(place), "tests": ""} for place in range(6)]
FUNCTION = "import os, time\ndef reward(prompts, completions, **rest):\n    "
BREAKS = {
    "3": ("time.sleep(60)", "time"),
    "1": ("os._exit(0)", "crash"),
    "4": ("raise ValueError('four')", "error"),
    "5": ("x = bytearray(1 << 40)", "memory"),
}


def graded(
    reward: str, rows: Sequence[Mapping[str, Any]] = ROWS, *, sandbox: SandboxMode = "auto", **changes: Any
) -> list[Score]:
    options = {"reward_timeout_s": 1.0, **changes}
    settings = TaskSettings(kind="files", prompts="p", tokenizer="t", reward=reward, sandbox=sandbox, **options)
    opened = open_reward(settings)
    try:
        return scores(opened.values(rows), rows, settings)
    finally:
        opened.close()


@pytest.mark.parametrize("reward_batch", [1, 256])
def test_each_broken_answer_costs_itself_only(tmp_path: Path, reward_batch: int) -> None:
    lines = "".join(f"    if '{text}' in completions: {code}\n" for text, (code, _) in BREAKS.items())
    body = FUNCTION + "pass\n" + lines + "    return [float(text) for text in completions]\n"
    (tmp_path / "mine.py").write_text(body)
    ends = graded(f"{tmp_path}/mine.py:reward", reward_batch=reward_batch, broken_reward=-0.5)
    assert [one.failure for one in ends] == ["", "crash", "", "time", "error", "memory"]
    assert [one.reward for one in ends] == [0.0, -0.5, 2.0, -0.5, -0.5, -0.5]
    assert not any(one.is_correct for one in ends if one.failure)
    assert ends[4].why == "the reward has no value: it raised an exception (ValueError: four)"


def test_values_that_are_none_cost_their_answers(tmp_path: Path) -> None:
    values = "[float('nan'), 'good', None, {'reward': 1, 'why': 'fine'}, True, {'is_correct': True}]"
    (tmp_path / "mine.py").write_text(FUNCTION + f"return [{values}[int(text)] for text in completions]\n")
    ends = graded(f"{tmp_path}/mine.py:reward")
    assert [one.failure for one in ends] == ["value", "value", "value", "", "", "value"]
    assert (ends[3].why, ends[4].reward) == ("fine", 1.0)
    assert "problem line-0 got nan: a reward is a finite number" in ends[0].why


def test_a_command_runs_in_the_sandbox_too(tmp_path: Path) -> None:
    program = (
        "import json, os, sys\nfor line in sys.stdin:\n    row = json.loads(line)\n"
        "    if row['response'] == '2': os.abort()\n    print(int(row['response']) / 10)\n"
    )
    (tmp_path / "grade.py").write_text(program)
    ends = graded(f"command: {sys.executable} {tmp_path}/grade.py", reward_timeout_s=10.0)
    assert [one.failure for one in ends] == ["", "", "crash", "", "", ""]
    assert [one.reward for one in ends] == [0.0, 0.1, 0.0, 0.3, 0.4, 0.5]


def test_the_reward_sees_neither_secrets_nor_files_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_USER", "x")
    (tmp_path / "code").mkdir()
    (tmp_path / "notes.txt").write_text("private")
    body = FUNCTION + (
        f"return [float('SECRET_OF_USER' in os.environ or os.path.exists('{tmp_path}/notes.txt'))] * len(prompts)\n"
    )
    (tmp_path / "code" / "mine.py").write_text(body)
    assert [one.reward for one in graded(f"{tmp_path}/code/mine.py:reward")] == [0.0] * 6


def test_a_module_of_the_working_folder_is_shown_without_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.txt").write_text("private")
    body = FUNCTION + f"return [float(os.path.exists('{tmp_path}/notes.txt'))] * len(prompts)\n"
    (tmp_path / "reward_of_mine.py").write_text(body)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [one.reward for one in graded("reward_of_mine:reward")] == [0.0] * 6


@pytest.mark.parametrize(
    ("body", "kind", "sentence"),
    [
        ("raise KeyError('gold')", ConfigError, "fails for all 12 answers of its first batch (the rew"),
        ("return None", ConfigError, "fails for all 12 answers of its first batch"),
        ("no python", ConfigError, "cannot be imported: SyntaxError"),
    ],
)  # fmt: skip
def test_a_reward_that_is_broken_itself_is_one_sentence(
    tmp_path: Path, body: str, kind: type[Exception], sentence: str
) -> None:
    (tmp_path / "mine.py").write_text(FUNCTION + body + "\n")
    with pytest.raises(kind) as refusal:
        graded(f"{tmp_path}/mine.py:reward", ROWS * 2)
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_command_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(EnvironmentFailedError, match="/no/such/program does not start: No such file"):
        graded("command: /no/such/program")


TESTS = "assert add(2, 2) == 4\nassert add(-1, 1) == 0"
ANSWERS = {
    "def add(a, b):\n    return a + b\n": (1.0, "", "all tests pass"),
    "Here it is:\n```python\ndef add(a, b):\n    return a + b\n```\nDone.": (1.0, "", "all tests pass"),
    "def add(a, b): return 4": (0.0, "", "an assert does not hold (line 2 of the tests)"),
    "import sys; sys.exit(0)": (0.0, "", "the answer raised RuntimeError: SystemExit: 0"),
    "while True: pass": (0.0, "time", "the reward has no value: it ran past its time limit"),
    "I do not know.": (0.0, "", "the answer raised SyntaxError"),
}


def test_run_tests_executes_answers_against_their_asserts() -> None:
    rows = [{"id": place, "prompt": "", "response": text, "tests": TESTS} for place, text in enumerate(ANSWERS)]
    for one, (reward, failure, why) in zip(graded(RUN_TESTS, rows), ANSWERS.values(), strict=True):
        assert (one.reward, one.is_correct, one.failure) == (reward, reward == 1.0, failure)
        assert one.why.startswith(why)
    values = run_tests(prompts=["", ""], completions=list(ANSWERS)[1:3], tests=[TESTS] * 2)
    assert [one["reward"] for one in values] == [1.0, 0.0]


def test_run_tests_needs_a_sandbox_and_tests() -> None:
    with pytest.raises(ConfigError, match="run_tests executes the answers: give --sandbox auto or --sandbox strict"):
        graded(RUN_TESTS, sandbox="off")
    with pytest.raises(ConfigError, match="problem line-0 has no field tests: write code with asserts"):
        graded(RUN_TESTS)


def test_the_last_fenced_block_is_the_code() -> None:
    assert code_of("x = 1") == "x = 1"
    assert code_of("```\nx = 1\n```\nor\n```py\nx = 2\n```") == "x = 2\n"
    assert code_of("```python\nx = 3") == "x = 3"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"sandbox": "full"}, "sandbox is 'full': choose off, auto, strict"),
        ({"reward_memory_bytes": 1}, "memory_bytes of a reward is 1: give 16777216 or more"),
        ({"broken_reward": float("nan")}, "broken_reward is nan: give a finite number"),
    ],
)
def test_settings_of_the_sandbox_are_checked(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        TaskSettings(kind="files", prompts="p", tokenizer="t", **changes)


def test_scores_with_failures_can_be_written() -> None:
    odd = "```python\nraise ValueError('\\ud800')\n```"
    score = graded(RUN_TESTS, [{"id": "a", "prompt": "", "response": odd, "tests": TESTS}])[0]
    assert (score.reward, score.is_correct) == (0.0, False)
    assert json.loads(json.dumps(score.why, ensure_ascii=False).encode("utf-8")) == score.why
    assert "ValueError" in score.why
