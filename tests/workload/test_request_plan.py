"""Requests of a generation benchmark: the same for the same seed, with the lengths and arrivals that were asked for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from scalewright.errors import ConfigError
from scalewright.launch.prepare.generate_setup import request_plan, resolved_context
from scalewright.workload.request_plan import RequestPlan, made_up_text, made_up_tokens, planned_loads, read_requests

LENGTHS = ("fixed:40", "uniform:8-64", "lognormal:mean=64,cv=0.8", "pareto:mean=64,alpha=1.8,max=512")


@pytest.mark.parametrize("text", LENGTHS)
def test_lengths_have_the_mean_that_was_asked_for(text: str) -> None:
    plan = RequestPlan(prompt_lengths=text, answer_lengths="7", num_requests=20_000)
    requests = planned_loads(plan)[0]
    mean = float(np.mean([request.num_prompt for request in requests]))
    assert mean == pytest.approx({"fixed:40": 40, "uniform:8-64": 36}.get(text, 64), rel=0.05)
    assert {request.num_answer for request in requests} == {7}


def test_the_same_seed_asks_for_the_same_and_another_for_something_else() -> None:
    plan = RequestPlan(prompt_lengths="uniform:8-64", num_requests=50, num_requests_per_s=(2.0, 4.0))
    first, again = planned_loads(plan), planned_loads(plan)
    assert first == again
    other = planned_loads(RequestPlan(prompt_lengths="uniform:8-64", num_requests=50, seed=1))
    assert [r.num_prompt for r in other[0]] != [r.num_prompt for r in first[0]]


def test_no_prompt_repeats_so_that_no_cache_of_prefixes_helps() -> None:
    plan = RequestPlan(prompt_lengths="16", num_requests=20, num_requests_per_s=(1.0, 2.0))
    prompts = [made_up_tokens(plan, request, vocab=1000) for load in planned_loads(plan) for request in load]
    assert len(set(prompts)) == 40
    assert all(0 <= token < 1000 for prompt in prompts for token in prompt)
    assert len({made_up_text(plan, request) for load in planned_loads(plan) for request in load}) == 40


def test_arrivals_are_poisson_at_each_rate() -> None:
    plan = RequestPlan(num_requests=20_000, num_requests_per_s=(5.0, 20.0))
    for rate, requests in zip((5.0, 20.0), planned_loads(plan), strict=True):
        gaps = np.diff([request.arrival_s for request in requests])
        assert gaps.mean() == pytest.approx(1 / rate, rel=0.03)
        assert gaps.std() == pytest.approx(1 / rate, rel=0.05), "an exponential's deviation is its mean"
        assert requests[0].arrival_s == 0.0


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_a_file_gives_lengths_prompts_or_tokens_and_times(tmp_path: Path) -> None:
    path = write(
        tmp_path / "r.jsonl",
        {"prompt_len": 5, "answer_len": 2},
        {"prompt": "two words"},
        {"prompt_tokens": [7, 8, 9], "answer_len": 4},
        {"timestamp": 1500, "input_length": 6, "output_length": 3, "hash_ids": [1]},
    )
    rows = read_requests(path)
    assert [(row.num_prompt, row.num_answer) for row in rows] == [(5, 2), (0, 0), (3, 4), (6, 3)]
    assert (rows[1].text, rows[2].tokens, rows[3].arrival_s) == ("two words", (7, 8, 9), 1.5)
    plan = request_plan(prompt_lengths="512", answer_lengths="11", file=str(path), num=0, rate="", seed=0)
    requests = planned_loads(plan)[0]
    assert [request.num_answer for request in requests] == [2, 11, 4, 3], "a line without a length has the option's"
    assert made_up_tokens(plan, requests[2], vocab=100) == (7, 8, 9)


def test_arrivals_as_the_file_has_them(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", *({"arrival_s": 10 + n / 4, "prompt_len": 4, "answer_len": 1} for n in range(4)))
    plan = request_plan(prompt_lengths="1", answer_lengths="1", file=str(path), num=0, rate="file", seed=0)
    assert [request.arrival_s for request in planned_loads(plan)[0]] == [0.0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"answer_len": 3}, "one of prompt, prompt_tokens, prompt_len, input_length, this one none"),
        ({"prompt": "a", "prompt_len": 3}, "this one prompt and prompt_len"),
        ({"prompt": ""}, "give a text that is not empty"),
        ({"prompt_tokens": []}, "at least one"),
        ({"prompt_tokens": [1, -2]}, "token ids of 0 or more"),
        ({"prompt_len": 0}, "a whole number of 1 or more"),
        ({"prompt_len": 4, "answer_len": "9"}, "answer_len is '9'"),
        ({"prompt_len": 4, "arrival_s": -1}, "a time of 0 or more"),
    ],
)
def test_a_line_that_is_no_request_is_refused_by_its_number(row: object, words: str, tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", {"prompt_len": 1}, row)
    with pytest.raises(ConfigError, match="line 2") as refusal:
        read_requests(path)
    assert words in str(refusal.value)


def test_a_request_longer_than_the_context_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", {"prompt_len": 5, "answer_len": 2}, {"prompt_len": 60, "answer_len": 8})
    plan = request_plan(prompt_lengths="1", answer_lengths="1", file=str(path), num=0, rate="", seed=0)
    assert resolved_context(planned_loads(plan), context=0) == 68
    with pytest.raises(ConfigError, match=r"request 2 has 60 tokens of prompt and 8 of answer.*--context 68 or more"):
        resolved_context(planned_loads(plan), context=64)
