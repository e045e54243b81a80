"""One question, one answer: the same words give the same prediction to every caller, and each rule holds everywhere."""

from __future__ import annotations

from typing import Any

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.machine import machine_from_system
from scalewright.errors import ConfigError, LayoutError
from scalewright.planner.answer import Answer, answer
from scalewright.planner.question import ask
from scalewright.study.kinds.training import predict_point

CATALOG = Catalog((packaged_data(),))
KINDS: dict[str, dict[str, Any]] = {
    "pretrain": {"model": "llama3-8b", "layout": "tp=2,dp=8,mbs=1,gbs=64"},
    "vision": {"model": "resnet-50", "layout": "dp=16,mbs=128"},
    "generate": {"model": "llama3-8b", "layout": "tp=2,dp=4,gbs=64", "generate": "prompt=512,response=128"},
    "rl": {
        "model": "llama3-8b", "layout": "tp=2,dp=8,mbs=1,gbs=64", "mode": "offload",
        "rl": "prompts=32,samples=8,prompt=512,response=512,tp=2",
    },
}  # fmt: skip


def predicted(kind: str, **more: Any) -> Answer:
    return answer(ask(CATALOG, **({"system": "leonardo"} | KINDS[kind] | more)))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_time_memory_energy_interval_bound_and_limits(kind: str) -> None:
    prediction = predicted(kind)
    assert prediction.bound_s <= prediction.time_s <= prediction.interval_s[1]
    assert prediction.interval_s[0] <= prediction.time_s
    assert prediction.energy is not None
    assert float(prediction.energy.total) > 0
    assert prediction.carbon is not None
    assert prediction.fits == (not prediction.why_not)
    assert sum(limit.time_s for limit in prediction.limits) == pytest.approx(prediction.time_s)
    document = prediction.document()
    assert document["schema"] == "scalewright.prediction/1"
    assert (document["stage"], document["id"]) == (kind, prediction.question.id)
    assert document["step_time_s"] == prediction.time_s


def test_a_bare_machine_has_no_storage_price_or_grid() -> None:
    prediction = predicted("pretrain", system=machine_from_system(CATALOG, "leonardo"))
    assert prediction.footprint is None
    assert prediction.question.feed.storage is None
    assert prediction.time_s == pytest.approx(predicted("pretrain").time_s)


@pytest.mark.parametrize("kind", KINDS)
def test_more_nodes_than_the_machine_has_are_refused_in_every_kind(kind: str) -> None:
    layouts = {"vision": "dp=65536,mbs=1", "generate": "dp=65536,gbs=65536"}
    rl = {"rl": "prompts=65536,samples=1,prompt=512,response=512"} if kind == "rl" else {}
    with pytest.raises(LayoutError, match="nodes: leonardo/booster has 3456, use fewer devices"):
        predicted(kind, layout=layouts.get(kind, "dp=65536,gbs=65536"), **rl)


def test_a_study_reads_its_images_from_the_storage_that_it_names() -> None:
    point = {"model": "resnet-50", "system": "lumi", "layout": "dp=16,mbs=128"}
    ready = predict_point(CATALOG, point, where="study").numbers["step_time_s"].value
    named = predict_point(CATALOG, {**point, "storage": "vega-lustre"}, where="study").numbers["step_time_s"].value
    command = predicted("vision", system="lumi", storage="vega-lustre")
    assert named == command.time_s > ready
    assert command.question.feed.num_loaders > 2, "cores of a node shared among its devices"


def test_a_what_if_changes_one_thing_and_its_terms_add_up() -> None:
    before = predicted("pretrain")
    change = before.what_if("tp=4,dp=4,stack=eager")
    assert (change.after.question.layout.tp, change.after.question.stack.id) == (4, "eager")
    assert change.after.question.num_gpus == before.question.num_gpus
    assert sum(seconds for _, seconds in change.terms) == pytest.approx(change.after.time_s - before.time_s)
    with pytest.raises(ConfigError, match="what-if"):
        before.what_if("speed=2")


def test_an_answer_says_why_it_does_not_fit() -> None:
    prediction = predicted("pretrain", model="llama3-405b", layout="tp=4,dp=4,gbs=64")
    assert not prediction.fits
    assert "a device needs" in prediction.why_not
    assert "optimizer" in prediction.why_not or "weights" in prediction.why_not


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("vision", {"mode": "lora"}, "option mode means nothing here: vision models"),
        ("generate", {"checkpoint": "async"}, "option checkpoint means nothing here: generation"),
        ("vision", {"samples": "files"}, "need a storage"),
        ("pretrain", {"storage": "here"}, "no storage was measured"),
        ("generate", {"rl": "prompts=1,samples=1,prompt=1,response=1"}, "exclude each other"),
        ("generate", {"layout": "cp=2"}, "split by tp, pp, ep and dp"),
    ],
)
def test_options_that_mean_nothing_are_refused(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        predicted(kind, **options)
