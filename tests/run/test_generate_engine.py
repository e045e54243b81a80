"""The engine generates what a plain forward pass over whole sequences generates, however it batches."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch

sys.path.insert(0, str(Path(__file__).parent))
from generate_cases import CONTEXT, SHAPES, PlainModel, engine_of, request, weights_of

from scalewright.errors import ConfigError
from scalewright.run.generate.cache import cache_bytes
from scalewright.run.generate.requests import Request, Sampling

ROUNDING = 2e-5
"""fp32 sums of some hundred terms in another order."""


def budget_bytes(name: str, *, num_pages: int, page_tokens: int) -> int:
    return cache_bytes(SHAPES[name], (num_pages + 1) * page_tokens, torch.float32)


def mixed_requests(seed: int, count: int) -> list[Request]:
    draw = random.Random(seed)
    return [
        request(
            f"r{number}",
            tuple(draw.randrange(97) for _ in range(draw.choice([1, 2, 3, 7, 15, 16, 17, 30]))),
            draw.choice([1, 2, 5, 11, 16]),
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(
    ("page_tokens", "prefill_chunk", "max_running", "num_pages"),
    [(4, 1, 1, 12), (4, 5, 3, 12), (16, 64, 8, 24), (5, 7, 8, 13), (1, 3, 8, CONTEXT)],
)
def test_greedy_tokens_are_those_of_a_plain_forward_pass(
    name: str, page_tokens: int, prefill_chunk: int, max_running: int, num_pages: int
) -> None:
    engine = engine_of(
        name, page_tokens=page_tokens, prefill_chunk=prefill_chunk, max_running=max_running,
        cache_bytes=budget_bytes(name, num_pages=num_pages, page_tokens=page_tokens),
    )  # fmt: skip
    requests = mixed_requests(num_pages, 7)
    for one in requests:
        engine.add(one)
    completions = {c.request_id: c for c in engine.drain()}
    plain = PlainModel(name)
    for one in requests:
        answer = completions[one.id]
        tokens, log_probs = plain.likeliest(one.prompt, answer.tokens)
        assert answer.tokens == tokens
        assert len(answer.tokens) == one.max_new_tokens
        assert answer.log_probs == pytest.approx(log_probs, abs=ROUNDING)
    if num_pages <= 13 and max_running == 8:
        assert engine.stats.num_preemptions > 0
    assert not engine.has_work
    assert engine.step().occupancy_frac == 0.0


def test_arrivals_while_others_run_change_nothing() -> None:
    engine, requests = engine_of("llama", prefill_chunk=4), mixed_requests(5, 9)
    completions = {}
    waiting = list(requests)
    while waiting or engine.has_work:
        if waiting:
            engine.add(waiting.pop())
        completions |= {c.request_id: c for c in engine.step().finished}
    plain = PlainModel("llama")
    for one in requests:
        answer = completions[one.id].tokens
        assert answer == plain.likeliest(one.prompt, answer)[0]


@pytest.mark.parametrize("num_pages", [12, 200])
def test_answers_of_a_group_share_one_reading_of_the_prompt(num_pages: int) -> None:
    prompt = tuple(range(3, 24))
    engine = engine_of(
        "qwen", page_tokens=4, max_running=4, cache_bytes=budget_bytes("qwen", num_pages=num_pages, page_tokens=4)
    )
    sampling = Sampling(temperature=0.9, seed=3)
    engine.add(Request(id="group", prompt=prompt, max_new_tokens=9, num_answers=6, sampling=sampling))
    completions = sorted(engine.drain(), key=lambda c: c.index)
    assert len({c.tokens for c in completions}) == 6
    plain = PlainModel("qwen")
    for completion in completions:
        tokens = list(prompt + completion.tokens)
        log_probs = (plain.logits(tokens)[len(prompt) - 1 : -1] / 0.9).log_softmax(dim=-1)
        chosen = log_probs.gather(1, torch.tensor(completion.tokens)[:, None])[:, 0]
        assert completion.log_probs == pytest.approx(chosen.tolist(), abs=ROUNDING)
    if num_pages == 200:
        assert engine.stats.num_prefill_tokens == len(prompt) - 1
        assert engine.stats.num_preemptions == 0
    alone = engine_of("qwen", max_running=1)
    alone.add(Request(id="group", prompt=prompt, max_new_tokens=9, num_answers=6, sampling=sampling))
    assert [c.tokens for c in sorted(alone.drain(), key=lambda c: c.index)] == [c.tokens for c in completions]


def test_batching_and_preemption_do_not_change_sampled_answers() -> None:
    sampling = Sampling(temperature=0.8, top_p=0.9, top_k=20, seed=11)
    requests = [Request(id=r.id, prompt=r.prompt, max_new_tokens=12, sampling=sampling) for r in mixed_requests(2, 8)]
    wide, narrow = (
        engine_of("gpt"),
        engine_of("gpt", page_tokens=4, cache_bytes=budget_bytes("gpt", num_pages=12, page_tokens=4)),
    )
    for engine in (wide, narrow):
        for one in requests:
            engine.add(one)
    answers = [{c.request_id: c.tokens for c in engine.drain()} for engine in (wide, narrow)]
    assert narrow.stats.num_preemptions > 0
    assert answers[0] == answers[1]


def test_an_answer_ends_with_a_stop_token_or_at_the_context() -> None:
    prompt = (5, 6, 7)
    tokens = PlainModel("gpt").greedy(prompt, 20)
    stop = tokens[4]
    engine = engine_of("gpt", max_context=16)
    engine.add(request("stop", prompt, 20, stop_tokens=frozenset({stop})))
    engine.add(request("context", prompt, 20))
    engine.add(request("length", prompt, 2))
    completions = {c.request_id: c for c in engine.drain()}
    assert completions["stop"].tokens == tokens[: tokens.index(stop) + 1]
    assert completions["context"].tokens == tokens[: 16 - len(prompt)]
    assert [completions[name].reason for name in ("stop", "context", "length")] == ["stop", "context", "length"]


def test_weights_are_replaced_while_sequences_run() -> None:
    prompt = (1, 2, 3, 4, 5)
    engine = engine_of("llama", seed=0)
    engine.add(request("r", prompt, 10))
    tokens = [event.token for _ in range(4) for event in engine.step().tokens]
    engine.replace_weights(weights_of(SHAPES["llama"], seed=1).items(), rereads=True)
    completion = engine.drain()[0]
    before = PlainModel("llama", seed=0).greedy(prompt, 4)
    after = PlainModel("llama", seed=1).greedy((*prompt, *before), 6)
    assert tuple(tokens) == before
    assert completion.tokens == (*before, *after)
    assert completion.weights_version == (0, 1)


def test_bytes_are_counted_from_what_was_read() -> None:
    engine = engine_of("llama")
    engine.add(request("r", (1, 2, 3, 4), 5))
    engine.drain()
    shape = SHAPES["llama"]
    num_weights = sum(w.numel() for n, w in weights_of(shape).items() if n != "embedding.tokens.weight")
    num_keys = 4 + 5 + 6 + 7 + 8
    expected = 5 * num_weights * 4 + num_keys * cache_bytes(shape, 1, torch.float32)
    assert engine.stats.decode_bytes == expected
    assert engine.stats.num_prefill_tokens == 3


@pytest.mark.parametrize(("precision", "width", "tolerance"), [("bf16", 2, 0.15), ("fp8", 1, 0.6)])
@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_shorter_weights_give_nearly_the_same_probabilities(
    name: str, precision: str, width: int, tolerance: float
) -> None:
    prompt, whole, short = (3, 1, 4, 1, 5, 9, 2, 6), engine_of(name), engine_of(name, precision=precision)
    log_probs = []
    for engine in (whole, short):
        engine.add(request("r", prompt, 1))
        log_probs.append(engine.drain()[0].log_probs[0])
    assert log_probs[0] == pytest.approx(log_probs[1], abs=tolerance)
    products = sum(w.numel() for n, w in weights_of(SHAPES[name]).items() if n.startswith("layers") and w.dim() == 2)
    assert whole.stats.weight_bytes - short.stats.weight_bytes >= products * (4 - width) * 0.9


@pytest.mark.parametrize(("precision", "most"), [("int4", 15), ("int3", 7)])
def test_rounded_weights_have_so_many_values_in_a_row(precision: str, most: int) -> None:
    model = engine_of("llama", precision=precision)._model.transformer
    for block in model.blocks():
        for product in (block.attention.qkv, block.feed_forward.down):
            assert max(len(row.unique()) for row in product.weight) <= most
    assert model.embedding is not None
    assert len(model.embedding.tokens.weight[0].unique()) > most


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache_bytes": 5000}, "one sequence of 48 tokens needs"),
        ({"max_context": 500}, "the model has 48 positions"),
        ({"precision": "int2"}, "int2"),
        ({"prefill_chunk": 0}, "prefill_chunk is 0"),
        ({"execution": "graphs"}, "needs a GPU"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        engine_of("gpt", **options)


def test_requests_that_cannot_work_are_refused() -> None:
    engine = engine_of("gpt")
    with pytest.raises(ConfigError, match="48 tokens, and the context of 48"):
        engine.add(request("long", (1,) * 48, 1))
    with pytest.raises(ConfigError, match="token 97 is not in the vocabulary of 97"):
        engine.add(request("odd", (96, 97), 1))
    with pytest.raises(ConfigError, match="prompt is empty"):
        request("empty", (), 1)
    with pytest.raises(ConfigError, match=r"temperature -0\.1"):
        Sampling(temperature=-0.1)
    with pytest.raises(ConfigError, match="top_p 0"):
        Sampling(top_p=0.0)


def test_other_weights_are_refused() -> None:
    engine, weights = engine_of("gpt"), weights_of(SHAPES["gpt"])
    with pytest.raises(ConfigError, match=r"layers\.7\.norm_1\.weight, which is no weight of this model"):
        engine.replace_weights([("layers.7.norm_1.weight", torch.ones(32))])
    with pytest.raises(ConfigError, match="is 33, and this model needs 32"):
        engine.replace_weights([("head.norm.weight", torch.ones(33))])
    with pytest.raises(ConfigError, match=r"lacks head\.norm\.bias"):
        engine._model.replace([(n, w) for n, w in weights.items() if n != "head.norm.bias"], where="a file")


def test_scores_that_are_no_numbers_are_refused() -> None:
    engine = engine_of("llama")
    engine.add(request("r", (1, 2, 3), 4))
    engine.step()
    engine.replace_weights([("head.norm.weight", torch.full((32,), torch.nan))])
    with pytest.raises(ConfigError, match="request r: the scores of token 1 of answer 0 are not finite"):
        engine.drain()
