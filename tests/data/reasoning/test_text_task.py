"""The user's own prompts, traces, tokenizer and reward: what works, and one sentence for each thing that does not."""

from __future__ import annotations

import builtins
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from word_tokenizer import WORDS, ensure_package, write_folder

from scalewright.data.reasoning.task import Score, Task, open_task
from scalewright.data.reasoning.text_task import TextTask
from scalewright.errors import ConfigError, DocumentError, EnvironmentFailedError, MissingExtraError
from scalewright.workload.reasoning.task_settings import TaskSettings, file_task, task_document, task_from_document

SUMS = [{"prompt": f"what is {a} + {b} ?", "answer": str(a + b)} for a in range(5) for b in range(4)]
REWARD = "def reward(prompts, completions, answer, **rest):\n    "
MATCH = REWARD + "return [float(text == right) for text, right in zip(completions, answer)]\n"


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    ensure_package(monkeypatch)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    write_folder(tmp_path / "tokenizer")
    lines(tmp_path / "prompts.jsonl", SUMS)
    lines(tmp_path / "traces.jsonl", [{"prompt": row["prompt"], "response": row["answer"]} for row in SUMS])
    (tmp_path / "mine.py").write_text(MATCH)
    return tmp_path


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def settings_of(files: Path, **changes: Any) -> TaskSettings:
    options = {
        "prompts": str(files / "prompts.jsonl"), "tokenizer": str(files / "tokenizer"),
        "reward": f"{files}/mine.py:reward", "traces": str(files / "traces.jsonl"), "reward_timeout_s": 20.0,
    }  # fmt: skip
    return file_task(**{**options, **changes})


@pytest.fixture
def opened() -> Iterator[list[TextTask]]:
    tasks: list[TextTask] = []
    yield tasks
    for task in tasks:
        task.close()


def scored(files: Path, opened: list[TextTask], texts: list[str], **changes: Any) -> list[Score]:
    """The scores of these texts as answers to the first training problems."""
    task = open_task(settings_of(files, **changes))
    assert isinstance(task, TextTask)
    opened.append(task)
    problems = task.problems("train", len(texts), seed=0)
    return task.score_many((p, (*task.tokenizer.response(t), 1)) for p, t in zip(problems, texts, strict=True))


def test_prompts_traces_and_rewards_go_through_the_tokenizer(files: Path, opened: list[TextTask]) -> None:
    task = open_task(settings_of(files))
    assert isinstance(task, TextTask)
    opened.append(task)
    assert (task.vocab, task.stop_tokens, task.pad_token) == (len(WORDS), {1}, 0)
    assert (task.max_prompt, task.max_response) == (6, 1024)
    test, train = task.problems("test", 4, seed=0), task.problems("train", 16, seed=0)
    assert {p.id for p in test} | {p.id for p in train} == {f"line-{number}" for number in range(1, 21)}
    assert task.text(test[0].prompt) == test[0].facts["prompt"]
    right = [(p, (*task.tokenizer.response(p.facts["answer"]), 1)) for p in train]
    assert [score.reward for score in task.score_many(right)] == [1.0] * 16
    assert task.score(train[0], (WORDS.index("99"), 1)) == Score(reward=0.0, is_correct=False, why="the reward is 0")
    traces = task.cold_start(32, seed=1)
    assert all(trace.response[-1] == 1 for trace in traces)
    assert not {trace.problem.facts["prompt"] for trace in traces} & {p.facts["prompt"] for p in test}
    assert len({trace.problem.id for trace in traces[:16]}) == 16


def test_settings_keep_full_paths_and_follow_the_content(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    settings = settings_of(files, prompts="prompts.jsonl", reward="mine.py:reward")
    assert (settings.prompts, settings.reward) == (str(files / "prompts.jsonl"), f"{files}/mine.py:reward")
    assert task_from_document(json.loads(json.dumps(task_document(settings))), where="x") == settings
    (files / "mine.py").write_text(MATCH + "\n")
    assert settings_of(files).files_digest != settings.files_digest


def test_plain_text_holds_one_prompt_a_line(files: Path) -> None:
    (files / "prompts.txt").write_text("what is 1 + 2 ?\n\nthe sum of 3 and 4 is\n")
    task = open_task(settings_of(files, prompts=str(files / "prompts.txt")))
    texts = {p.facts["prompt"] for split in ("train", "test") for p in task.problems(split, 1, seed=0)}  # type: ignore[arg-type]
    assert texts == {"what is 1 + 2 ?", "the sum of 3 and 4 is"}


def test_the_same_prompt_twice_stays_in_one_split(files: Path) -> None:
    lines(files / "prompts.jsonl", SUMS + [{**row, "id": f"again-{place}"} for place, row in enumerate(SUMS)])
    task = open_task(settings_of(files))
    test = {p.facts["prompt"] for p in task.problems("test", 8, seed=0)}
    assert not test & {p.facts["prompt"] for p in task.problems("train", 32, seed=0)}
    with pytest.raises(ConfigError, match=r"9 problems to test, and .*prompts\.jsonl gives 8"):
        task.problems("test", 9, seed=0)


def test_a_command_gets_json_lines_and_gives_a_value_a_line(files: Path, opened: list[TextTask]) -> None:
    program = (
        "import json, sys\nfor line in sys.stdin:\n    row = json.loads(line)\n"
        "    print(json.dumps({'reward': len(row['response']), 'is_correct': False, 'why': row['id']}))\n"
    )
    (files / "grade.py").write_text(program)
    command = f"command: {sys.executable} {files}/grade.py"
    scores = scored(files, opened, ["1", "22", "1 + 1"], reward=command, reward_batch=2)
    assert [score.reward for score in scores] == [1.0, 2.0, 5.0]
    assert all(score.why.startswith("line-") and not score.is_correct for score in scores)


def test_a_command_is_not_read_by_a_shell(files: Path, opened: list[TextTask]) -> None:
    with pytest.raises(ConfigError, match="line 1 of its output is '1 ; touch "):
        scored(files, opened, ["1"], reward=f"command: echo 1 ; touch {files}/made")
    assert not (files / "made").exists()


@pytest.mark.parametrize(
    ("body", "kind", "sentence"),
    [
        ("return [float('nan')] * len(prompts)", ConfigError, "problem line-3 got nan: a reward is a finite number"),
        ("return [float('inf')] * len(prompts)", ConfigError, "got inf: a reward is a finite number"),
        ("return ['good'] * len(prompts)", ConfigError, "problem line-3 got 'good': a reward is a finite number"),
        ("return [None] * len(prompts)", ConfigError, "problem line-3 got None: a reward is a finite number"),
        ("return [[1.0]] * len(prompts)", ConfigError, "got '[1.0]': a reward is a finite number"),
        ("return [{'score': 1}] * len(prompts)", ConfigError, "got {'score': 1}: a reward is a finite number"),
        ("return [{'reward': 1, 'is_correct': 'yes'}] * len(prompts)", ConfigError, "has is_correct 'yes': give true"),
        ("return None", ConfigError, "returned None for problems line-"),
        ("return 1.0", ConfigError, "returned 1.0 for problems line-"),
        ("return 'all'", ConfigError, "returned 'all' for problems line-"),
        ("return [1.0]", ConfigError, "gave 1 values for 2 answers, problems line-3 to"),
        ("raise KeyError('gold')", ConfigError, "raised KeyError on problems line-3 to"),
        ("import os; os._exit(7)", EnvironmentFailedError, "ended with exit code 7 on 2 answers, problems line-3 to"),
        ("import os; os.kill(os.getpid(), 9)", EnvironmentFailedError, "was ended by SIGKILL on 2 answers"),
    ],
)
def test_a_reward_that_is_none_is_one_sentence(
    files: Path, opened: list[TextTask], body: str, kind: type[Exception], sentence: str
) -> None:
    (files / "mine.py").write_text(REWARD + body + "\n")
    with pytest.raises(kind) as refusal:
        scored(files, opened, ["1", "2"])
    message = str(refusal.value)
    assert sentence in message
    assert message.startswith(f"reward {files}/mine.py:reward")
    assert "\n" not in message


@pytest.mark.parametrize("kind", ["function", "command"])
def test_a_reward_that_hangs_ends_at_its_time_limit_with_all_it_started(
    files: Path, opened: list[TextTask], kind: str
) -> None:
    hang = (
        "import subprocess\nprocess = subprocess.Popen(['sleep', '600'])\n"
        f"open('{files}/pid', 'w').write(str(process.pid))\nprocess.wait()\n"
    )
    text = REWARD + hang.replace("\n", "\n    ") if kind == "function" else hang
    (files / "mine.py").write_text(text)
    reward = f"{files}/mine.py:reward" if kind == "function" else f"command: {sys.executable} {files}/mine.py"
    start_s = time.monotonic()
    with pytest.raises(EnvironmentFailedError, match=r"no result after 3 s for 2 answers, problems line-3 to"):
        scored(files, opened, ["1", "2"], reward=reward, reward_timeout_s=3.0)
    assert time.monotonic() - start_s < 15.0
    number = int((files / "pid").read_text())
    for _ in range(100):
        if not is_alive(number):
            break
        time.sleep(0.05)
    assert not is_alive(number)


def is_alive(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("reward", "kind", "sentence"),
    [
        ("", ConfigError, "the task has no reward: give reward as"),
        ("nothing", ConfigError, "write package.module:function, file.py:function, or command: PROGRAM ARGUMENTS"),
        ("command:", ConfigError, "names no program"),
        ("command: 'x", ConfigError, "No closing quotation; write command: PROGRAM ARGUMENTS"),
        ("no_such_package.inner:reward", ConfigError, "cannot be imported: ModuleNotFoundError"),
        ("json:no_function", ConfigError, "cannot be imported: LookupError: json has no function no_function"),
        ("command: /no/such/program", EnvironmentFailedError, "/no/such/program does not start: No such file"),
        ("command: false", EnvironmentFailedError, "ended with exit code 1 on problem line-"),
        ("command: echo yes", ConfigError, "line 1 of its output is 'yes': write one JSON number"),
        ("command: true", ConfigError, "gave 0 values for problem line-"),
        ("command: echo NaN", ConfigError, "got nan: a reward is a finite number"),
    ],
)
def test_a_reward_that_cannot_be_used_is_one_sentence(
    files: Path, opened: list[TextTask], reward: str, kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind) as refusal:
        scored(files, opened, ["1"], reward=reward)
    assert sentence in str(refusal.value)


def test_what_a_reward_prints_and_changes_stays_in_its_process(files: Path, opened: list[TextTask]) -> None:
    noisy = REWARD + "print('{\"values\": [9]}'); import os; os.environ['MARK_OF_REWARD'] = '1'; return [True, 0]\n"
    (files / "mine.py").write_text(noisy)
    scores = scored(files, opened, ["1", "2"])
    assert [(score.reward, score.is_correct) for score in scores] == [(1.0, True), (0.0, False)]
    assert "MARK_OF_REWARD" not in os.environ


def test_large_batches_pass_both_ways_at_once(files: Path, opened: list[TextTask]) -> None:
    """More than a pipe holds, in both directions."""
    (files / "mine.py").write_text(REWARD + "return [{'reward': 1, 'why': 'x' * 500} for _ in prompts]\n")
    scores = scored(files, opened, ["what is the sum of 1 and 2 ?"] * 3000, reward_batch=3000)
    assert len(scores) == 3000


def test_known_rewards_compare_with_the_answer_of_the_file(files: Path, opened: list[TextTask]) -> None:
    task = open_task(settings_of(files, reward="scalewright.data.reasoning.known_rewards:last_number"))
    assert isinstance(task, TextTask)
    opened.append(task)
    problem = next(p for p in task.problems("train", 16, seed=0) if p.facts["answer"] == "5")
    texts = ["2 + 3 is 5", "5 is 2", "what ?"]
    scores = task.score_many((problem, task.tokenizer.response(text)) for text in texts)
    assert [score.is_correct for score in scores] == [True, False, False]
    assert [score.why for score in scores] == [
        "the last number is right",
        "the last number is 2, and 5 is right",
        "no number is written",
    ]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("prompts.jsonl", "", "prompts.jsonl: holds no prompts: write one JSON object a line"),
        ("prompts.jsonl", "\n\n", "prompts.jsonl: holds no prompts"),
        ("prompts.jsonl", '{"prompt": "1"}\n{"prompt": ""}\n', "prompts.jsonl, line 2: prompt is '': give a text"),
        ("prompts.jsonl", '{"prompt": 3}\n', "prompts.jsonl, line 1: prompt is 3: give a text"),
        ("prompts.jsonl", '{"question": "1"}\n', "prompts.jsonl, line 1: has no prompt: write"),
        ("prompts.jsonl", '{"prompt": "1"}\n{"prompt"\n', "prompts.jsonl, line 2, column 10: is not valid JSON"),
        ("prompts.jsonl", '["1"]\n', "prompts.jsonl, line 1: holds a list"),
        ("prompts.jsonl", '{"prompt": "1"}\n', "prompts.jsonl: holds one prompt, to train or to test with"),
        ("prompts.jsonl", '{"prompt": "1"}\n{"prompt": "1 2 3 4 5 6 7 8 9"}\n', "line 2: the prompt has 9 tokens, and"),
        ("traces.jsonl", "", "traces.jsonl: holds no traces"),
        ("traces.jsonl", '{"prompt": "1"}\n', "traces.jsonl, line 1: response is None: write"),
        (
            "traces.jsonl",
            '{"prompt": "1", "response": "1 2 3 4 5 6 7 8 9"}\n',
            "line 1: the response has 10 tokens, and",
        ),
        ("traces.jsonl", '{"prompt": "1 2 3 4 5 6 7 8 9", "response": "1"}\n', "line 1: the prompt has 9 tokens, and"),
        ("tokenizer/tokenizer_config.json", "{}", "no file says which token ends an answer"),
        ("tokenizer/tokenizer.json", "{", "tokenizer.json: is no tokenizer"),
    ],
)
def test_files_that_do_not_fit_are_refused_with_file_and_line(files: Path, name: str, text: str, sentence: str) -> None:
    (files / name).write_text(text)
    with pytest.raises(ConfigError) as refusal:
        open_task(settings_of(files, max_prompt=8, max_response=8)).cold_start(1, seed=0)
    assert sentence in str(refusal.value)


def test_a_file_that_is_no_text_is_refused(files: Path) -> None:
    (files / "prompts.jsonl").write_bytes(b'{"prompt": "\xff"}\n')
    with pytest.raises(DocumentError, match=r"prompts\.jsonl: is not UTF-8 text \(byte 12\)"):
        open_task(settings_of(files))


def test_a_test_file_shares_no_prompt_with_the_training_file(files: Path) -> None:
    tests = lines(files / "tests.jsonl", [{"prompt": "what is 9 + 9 ?"}, SUMS[3]])
    with pytest.raises(ConfigError, match=r"tests\.jsonl, line 2: this prompt is in .*prompts\.jsonl too"):
        open_task(settings_of(files, test_prompts=str(tests)))
    lines(tests, [{"prompt": "what is 9 + 9 ?"}])
    task: Task = open_task(settings_of(files, test_prompts=str(tests)))
    assert [problem.id for problem in task.problems("test", 1, seed=0)] == ["test-line-1"]
    assert len({problem.id for problem in task.problems("train", 20, seed=0)}) == 20


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"prompts": "/no/such.jsonl"}, "prompts '/no/such.jsonl': no such file"),
        ({"prompts": ""}, "a task of files needs prompts"),
        ({"tokenizer": "/no/such"}, "tokenizer '/no/such': no such folder"),
        ({"reward": "gone.py:reward"}, "reward 'gone.py:reward': no such file"),
        ({"max_prompt": -1}, "max_prompt is -1: give 0 or more"),
        ({"max_response": 0}, "max_response is 0: give 1 or more"),
        ({"reward_timeout_s": 0.0}, "reward_timeout_s is 0: give a time above 0 s"),
    ],
)
def test_settings_that_do_not_fit_are_refused(files: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=r".") as refusal:
        settings_of(files, **changes)
    assert sentence in str(refusal.value)


def test_without_the_package_the_extra_is_named(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refusing(name: str, *rest: Any) -> Any:
        if name == "tokenizers":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refusing)
    with pytest.raises(MissingExtraError, match=r"tokenizers is not installed: .*scalewright\[text\]"):
        open_task(settings_of(files))
