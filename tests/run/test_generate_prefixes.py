"""Answers that are interrupted and go on: in another engine, with other neighbours, or with new weights."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parent))
from generate_cases import SHAPES, PlainModel, engine_of, weights_of

from scalewright.errors import ConfigError
from scalewright.run.generate.engine import Engine
from scalewright.run.generate.requests import GREEDY, Request, Sampling

ROUNDING = 2e-5
NUM_TOKENS = 18
Answers = dict[tuple[str, int], tuple[tuple[int, ...], tuple[float, ...], str]]


def prompts(count: int) -> dict[str, tuple[int, ...]]:
    draw = random.Random(7)
    return {f"p{n}": tuple(draw.randrange(97) for _ in range(draw.choice([1, 4, 9, 17]))) for n in range(count)}


def request_of(name: str, prompt: tuple[int, ...], sampling: Sampling, **others: object) -> Request:
    given = {"num_answers": 3, **others}
    return Request(
        id=name, prompt=prompt, max_new_tokens=NUM_TOKENS, sampling=sampling, stop_tokens=frozenset({5, 11}), **given
    )


def drained(engine: Engine, before: dict[tuple[str, int], tuple[list[int], list[float]]]) -> Answers:
    """Every answer of the engine, joined to what was written of it before."""
    answers: Answers = {}
    for one in engine.drain():
        tokens, log_probs = before.get((one.request_id, one.index), ([], []))
        answers[one.request_id, one.index] = (
            (*tokens, *one.tokens), (*log_probs, *one.log_probs), one.reason,
        )  # fmt: skip
    return answers


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=1.1, seed=4)], ids=["greedy", "sampled"])
def test_an_interrupted_answer_is_equal_to_one_that_was_not(name: str, sampling: Sampling) -> None:
    whole = engine_of(name)
    for key, prompt in prompts(5).items():
        whole.add(request_of(key, prompt, sampling))
    expected = drained(whole, {})
    assert len(expected) == 15

    written: dict[tuple[str, int], tuple[list[int], list[float]]] = {}
    ended: Answers = {}
    engine = engine_of(name, page_tokens=4)
    for key, prompt in prompts(5).items():
        engine.add(request_of(key, prompt, sampling))
    for num_steps in (3, 1, 6):
        for _ in range(num_steps):
            for event in engine.step().tokens:
                tokens, log_probs = written.setdefault((event.request_id, event.index), ([], []))
                assert event.position == len(tokens)
                tokens.append(event.token)
                log_probs.append(event.log_prob)
        taken = engine.take_open()
        assert not engine.has_work
        assert engine.step().occupancy_frac == 0.0
        open_names = {(one.request.id, one.index) for one in taken}
        ended |= {key: (tuple(t), tuple(p), "") for key, (t, p) in written.items() if key not in open_names}
        engine = engine_of(name, max_running=3)  # other neighbours, another order
        for one in reversed(taken):
            tokens = tuple(written.get((one.request.id, one.index), ([], []))[0])
            assert tokens[len(one.request.written) :] == one.tokens
            engine.add(
                request_of(one.request.id, one.request.prompt, sampling, num_answers=1, first_index=one.index,
                           written=tokens)
            )  # fmt: skip
    answers = ended | drained(engine, written)
    assert answers.keys() == expected.keys()
    for key, (tokens, log_probs, reason) in expected.items():
        assert answers[key][0] == tokens
        assert answers[key][1] == pytest.approx(log_probs, abs=ROUNDING)
        assert answers[key][2] in ("", reason)


def test_a_prefix_goes_on_with_new_weights() -> None:
    prompt = (1, 2, 3, 4, 5)
    old = PlainModel("llama", seed=0).greedy(prompt, 4)
    engine = engine_of("llama", seed=1)
    engine.add(Request(id="r", prompt=prompt, max_new_tokens=10, sampling=GREEDY, written=old))
    completion = engine.drain()[0]
    assert completion.tokens == PlainModel("llama", seed=1).greedy((*prompt, *old), 6)
    assert len(completion.log_probs) == 6


def test_some_answers_are_taken_and_others_go_on() -> None:
    engine = engine_of("qwen", page_tokens=4, max_running=4)
    prompt = tuple(range(3, 24))
    sampling = Sampling(seed=3)
    engine.add(Request(id="group", prompt=prompt, max_new_tokens=12, num_answers=6, sampling=sampling))
    for _ in range(3):
        engine.step()
    taken = engine.take_open({("group", 1), ("group", 5), ("absent", 0)})
    assert [one.index for one in taken] == [1, 5]
    assert len(taken[0].tokens) == len(taken[0].log_probs) > 0
    assert taken[1].tokens == ()
    left = {one.index: one.tokens for one in engine.drain()}
    whole = engine_of("qwen", page_tokens=4)
    whole.add(Request(id="group", prompt=prompt, max_new_tokens=12, num_answers=6, sampling=sampling))
    expected = {one.index: one.tokens for one in whole.drain()}
    assert left == {index: expected[index] for index in (0, 2, 3, 4)}
    assert expected[1][: len(taken[0].tokens)] == taken[0].tokens
    assert engine.step().occupancy_frac == 0.0


def test_answers_of_a_group_may_be_split_over_requests() -> None:
    prompt, sampling = (4, 5, 6, 7), Sampling(seed=9)
    whole, parts = engine_of("gpt"), engine_of("gpt")
    whole.add(Request(id="g", prompt=prompt, max_new_tokens=8, num_answers=5, sampling=sampling))
    parts.add(Request(id="g", prompt=prompt, max_new_tokens=8, num_answers=2, first_index=3, sampling=sampling))
    parts.add(Request(id="g", prompt=prompt, max_new_tokens=8, num_answers=3, sampling=sampling))
    expected, answers = ({one.index: one.tokens for one in engine.drain()} for engine in (whole, parts))
    assert answers == expected


def test_stale_keys_are_an_option_of_replaced_weights() -> None:
    prompt = (1, 2, 3, 4, 5)
    kept, reread = engine_of("llama"), engine_of("llama")
    for engine, rereads in ((kept, False), (reread, True)):
        engine.add(Request(id="r", prompt=prompt, max_new_tokens=12, sampling=GREEDY))
        for _ in range(5):
            engine.step()
        engine.replace_weights(weights_of(SHAPES["llama"], seed=1).items(), rereads=rereads)
        engine.drain()
    assert kept.stats.num_prefill_tokens == len(prompt) - 1
    assert reread.stats.num_prefill_tokens == len(prompt) - 1 + len(prompt) + 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"written": (1, 2), "num_answers": 2}, "an answer that goes on is a request of its own"),
        ({"written": (1, 2, 3, 4)}, "its 4 written tokens are a whole answer already"),
        ({"written": (1, 9)}, "its 2 written tokens are a whole answer already"),
        ({"first_index": -1}, "first_index is -1; give 0 or more"),
    ],
)
def test_prefixes_that_cannot_go_on_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Request(id="r", prompt=(1,), max_new_tokens=4, stop_tokens=frozenset({9}), **changes)  # type: ignore[arg-type]


def test_a_prefix_beyond_the_vocabulary_or_the_context_is_refused() -> None:
    engine = engine_of("gpt")
    with pytest.raises(ConfigError, match="token 97 is not in the vocabulary"):
        engine.add(Request(id="r", prompt=(1,), max_new_tokens=4, written=(97,)))
    with pytest.raises(ConfigError, match="the context of 48 must also hold an answer"):
        engine.add(Request(id="r", prompt=(1,), max_new_tokens=60, written=tuple(range(47))))
