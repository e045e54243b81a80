"""Keywords of the Python interface: whatever is wrong with one is a sentence that names it, and never a TypeError."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import pytest

import scalewright as sw
from scalewright.api.keywords import VERBS
from scalewright.errors import ConfigError, ScalewrightError

FUNCTIONS = {name: getattr(import_module(module), name) for name, module in VERBS.items()}
GOOD: dict[str, dict[str, Any]] = {
    "predict": {"model": "gpt2-small", "system": "leonardo", "layout": "dp=4,gbs=32"},
    "predict_many": {"model": "gpt2-small", "system": "leonardo", "layout": ["dp=4,gbs=32"]},
    "plan": {"model": "gpt2-small", "system": "leonardo", "nodes": 1},
    "lint": {"script": "#!/bin/bash\necho\n"},
    "validate": {},
    "study": {"name": "storage"},
}


def names_of(verb: str) -> list[str]:
    parameters = inspect.signature(FUNCTIONS[verb]).parameters.values()
    return [one.name for one in parameters if one.kind is not one.VAR_KEYWORD]


def sentence(verb: str, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        getattr(sw, verb)(*args, **kwargs)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 400
    return text


@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_keyword_names_where_it_belongs_or_what_is_near(verb: str) -> None:
    every = {name: [v for v in VERBS if name in names_of(v)] for v in VERBS for name in names_of(v)}
    for name, owners in every.items():
        if verb not in owners and not (verb == "predict_many" and "predict" in owners):
            text = sentence(verb, **GOOD[verb], **{name: None})
            assert all(f"sw.{owner}" in text for owner in owners), text
    for name in names_of(verb):
        if len(name) >= 4:  # two letters changed places
            wrong = name[0] + name[2] + name[1] + name[3:]
            if wrong not in every:
                kwargs = {k: v for k, v in GOOD[verb].items() if k != name} | {wrong: "x"}
                assert f"{name}=" in sentence(verb, **kwargs)
    assert "known: " in sentence(verb, **GOOD[verb], zzzzzz=1)


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_missing_is_named(verb: str) -> None:
    parameters = inspect.signature(FUNCTIONS[verb]).parameters
    needed = [name for name, one in parameters.items() if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    text = sentence(verb) if needed else ""
    assert all(f"{name}=" in text for name in needed)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("value", [object(), b"bytes", 3.25, True, {1}, lambda: None, ["a", 2]], ids=type)
def test_values_of_another_kind_are_refused_in_one_sentence_each(verb: str, value: Any) -> None:
    refused = {}
    for name in names_of(verb):
        try:
            getattr(sw, verb)(**(GOOD[verb] | {name: value}))
        except ScalewrightError as error:  # any other error, such as a TypeError, fails here
            refused[name] = str(error)
    assert refused
    assert all(text and "\n" not in text for text in refused.values())


@pytest.mark.parametrize("verb", VERBS)
def test_options_by_place_are_told_to_come_by_name(verb: str) -> None:
    num = sum(
        one.kind is one.POSITIONAL_OR_KEYWORD for one in inspect.signature(FUNCTIONS[verb]).parameters.values()
    )  # fmt: skip
    assert "by name" in sentence(verb, *["x"] * (num + 1))


@pytest.mark.parametrize("seq", [4096, "4096", "4Ki", 4096.0], ids=str)
def test_counts_are_written_in_one_grammar(seq: Any) -> None:
    if isinstance(seq, float):
        assert "seq= is 4096.0" in sentence("predict", **GOOD["predict"], seq=seq)
        return
    known = sw.predict(**{**GOOD["predict"], "model": "llama3-8b"}, seq=4096)
    assert sw.predict(**{**GOOD["predict"], "model": "llama3-8b"}, seq=seq).id == known.id


def test_tokens_may_be_a_number_and_names_a_list() -> None:
    by_number = sw.plan(**GOOD["plan"], global_batch="1Ki", tokens=10e9, compare="leonardo,lumi")
    by_text = sw.plan(**GOOD["plan"], global_batch=1024, tokens="10B", compare=["lumi"])
    assert by_number.document()["id"] == by_text.document()["id"]
    assert len(by_number.document()["compared"]) == len(by_text.document()["compared"])
