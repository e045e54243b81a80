"""Predictions and plans from Python: the same documents, numbers and errors as the command line's."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable

import pytest

import scalewright as sw

Cli = Callable[..., subprocess.CompletedProcess[str]]
LLAMA = {"model": "llama3-8b", "system": "leonardo", "layout": "tp=2,dp=8,mbs=1,gbs=64,zero=1,sp=1"}
CASES: dict[str, dict[str, str]] = {
    "training": LLAMA,
    "does not fit": {"model": "llama2-13b", "system": "leonardo", "layout": "dp=64,mbs=1,gbs=1024"},
    "vision": {"model": "resnet-50", "system": "lumi", "layout": "dp=16,mbs=128", "storage": "vega-lustre"},
    "generation": LLAMA | {"layout": "tp=2,dp=4,gbs=64", "generate": "prompt=512,response=128"},
    "rl": LLAMA | {"layout": "tp=4,dp=4,mbs=1,gbs=64", "rl": "prompts=16,samples=8,prompt=256,response=512"},
    "lora": LLAMA | {"mode": "lora", "lora_rank": "32", "checkpoint": "async", "precision": "bf16"},
}


def flags(options: dict[str, str]) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]


@pytest.mark.parametrize("case", CASES)
def test_a_prediction_is_the_document_that_the_command_prints(case: str, cli: Cli) -> None:
    options = CASES[case]
    typed = {name: int(value) if name == "lora_rank" else value for name, value in options.items()}
    answer = sw.predict(**typed)
    done = cli("predict", *flags(options), "--json")
    assert answer.document() == json.loads(done.stdout)
    assert answer.fits == (done.returncode == 0)
    assert bool(answer.why_not) == (not answer.fits)
    low, high = answer.interval_s
    assert answer.bound_s <= low <= answer.time_s <= high
    assert answer.time_s == pytest.approx(sum(v for v, b in zip_columns(answer) if b == "time"))


def zip_columns(answer: object) -> list[tuple[float, str]]:
    columns = answer.columns()  # type: ignore[attr-defined]
    return list(zip(columns["value"], columns["breakdown"], strict=True))


@pytest.mark.parametrize("case", CASES)
def test_a_prediction_shows_itself(case: str) -> None:
    options = CASES[case]
    answer = sw.predict(**{n: int(v) if n == "lora_rank" else v for n, v in options.items()})
    shown = answer._repr_html_()
    assert options["model"] in shown
    assert ("does not fit" in shown) == (not answer.fits)
    assert options["model"] in repr(answer)
    assert answer.limits


def test_a_layout_may_be_a_dictionary() -> None:
    knobs = {"tp": 2, "dp": 8, "mbs": 1, "gbs": 64, "zero": 1, "sp": True}
    assert sw.predict(**LLAMA | {"layout": knobs}).id == sw.predict(**LLAMA).id
    with pytest.raises(sw.ConfigError, match="dp=x"):
        sw.predict(**LLAMA | {"layout": {"tp": 2, "dp": "x"}})


def test_a_change_is_the_difference_of_two_predictions() -> None:
    answer = sw.predict(**LLAMA)
    change = answer.what_if("recompute=full")
    other = sw.predict(**LLAMA | {"layout": f"{LLAMA['layout']},recompute=full"})
    assert change.after.time_s == other.time_s
    assert sum(seconds for _, seconds in change.terms) == pytest.approx(other.time_s - answer.time_s)
    assert "recompute" in change._repr_html_()


@pytest.mark.parametrize(
    "options",
    [
        LLAMA | {"model": "llama3-8bb"},
        LLAMA | {"system": "leonrado"},
        LLAMA | {"layout": "tp=3,dp=4"},
        LLAMA | {"layout": "tp=2;dp=4"},
        LLAMA | {"layout": "tp=2 dp=4 mbs=1"},
        LLAMA | {"precision": "fp9"},
        LLAMA | {"layout": "tp=4,dp=65536,mbs=1"},
        LLAMA | {"generate": "prompt=512"},
        LLAMA | {"storage": "floppy"},
        LLAMA | {"generate": "prompt=512,response=128", "optimizer": "sgd", "layout": "tp=2,dp=4,gbs=64"},
    ],
)
def test_wrong_input_raises_the_sentence_of_the_command(options: dict[str, str], cli: Cli) -> None:
    with pytest.raises(sw.ConfigError) as caught:
        sw.predict(**options)
    done = cli("predict", *flags(options))
    assert done.returncode == 2
    assert done.stderr == f"error: {caught.value}\n"


def test_a_grid_has_the_numbers_of_single_predictions() -> None:
    layouts = sw.layouts(tp=[1, 2, 4], pp=[1, 2], mbs=[1, 2], recompute=["none", "full"], zero=[0, 3], gbs=64, gpus=16)
    grid = sw.predict_many(model=["llama3-8b", "mixtral-8x7b"], system=["leonardo", "lumi"], layout=layouts)
    columns = grid.columns()
    assert len(grid) == 4 * len(layouts)
    checked = 0
    for row in range(0, len(grid), 7):
        if grid.problems[row]:
            continue
        single = sw.predict(**{name: columns[name][row] for name in ("model", "system", "layout")})
        assert columns["step_time_s"][row] == pytest.approx(single.time_s, rel=1e-12)
        assert columns["memory_bytes"][row] == pytest.approx(single.memory_bytes, rel=1e-12)
        assert columns["step_time_high_s"][row] == pytest.approx(single.interval_s[1], rel=1e-12)
        assert columns["energy_j"][row] == pytest.approx(float(single.energy.total), rel=1e-12)
        assert columns["fits"][row] == single.fits
        assert grid[row].document() == single.document()
        checked += 1
    assert checked > 10


def test_rows_of_a_grid_that_cannot_be_used_say_why() -> None:
    grid = sw.predict_many(model="llama3-8b", system="leonardo", layout=["tp=2,dp=4", "tp=5,dp=4"])
    assert grid.problems[0] == ""
    assert "tp=5 does not divide" in grid.problems[1]
    assert math.isnan(grid.columns()["step_time_s"][1])
    assert "tp=5 does not divide" in grid._repr_html_()
    with pytest.raises(sw.ConfigError, match="tp=5 does not divide"):
        grid[1]
    with pytest.raises(sw.ConfigError, match="no model is called"):
        sw.predict_many(model=["llama3-8b", "lama"], system="leonardo", layout="tp=2,dp=4")


def test_a_grid_holds_other_stages_too() -> None:
    grid = sw.predict_many(model="resnet-50", system=["leonardo", "lumi"], layout=["dp=4,mbs=64", "dp=8,mbs=64"])
    assert all(time > 0 for time in grid.columns()["step_time_s"])
    assert grid.best().time_s == min(grid.columns()["step_time_s"])


def test_layouts_of_a_grid_divide() -> None:
    texts = sw.layouts(tp=[1, 2, 3], mbs=[1, 3], gpus=8, gbs=64)
    assert texts == ["tp=1,mbs=1,gbs=64,dp=8", "tp=2,mbs=1,gbs=64,dp=4"]
    with pytest.raises(sw.ConfigError, match="no knob 'tpp'"):
        sw.layouts(tpp=2)
    with pytest.raises(sw.ConfigError, match="gpus and dp"):
        sw.layouts(dp=2, gpus=4)


def test_a_plan_is_the_document_that_the_command_prints(cli: Cli) -> None:
    plan = sw.plan(model="llama3-8b", system="leonardo", nodes=4, global_batch=64)
    printed = json.loads(
        cli(
            "plan", "--model", "llama3-8b", "--system", "leonardo", "--nodes", "4", "--global-batch", "64", "--json"
        ).stdout
    )
    assert plan.document() == printed
    assert plan.best is not None
    assert plan.best.document()["id"] == printed["best"]["id"]
    assert plan.best.question.layout.brief in plan._repr_html_()
    assert plan.columns()["step_time_s"][0] == plan.best.time_s


def test_a_plan_that_does_not_fit_says_so() -> None:
    plan = sw.plan(model="llama3-405b", system="leonardo", nodes=4, global_batch=64)
    assert plan.best is None
    assert not plan.fits
    assert "fit" in plan._repr_html_()


def test_a_plan_refuses_as_the_command_does(cli: Cli) -> None:
    with pytest.raises(sw.ConfigError) as caught:
        sw.plan(model="llama3-8b", system="leonardo", nodes="4-2", global_batch=64)
    done = cli("plan", "--model", "llama3-8b", "--system", "leonardo", "--nodes", "4-2", "--global-batch", "64")
    assert done.stderr == f"error: {caught.value}\n"


def test_an_rl_step_may_be_a_dictionary() -> None:
    step = {"prompts": 16, "samples": 8, "prompt": 256, "response": 512, "gpus": 8, "lag": 1}
    both = [
        sw.predict(model="llama3-8b", system="leonardo", layout="tp=4,dp=2,gbs=64", rl=rl)
        for rl in (step, ",".join(f"{key}={value}" for key, value in step.items()))
    ]
    assert both[0].id == both[1].id
    assert both[0].what_if("lag=0").after.time_s > both[0].time_s
