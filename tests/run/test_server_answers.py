"""What servers stream is read right: usage, chats, several tokens in an event; and figures follow from the times."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openai_server import OpenAiServer
from scalewright.errors import ConfigError
from scalewright.records.answers import AnswerLine, AnswerWriter, read_answers
from scalewright.run.traffic.answer_stream import StreamedAnswer, _read_event
from scalewright.run.traffic.dialect import Dialect, address_of, ask, find_dialect
from scalewright.run.traffic.figures import load_row
from scalewright.run.traffic.http_stream import ServerFailedError
from scalewright.run.traffic.load import LoadResult
from scalewright.run.traffic.server_metrics import ServerReadings
from scalewright.workload.generate_run import GenerateRun, SamplingSettings, ServerTarget
from scalewright.workload.request_plan import PlannedRequest, RequestPlan

REQUEST = PlannedRequest(number=0, load=0, num_prompt=9, num_answer=5, arrival_s=0.0)


def run_of(server: OpenAiServer, **target: Any) -> GenerateRun:
    return GenerateRun(target=ServerTarget(url=server.url, timeout_s=2.0, **target), requests=RequestPlan())


def asked(server: OpenAiServer, **target: Any) -> tuple[Dialect, StreamedAnswer]:
    """The form that the server accepts, and its answer to one request."""

    async def both() -> tuple[Dialect, StreamedAnswer]:
        run = run_of(server, **target)
        address = address_of(run.target)  # type: ignore[arg-type]
        dialect = await find_dialect(address, run)
        body = dialect.body(run.requests, REQUEST, SamplingSettings(temperature=0.0), vocab=None)
        return dialect, await ask(address, dialect, body)

    return asyncio.run(both())


def test_the_richest_form_is_used_and_the_server_counts() -> None:
    with OpenAiServer(gap_s=0.0) as server:
        dialect, answer = asked(server)
    assert (dialect.model, dialect.api, dialect.by_tokens, dialect.fixes_length) == (
        "tiny-random", "completions", True, True,
    )  # fmt: skip
    assert dialect.notes() == []
    assert (answer.num_prompt, answer.num_tokens(0), len(answer.choices[0].times_s)) == (9, 5, 5)
    body = server.served[-1]
    assert body["ignore_eos"] is True
    assert body["min_tokens"] == body["max_tokens"] == 5
    assert body["stream_options"] == {"include_usage": True}
    assert len(body["prompt"]) == 9


@pytest.mark.parametrize(
    ("options", "api", "num_tokens", "words"),
    [
        ({"is_strict": True}, "completions", 5, ("as text", "ignore_eos", "does not count")),
        ({"is_strict": True, "api": "chat"}, "chat", 5, ("as text", "ignore_eos", "does not count")),
        ({"api": "chat"}, "chat", 5, ("as text",)),
        ({"sends_usage": False}, "completions", 5, ("does not count",)),
        ({"tokens_per_event": 2}, "completions", 5, ()),
    ],
)
def test_a_server_that_understands_less_is_measured_and_noted(
    options: dict[str, Any], api: str, num_tokens: int, words: tuple[str, ...]
) -> None:
    with OpenAiServer(gap_s=0.0, first_s=0.0, **options) as server:
        dialect, answer = asked(server)
    assert dialect.api == api
    assert answer.num_tokens(0) == num_tokens
    assert answer.choices[0].reason == "length"
    notes = dialect.notes()
    assert len(notes) == len(words)
    assert all(word in note for word, note in zip(words, notes, strict=True))


def test_the_key_is_sent_and_a_wrong_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAiServer(key="secret-1", gap_s=0.0) as server:
        monkeypatch.setenv("MY_KEY", "secret-1")
        assert asked(server, key_variable="MY_KEY")[1].num_tokens(0) == 5
        monkeypatch.setenv("MY_KEY", "other")
        with pytest.raises(ConfigError, match=r"refuses the key \(401\)") as refusal:
            asked(server, key_variable="MY_KEY")
    assert "other" not in str(refusal.value)


def test_a_model_that_the_server_does_not_serve_names_the_options() -> None:
    with OpenAiServer(fault="400") as server, pytest.raises(ConfigError, match="check --server-model and --api"):
        asked(server, model="other")


def test_a_server_that_cannot_list_its_models_is_measured_by_name() -> None:
    with OpenAiServer(lists_models=False, gap_s=0.0) as server:
        with pytest.raises(ServerFailedError, match=r"answered 500 to /v1/models; name its model with --server-model"):
            asked(server)
        assert asked(server, model="mine")[0].model == "mine"


def event(**choice: Any) -> str:
    return json.dumps({"choices": [{"index": 0, **choice}], "usage": None})


def test_events_of_all_servers_are_read() -> None:
    answer = StreamedAnswer()
    texts = [
        event(delta={"role": "assistant", "content": ""}),  # a chat begins
        event(delta={"reasoning_content": "hm"}),  # vLLM, SGLang: reasoning
        event(delta={"reasoning": "hm"}),
        event(delta={"content": ""}),  # half of a character
        event(delta={"content": "a"}),
        event(delta={}, finish_reason="stop"),
        json.dumps({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}),
    ]
    for number, text in enumerate(texts):
        _read_event(answer, text, float(number))
    assert answer.choices[0].times_s == [1.0, 2.0, 3.0, 4.0]
    assert (answer.choices[0].reason, answer.num_prompt, answer.num_tokens(0)) == ("stop", 3, 4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[1]", "no event"),
        ('{"object": "error", "message": "prompt too long", "code": 400}', "prompt too long"),
        ('{"error": {"message": "engine died"}}', "engine died"),
        ('{"id": 1}', "no event"),
        ('{"choices": 3}', "no event"),
    ],
)
def test_what_is_no_event_is_refused(text: str, words: str) -> None:
    with pytest.raises(ServerFailedError, match=words):
        _read_event(StreamedAnswer(), text, 0.0)


def line(number: int, *, first_s: float, gaps_s: tuple[float, ...], attempt: int = 1, **more: Any) -> AnswerLine:
    fixed: dict[str, Any] = {
        "load": 0, "index": 0, "num_prompt": 10, "num_tokens": len(gaps_s) + 1, "reason": "length", "arrival_s": 0.0,
        "sent_s": 0.0,
    }  # fmt: skip
    return AnswerLine(request=number, first_s=first_s, gaps_s=gaps_s, attempt=attempt, **fixed | more)


def test_figures_follow_from_the_times() -> None:
    answers = [line(n, first_s=0.1 * (n + 1), gaps_s=(0.02,) * 10, arrival_s=0.05) for n in range(10)]
    row = load_row(answers, LoadResult(time_s=1.2, energy_j=33.0, energy_of="GPUs"), words="closed", rate=None)
    assert row["time_s"] == pytest.approx(1.2), "to the last token"
    assert row["num_tokens"] == 110
    assert row["tokens_per_s"] == pytest.approx(110 / 1.2)
    assert row["tokens_per_s_each"] == pytest.approx(50.0)
    assert row["ttft_median_s"] == pytest.approx(0.5)
    assert row["ttft_p99_s"] == pytest.approx(0.95 - 0.009)
    assert row["itl_median_s"] == row["itl_p99_s"] == pytest.approx(0.02)
    assert row["mean_running"] == pytest.approx(10 * 0.2 / 1.2)
    assert row["energy_j_per_token"] == pytest.approx(0.3)


def test_attempts_add_their_times_up_and_pieces_share_theirs() -> None:
    answers = [
        line(0, first_s=1.0, gaps_s=(1.0,)),
        line(1, first_s=0.5, gaps_s=(0.3, 0.3), attempt=2, num_tokens=5),
    ]
    row = load_row(answers, None, words="closed", rate=None)
    assert row["time_s"] == pytest.approx(2.0 + 1.1)
    assert row["num_attempts"] == 2
    assert answers[1].token_gaps_s == pytest.approx((0.15, 0.15)), "two pieces of two tokens each"


def test_answers_survive_a_torn_line_and_count_once(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    writer = AnswerWriter(path)
    first = line(0, first_s=1.0, gaps_s=(0.5, 0.25), tokens=(4, 5, 6))
    writer.write(first)
    writer.close()
    with path.open("a") as file:
        file.write('{"load":0,"request":1,"ind')
    writer = AnswerWriter(path)
    writer.write(line(0, first_s=9.0, gaps_s=()))
    writer.write(line(2, first_s=2.0, gaps_s=()))
    writer.close()
    answers = read_answers([path])
    assert [answer.request for answer in answers] == [0, 2]
    assert answers[0] == first


def test_the_metrics_page_of_a_server_is_read() -> None:
    readings = ServerReadings()
    for preemptions in (3, 5):
        readings.add(
            "# HELP x y\n"
            'vllm:kv_cache_usage_perc{engine="0"} 0.25\n'
            f'vllm:num_preemptions_total{{engine="0"}} {preemptions}.0\n'
            "go_gc 1e9 1700000000\n"
        )
    assert readings.cache_fracs == [0.25, 0.25]
    assert readings.num_preemptions == 2


def test_a_closed_load_with_a_limit_counts_from_its_place_and_from_the_queue() -> None:
    """16 requests one after the other: each takes a tenth of a second to its first token, the last waits for 15."""
    answers = [
        AnswerLine(
            load=0, request=n, index=0, attempt=0, num_prompt=8, num_tokens=2, reason="length", arrival_s=float(n),
            sent_s=float(n), first_s=n + 0.1, gaps_s=(0.9,),
        )
        for n in range(16)
    ]  # fmt: skip
    row = load_row(answers, None, words="closed", rate=None)
    assert row["ttft_median_s"] == pytest.approx(0.1)
    assert row["queued_ttft_median_s"] == pytest.approx(7.6)
    late = [replace(answer, arrival_s=0.0) for answer in answers]
    assert load_row(late, None, words="open", rate=1.0)["ttft_median_s"] == pytest.approx(7.6)
