"""Requests to generate as people write them."""

from __future__ import annotations

import pytest

from scalewright.errors import ConfigError
from scalewright.planner.generation import parse_generate


def test_a_plain_request_has_fixed_lengths() -> None:
    request = parse_generate("prompt=2048,response=256")
    assert (request.prompt.mean, request.response.mean) == (2048, 256)
    assert request.prompt.is_fixed
    assert request.response.is_fixed
    assert (request.answers, request.rate, request.running, request.cache) == (1, None, None, None)


def test_distributions_keep_their_own_commas() -> None:
    request = parse_generate(
        "prompt=uniform:64-512,response=lognormal:mean=512,cv=0.8,max=4096,rate=2.5,answers=8,cache=fp8,weights=int4,"
        "engine=sglang,running=128"
    )
    assert request.prompt.text == "uniform:64-512"
    assert request.response.text == "lognormal:mean=512,cv=0.8,max=4096"
    assert (request.rate, request.answers, request.running) == (2.5, 8, 128)
    assert (request.cache, request.weights, request.engine) == ("fp8", "int4", "sglang")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prompt=512", "lacks response"),
        ("prompt=512,response=128,max=9", "unknown part 'max'"),
        ("prompt=512,response=128,rate=0", "above 0"),
        ("prompt=512,response=128,rate=fast", "not a number"),
        ("prompt=512,response=lognormal:mean=64,cv=1,longest=512", "write max="),
        ("prompt=512,response=lognormal:mean=64", "lacks cv"),
        ("prompt=512,respnse=128", "did you mean response"),
        ("prompt=512,response=128,answers=0", "must be 1 or more"),
    ],
)
def test_bad_requests_are_refused_in_a_sentence(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_generate(text)
    assert words in str(refused.value)
